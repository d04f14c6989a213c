"""Requests to the calculator that together import every module that the page may need.

runtime.mjs sends them once while it makes the browser's Python, which then contains only the modules imported by then.
If a kind of request were missing here, its modules would be missing in the browser, and the page would fail there.
"""

from __future__ import annotations

import json

from builder.calculator.form import DEFAULT
from builder.learn.figures import exercise_figures
from calculator import browser
from calculator.exercises.catalogue import EXERCISES, FIRST


def exercise_setups() -> list[dict]:
    """Setups that together import all of the calculator: every model, every choice, and invalid setups."""
    catalogue = json.loads(browser.catalogue())
    setups = [{"model": model["name"]} for model in catalogue["models"]]
    for key, options in catalogue["choices"].items():
        setups += [{**DEFAULT, key: option["value"]} for option in options]
    setups += [{**DEFAULT, "offload_optimizer": True, "checkpointing": 2, "shared_groups": 4, "dropout": 0}]
    setups += [{"model": "llama-3.2-1b", "lora_rank": 16, "base_bits": 4}]
    setups += [{**DEFAULT, "micro_batch_size": -1}, {**DEFAULT, "model": "none-such"}, {**DEFAULT, "unknown": 1}]
    return setups


def exercise_requests() -> dict[str, list[tuple[str, dict]]]:
    """Two lists of (function of `calculator.browser`, request).

    The requests of `every` import all modules. Those of `first` are answered before the snapshot of Python's memory is
    taken: what the calculator's page sends when it opens, and one figure, which imports what all figures need. With the
    answers of all figures, the snapshot would take 1.5 MB more, compressed.
    """
    figures = exercise_figures()
    return {
        "every": _requests(exercise_setups()) + figures,
        "first": _of_setup(DEFAULT) + figures[:2],
    }


def _requests(setups: list[dict]) -> list[tuple[str, dict]]:
    requests: list[tuple[str, dict]] = []
    for setup in setups:
        requests += _of_setup(setup)
    large = {"setup": {"model": "gpt2-xl", "micro_batch_size": 8}, "gpu": "t4"}
    requests += [("advise", large), ("export", large), ("advise", large)]
    requests += [("answer", {"setup": {"model": "gpt2"}, "gpu": "none-such"})]
    along = ("micro_batch_size", "sequence_length", "shared_groups", "none-such")
    requests += [("sweep", {"setup": {"model": "gpt2"}, "along": key}) for key in along]
    texts = ('{"model_type": "gpt2"}', "{", "[]", '{"model_type": "none-such"}', "")
    requests += [("read_config", {"text": text}) for text in texts]
    requests += [("ask_reader", {"study": "s", "reader": "r", "part": "before"})]
    return requests + [
        (ask, {"name": name, "variant": FIRST, "answer": "0"}) for name in EXERCISES for ask in ("exercise", "grade")
    ]


def _of_setup(setup: dict) -> list[tuple[str, dict]]:
    answers = [("answer", {"setup": setup, "gpu": "t4"}), ("answer", {"setup": setup, "gpu": None})]
    return [*answers, ("advise", {"setup": setup, "gpu": ""}), ("export", {"setup": setup})]
