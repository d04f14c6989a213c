"""The doctor's child that uses hivemind: tries the codecs, starts a network node, and visits the run.

Arguments: how many seconds it may live; addresses to listen on. Standard input: one line of JSON with the recipe and
the peers' addresses, which may come late. Standard output: one line of JSON for each step.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from training.doctor.probes.telling import hear, live_briefly, tell
from training.processes.environment import prepare_environment
from training.recipe import RunConfig, run_of

LARGE_VALUES = 65_536
"""Values of a tensor that is sent in 8 bit."""


def _whom() -> tuple[RunConfig | None, list[str]]:
    told = hear()
    recipe = told.get("recipe")
    return recipe and run_of(recipe), told.get("initial_peers", [])


def try_codecs() -> None:
    """Averages through each codec."""
    from training.errors import TrainingError
    from training.swarm.engine.codecs import exchange_codec
    from training.swarm.epoch.selftest import check_exchange

    codecs = ("blockwise8", "uniform8", "float16", "float32")
    try:
        for name in codecs:
            check_exchange(exchange_codec(LARGE_VALUES, name), LARGE_VALUES)
    except TrainingError as error:
        tell("codecs", fault=str(error), codecs=codecs)
    else:
        tell("codecs", fault=None, codecs=codecs)


def main() -> None:
    """Runs all steps and ends, with everything that it has started."""
    live_briefly()
    prepare_environment()
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        tempfile.tempdir = folder
        tell("folder", path=folder)  # for the doctor to remove if it kills this program
        import torch

        from training.swarm.run.visit import visit

        torch.set_num_threads(1)
        try_codecs()
        asyncio.run(visit(sys.argv[2:], Path(folder), _whom, tell))


if __name__ == "__main__":
    main()
