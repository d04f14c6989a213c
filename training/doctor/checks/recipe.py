"""Checks of the recipe: that it can be read, is one, and is that of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.doctor.facts.recipe import Unread
from training.doctor.finding import Fault, Finding, fine, skipped
from training.doctor.probes.children import NoAnswer

if TYPE_CHECKING:
    from training.doctor.facts.shared import Shared

DIFFERS = Fault(
    name="recipe-differs",
    why="Peers with different recipes would spoil each other's weights, so `join` ends.",
    remedy="Take the recipe from the run's join page.",
)
UNKNOWN_RUN = Fault(
    name="run-unknown",
    why="These peers do not train the run that the recipe names.",
    remedy="Copy recipe and addresses from the same join page. If they belong together, the run has ended.",
)
RUN_SILENT = Fault(
    name="run-silent",
    level="warning",
    why="A peer was reached, but the run's records were not found in time. In training, the same would cost averages.",
    remedy="Run the doctor again. If it stays so, this network loses much, or the run's servers are overloaded.",
)
FAULTS = (DIFFERS, UNKNOWN_RUN, RUN_SILENT)


def check_recipe(shared: Shared) -> Finding:
    """Whether the recipe can be read."""
    if shared.asked.recipe is None:
        return skipped("Not checked: no --recipe is given.")
    try:
        run = shared.run()
    except Unread as error:
        return error.finding
    return fine(f"{shared.asked.recipe} describes the run {run.run_id} ({run.title}).")


def check_run(shared: Shared) -> Finding:
    """Whether the peers train this recipe."""
    run = shared.run_or_none()
    if run is None or not shared.asked.initial_peers:
        return skipped("Not checked: this needs a readable --recipe and --initial-peers.")
    try:
        if all(shared.visit("peers")["faults"].values()):
            return skipped("Not checked: no peer of the run answers.")
    except NoAnswer:
        return skipped("Not checked: no peer of the run answers.")
    try:
        told = shared.visit("recipe")
    except NoAnswer as error:
        return RUN_SILENT.found(f"The run was not found: {error}.")
    if told["outcome"] == "same":
        return fine(f"The run {run.run_id} trains this recipe ({run.digest}); {told['members']} volunteers train now.")
    faults = {"other": DIFFERS, "unknown": UNKNOWN_RUN}
    return faults.get(told["outcome"], RUN_SILENT).found(told["text"])
