"""The calculator's answers in the page's words: at build time for the HTML and, in the browser, for every change.

Every function takes a JSON string and gives one, {"error": sentence} where the calculator refuses. The package travels
to the browser with the calculator, so it imports nothing but the calculator and what that imports.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache

from calculator import fit
from calculator.architectures import Architecture
from calculator.devices import Device, device_named
from calculator.errors import BadSetup
from calculator.estimate import Estimate, Setup, estimate, plain, resolve, setup_from

from .advised import choices
from .explained import explanations
from .models import own_values, used_part
from .shown import show_answer
from .sweep import swept
from .words import command, csv_of

LONGEST_CONFIG = 200_000
"""Characters of a config.json that are read; real ones have a few thousand."""

MOST_LAYERS = 500
"""Layers of a pasted model: the browser answers for these within about a second."""


def _answering(function: Callable[[dict], dict]) -> Callable[[str], str]:
    def answered(request_json: str) -> str:
        try:
            request = json.loads(request_json)
            if not isinstance(request, dict):
                raise BadSetup("A request is an object with a setup.")
            return json.dumps(function(request))
        except json.JSONDecodeError as error:
            return json.dumps({"error": f"This is not JSON: {error}."})
        except BadSetup as error:
            return json.dumps({"error": str(error)})

    return answered


@_answering
def answer(request: dict) -> dict:
    """Of {"setup", "gpu"}: all that the page shows at once; `gpu` is a GPU's name or empty."""
    setup, result = _estimated(request)
    device = _device(request)
    verdict = fit.verdict(setup, device) if device else None
    return show_answer(setup, result, _estimate(plain(setup)), verdict) | {
        "why": explanations(setup, result),
        "own": own_values(resolve(setup)),
    }


@_answering
def advise(request: dict) -> dict:
    """Of {"setup", "gpu"}: the most that fits and what would make it fit, each with the changes that it takes."""
    setup, _ = _estimated(request)
    device = _device(request)
    if device is None:
        return {"sentence": "Choose a GPU, and here stands what fits it.", "choices": []}
    advice = fit.advice(setup, device)
    return {"sentence": advice["sentence"], "choices": list(choices(setup, device, advice["suggestions"]))}


@_answering
def sweep(request: dict) -> dict:
    """Of {"setup", "along"}: the memory over a range of one of its numbers."""
    setup, _ = _estimated(request)
    return swept(setup, request.get("along"))


@_answering
def export(request: dict) -> dict:
    """Of {"setup", "gpu"}: the whole estimate as the command line's JSON, and as CSV."""
    setup, result = _estimated(request)
    device = _device(request)
    fits = {"fit": {"verdict": fit.answer(setup, device), **fit.advice(setup, device)}} if device else {}
    whole = {"command": command(setup, device and device.name), "estimate": {**result.as_dict(), **fits}}
    return {"json": json.dumps({"setup": request["setup"], **whole}, indent=2) + "\n", "csv": csv_of(result)}


@_answering
def read_config(request: dict) -> dict:
    """Of {"text"}, a pasted config.json: the part that the calculator uses, which is short enough for an address."""
    text = request.get("text")
    if not isinstance(text, str) or not text.strip():
        raise BadSetup("Paste the text of a config.json first.")
    if len(text) > LONGEST_CONFIG:
        raise BadSetup(f"This is too long for a config.json: {len(text)} characters of at most {LONGEST_CONFIG}.")
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadSetup(f"This is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from None
    except RecursionError:
        raise BadSetup("This is not a config.json: it is nested too deeply.") from None
    if not isinstance(config, dict):
        raise BadSetup("This is not a config.json: that is an object in braces.")
    used = used_part(config)
    setup, _ = _estimated({"setup": {"config": used}})
    return {"config": json.dumps(used, separators=(",", ":")), "own": own_values(resolve(setup))}


def exercise(setups_json: str) -> None:
    """Answers for each of a list of setups, so that all that the browser may need is imported and has run once."""
    for setup in json.loads(setups_json):
        for ask, gpu in ((answer, "t4"), (answer, None), (advise, ""), (export, None)):
            ask(json.dumps({"setup": setup, "gpu": gpu}))
    for ask in (advise, export, advise):
        ask(json.dumps({"setup": {"model": "gpt2-xl", "micro_batch_size": 8}, "gpu": "t4"}))
    answer(json.dumps({"setup": {"model": "gpt2"}, "gpu": "none-such"}))
    for along in ("micro_batch_size", "sequence_length", "shared_groups", "none-such"):
        sweep(json.dumps({"setup": {"model": "gpt2"}, "along": along}))
    for text in ('{"model_type": "gpt2"}', "{", "[]", '{"model_type": "none-such"}', ""):
        read_config(json.dumps({"text": text}))


def _estimated(request: dict) -> tuple[Setup, Estimate]:
    setup = setup_from(request.get("setup"))
    # Checked before it is looked up: true and 1 are the same to a cache, but not to the calculator.
    _check_layers(setup, resolve(setup))
    return setup, _estimate(setup)


def _estimate(setup: Setup) -> Estimate:
    """Remembered where it can be: a setup with a pasted config has no hash."""
    return estimate(setup) if setup.config is not None else _remembered(setup)


@lru_cache(maxsize=512)
def _remembered(setup: Setup) -> Estimate:
    return estimate(setup)


def _device(request: dict) -> Device | None:
    return device_named(request["gpu"]) if request.get("gpu") else None


def _check_layers(setup: Setup, model: Architecture) -> None:
    """Only a pasted model can be so deep that the browser would compute for minutes."""
    if setup.config is None:
        return
    layers = max(model.num_layers, model.num_decoder_layers)
    if layers > MOST_LAYERS:
        raise BadSetup(f"The model has {layers} layers; this page answers for at most {MOST_LAYERS}.")
