"""What the site claims, and which test or measurement holds it; all are looked up, so that none can be a mere name."""

from __future__ import annotations

import ast
import html
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from builder.folders import PAGES, RESULTS, ROOT
from builder.markup.links import site_link
from builder.markup.tables import stacked


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the site and what holds it."""

    page: str
    """Source of the page that says it."""
    says: str
    tests: tuple[str, ...] = ()
    """`FILE::TEST` below tests/."""
    records: tuple[str, ...] = ()
    """Names of files in benchmarks/results, without ending."""
    open: str = ""
    """What is not known, where neither holds all of it."""


CLAIMS = (
    Claim(
        page="index.md",
        says="Volunteers average their gradients directly with each other, compressed to 8 bits.",
        tests=("training/swarm/test_averaging.py", "training/swarm/test_codecs.py"),
        records=("codecs",),
    ),
    Claim(
        page="index.md",
        says="The run goes on when someone leaves; a newcomer downloads the current weights from a peer.",
        tests=(
            "training/roles/test_peer.py",
            "training/swarm/test_download.py",
            "training/swarm/test_agreement.py",
            "training/swarm/test_allreduce.py",
            "training/swarm/test_averaging.py::test_the_survivors_of_a_death_in_mid_average_average_again",
        ),
        records=("swarm",),
    ),
    Claim(
        page="index.md",
        says="The run at a glance is the live run, or the recorded one.",
        tests=("site/test_dashboard_page.py::test_home_shows_the_run_at_a_glance", "site/test_trainers_run.py"),
    ),
    Claim(
        page="calculator.md",
        says="The calculator is right to the byte on training steps of real model code.",
        tests=("calculator/test_reference_steps.py", "calculator/test_saved_activations.py"),
        records=("memory_accuracy",),
        open="On tensors without content; a GPU's own fragmentation was not measured.",
    ),
    Claim(
        page="calculator.md",
        says="Host memory with the optimizer on the host.",
        tests=("calculator/test_memory_measured.py",),
        records=("memory_on_host",),
    ),
    Claim(
        page="calculator.md",
        says="The page computes what the command computes.",
        tests=("site/test_calculator_page.py",),
        records=("page", "estimate_speed"),
    ),
    Claim(
        page="join.md",
        says="Every command that the page can show runs.",
        tests=(
            "site/test_join_commands.py::test_every_command_runs_dry",
            "site/test_join_page.py::test_every_choice_gives_the_builders_command_or_its_reason",
        ),
        open="On Linux, beside a bootstrap peer, with shards of random codes; macOS, WSL and GPUs were not at hand.",
    ),
    Claim(
        page="join.md",
        says="The micro-batch is the largest power of two that fits with a margin.",
        tests=("site/test_join_commands.py::test_the_micro_batch_is_the_plans", "training/compute/test_plan.py"),
    ),
    Claim(
        page="join.md",
        says="Bytes for each epoch.",
        tests=("site/test_join_commands.py::test_bytes_on_the_way_are_those_of_the_codec",),
        records=("swarm",),
    ),
    Claim(
        page="join.md",
        says="Every message with which a command can end stands in the table.",
        tests=(
            "site/test_join_page.py::test_no_message_is_missing",
            "site/test_join_page.py::test_what_the_program_prints_is_in_the_table",
        ),
    ),
    Claim(
        page="join.md",
        says="Ctrl-C stops it in time, and nothing stays behind.",
        tests=("training/processes/test_role.py", "training/roles/test_peer.py"),
    ),
    Claim(
        page="dashboard.md",
        says="Silence is said and never filled with invented numbers.",
        tests=("site/test_dashboard_page.py::test_silence_is_said_and_never_filled",),
    ),
    Claim(
        page="dashboard.md",
        says="Epochs, losses, volunteers and pictures are those of the run.",
        tests=("training/publish/test_history.py", "training/publish/test_live.py", "site/test_trainers_run.py"),
    ),
    Claim(
        page="challenges/communication.md",
        says="Figures show the same digits in the browser as on CPython, and answer while they are dragged.",
        tests=("site/test_challenge_pages.py::test_every_figure_answers_the_same_in_the_browser",),
        records=("figures",),
    ),
    Claim(
        page="challenges/communication.md",
        says="In a ring and directly, each peer sends and receives 2 (n - 1) / n of the vector, and all get the sum.",
        tests=(
            "calculator/figures/test_all_reduce.py",
            "calculator/figures/test_models.py::test_traffic_of_a_peer_is_that_of_the_run_designer",
        ),
    ),
    Claim(
        page="challenges/communication.md",
        says="Batch, sharing and bits multiply; the parameters are those that the calculator counts.",
        tests=(
            "calculator/figures/test_models.py::test_the_factors_multiply_to_the_whole",
            "calculator/figures/test_models.py::test_gradients_are_as_many_as_the_estimate_counts",
        ),
        open="At the full rate of a link; what real swarms reach is measured elsewhere.",
    ),
    Claim(
        page="challenges/uneven-devices.md",
        says="The result is exactly the gradient of one large batch.",
        tests=("training/swarm/test_same_run.py", "training/compute/test_micro_batches.py"),
        records=("same_run", "swarm_speeds"),
        open="In 32 bit but for the order of additions; in 8 bit the loss goes up to 0.1 % off, as measured.",
    ),
    Claim(
        page="challenges/uneven-devices.md",
        says="Weighted by samples, the average is the gradient of the large batch, and nobody waits for the slowest.",
        tests=(
            "calculator/figures/test_averaging.py::test_weighted_accumulation_is_the_gradient_of_the_large_batch",
            "calculator/figures/test_models.py::test_counting_samples_equals_a_simulation_event_by_event",
        ),
    ),
    Claim(
        page="challenges/memory.md",
        says="The figure stores values as bitsandbytes does; an outlier spoils only its block.",
        tests=("calculator/figures/test_eight_bit.py", "training/optim/test_blockwise.py"),
    ),
    Claim(
        page="challenges/data-streaming.md",
        says="The buffer of the figure mixes as the trainer's does.",
        tests=("calculator/figures/test_models.py::test_buffers_mix_as_those_of_the_trainer",),
        open="That codes take 18 times less bandwidth is the 2021 run's own figure (its paper, section 3.2).",
    ),
    Claim(
        page="challenges/security.md",
        says="CenteredClip is the published algorithm, and no gradient pulls it by more than tau / n a move.",
        tests=("calculator/figures/test_averaging.py",),
        open="The trainer does not use it yet.",
    ),
    Claim(
        page="challenges/security.md",
        says="Each attack on a ticket ends at the check that the figure names; hivemind refuses the same requests.",
        tests=("calculator/figures/test_admission.py",),
        open="The trainer has no tickets yet.",
    ),
    Claim(
        page="make-your-own-run.md",
        says="Every command on this site takes the flags that are shown.",
        tests=("site/test_commands.py",),
    ),
    Claim(
        page="make-your-own-run.md",
        says="Preparing leaves out unsuitable pairs and says how many and why.",
        tests=("training/data/test_prepare.py",),
    ),
    Claim(
        page="make-your-own-run.md",
        says="The recipe that the designer offers starts a run, unchanged.",
        tests=(
            "site/test_run_designer.py::test_a_downloaded_recipe_starts_a_run",
            "training/simulate/test_designer.py",
        ),
    ),
    Claim(
        page="make-your-own-run.md",
        says="What the designer promises is what the simulator reaches, and that is within 15 % of measured swarms.",
        tests=(
            "training/simulate/test_simulation.py::test_measured_swarms_are_predicted_within_the_bound",
            "training/simulate/test_designer.py::test_a_designed_run_reaches_in_simulation_what_was_promised",
        ),
        records=("simulation", "swarm", "swarm_awaited", "swarm_speeds", "swarm_minute", "swarm_local"),
        open="Two to four peers on links of 100 Mbit/s were measured, and no swarm of hundreds.",
    ),
    Claim(
        page="make-your-own-run.md",
        says="Beyond some thousand peers, no answer of the DHT holds the record of everyone's progress.",
        tests=("training/simulate/test_closed_form.py::test_a_peers_progress_takes_as_much_of_the_record",),
        records=("progress_record",),
    ),
    Claim(
        page="recipe.md",
        says="The 2021 recipe says what the paper says.",
        tests=("test_recipes.py::test_the_2021_recipe_says_what_the_paper_says",),
    ),
    Claim(
        page="about-2021.md",
        says="Our model computes what dalle-pytorch, the 2021 run's code, computes.",
        tests=("training/model/test_parity.py", "training/model/test_vqgan.py"),
        records=("model_step", "sampling"),
        open="With random weights: the run's own were not at hand.",
    ),
    Claim(
        page="about-2021.md",
        says="8-bit LAMB follows its papers.",
        tests=("training/optim/test_lamb.py", "training/optim/test_blockwise.py"),
        records=("optimizer_step",),
    ),
    Claim(
        page="glossary.md",
        says="A word's sentence opens by pointer, by keyboard and by touch; without scripts the word is a link.",
        tests=(
            "site/test_whole_site.py::test_words_open_by_keyboard_and_pointer",
            "site/test_whole_site.py::test_words_open_by_touch_and_lead_on_when_tapped_again",
            "site/test_whole_site.py::test_words_of_the_glossary_explain_themselves",
        ),
    ),
    Claim(
        page="results.md",
        says="Pictures and verdicts are the recorded ones, the wrong ones too.",
        tests=("site/test_results_page.py",),
    ),
    Claim(
        page="results.md",
        says="The judge that says “right” is itself right.",
        tests=("training/generate/test_judge.py",),
    ),
    Claim(
        page="results.md",
        says="How many pictures of 400 are right.",
        open="Recorded by hand from one run of evaluate; the demo's test only asks that it learns.",
        tests=("training/demo/test_whole_run.py", "training/generate/test_evaluate.py"),
    ),
    Claim(
        page="reference/performance.md",
        says="Every number of the page is one of the recorded files.",
        tests=("site/test_reference_pages.py::test_performance_tables_are_the_records",),
        open="The times are those of a shared machine with two cores.",
    ),
    Claim(
        page="index.md",
        says="The site asks no other origin for anything, and works without a network after a visit.",
        tests=(
            "site/test_built_site.py::test_nothing_is_asked_of_another_origin",
            "site/test_calculator_page.py",
        ),
    ),
    Claim(
        page="index.md",
        says="Every page can be used by keyboard and screen reader, at 360 pixels, in both palettes.",
        tests=("site/test_every_page.py::test_small_still_accessible_and_not_too_wide",),
        records=("lighthouse",),
        open="By axe-core and Lighthouse, which find many faults but not all; no people with disabilities were asked.",
    ),
)
"""In the order of the pages."""


def claims_table() -> str:
    """Markdown: a table a page, with what holds each claim.

    Raises:
        ValueError: If a test, a record or a page that is named does not exist.
    """
    titles = _titles()
    parts = []
    for page in dict.fromkeys(claim.page for claim in CLAIMS):
        rows = [_row(claim) for claim in CLAIMS if claim.page == page]
        address = page if not page.startswith("reference/") else page.removeprefix("reference/")
        link = address if page.startswith("reference/") else f"../{page}"
        parts.append(
            f"## [{titles[page]}]({link}) {{ #{Path(page).stem} }}\n\n"
            + stacked(f"{titles[page]}: claims", ("Claim", "Held by", "Not known"), rows)
        )
    return "\n\n".join(parts)


def _row(claim: Claim) -> tuple[str, str, str]:
    held = [test_link(name) for name in claim.tests] + [_record(name) for name in claim.records]
    return html.escape(claim.says), "<br>".join(held), html.escape(claim.open)


def test_link(name: str) -> str:
    """HTML: the name of a test.

    Args:
        name: `FILE::TEST` below tests/, or a whole file.

    Raises:
        ValueError: If there is no such test.
    """
    file, _, test = name.partition("::")
    path = ROOT / "tests" / file
    if not path.is_file() or (test and test not in _tests_of(path)):
        raise ValueError(f"A page names tests/{name}, which does not exist.")
    breakable = re.sub("([/_])", r"\1<wbr>", f"tests/{name}")
    return f"<code>{breakable.replace('::', '</code> <code>')}</code>"


def _record(name: str) -> str:
    if not (RESULTS / f"{name}.json").is_file():
        raise ValueError(f"The page on what holds the claims names the record {name}, which does not exist.")
    address = f"{site_link('reference/performance/')}#{name.replace('_', '-')}"
    return f'<a href="{address}">measured: {name.replace("_", " ")}</a>'


@cache
def _tests_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _titles() -> dict[str, str]:
    """Page -> its title."""
    found = {}
    for page in {claim.page for claim in CLAIMS}:
        lines = (PAGES / page).read_text(encoding="utf-8").splitlines()
        found[page] = next(line.removeprefix("title: ") for line in lines if line.startswith("title: "))
    return found
