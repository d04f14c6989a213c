"""The page's only entry: JSON strings in, JSON string out; at build time for the HTML, in the browser for every change.

A request is an object. Its `setup` has keys of `calculator.step.setups.Setup` (`model` or `config`, and any of the
others), its `gpu` is a name of `devices()`, a card by its memory such as `cuda-20gb`, or empty. The answer to a request
that is refused is `{"error": "<one sentence>"}`.

`answer({"setup", "gpu"})`
    Everything that the page shows at once; see `calculator.page.shown.show_answer`. In addition `why`, a text for every
    part, `own`, the model's own settings, and `curve`, by which an address sets the figure of the step to the setup.
`advise({"setup", "gpu"})`
    {`sentence`, `room`, `choices`}: ways to make the setup fit and the largest one that fits; see
    `calculator.page.advised`.
`sweep({"setup", "gpu", "along"})`
    {`title`, `points`, `present`, `gpu`}: the memory over a range of one of the setup's numbers, and the room
    on the GPU.
`gpus({"setup", "gpu", "billions", "price"})`
    {`rows`, `note`}: for every listed GPU whether the setup fits it, how fast it trains, and what a run of so many
    billions of tokens costs, and for how many GPUs this is; see `calculator.page.gpus`.
`generate({"setup", "gpu", "batch", "length", "weights", "cache"})`
    {`rows`, `note`}: the memory of generating text with the setup's model, for every listed GPU; see
    `calculator.page.generating`.
`models({"setup", "gpu"})`
    {`rows`, `note`}: for every model whether it fits the GPU, trained with the setup's techniques or generating text;
    see `calculator.page.fitting`.
`export({"setup", "gpu"})`
    {`json`, `csv`, `svg`}: the whole estimate as the texts of three files: the command line's JSON, a table, a picture.
`forecast(collaboration)`
    The throughput of volunteers; the keys are those of `calculator.swarm.collaboration.Collaboration`.
`read_config({"text"})`
    {`config`, `own`}: the part of a pasted config.json that the calculator uses, short enough for an address.
`search({"text", "defaults"})`
    The answer to a question in a reader's own words, for a page that begins with these keys of a setup; see
    `calculator.page.question.answered`.
`figure({"name", "values", "narrow"})`
    A figure of the pages on the challenges, drawn with the reader's values; see
    `calculator.figures.kit.figure.answered`.
`exercise({"name", "variant"})`
    {`question`, `field`, `help`}: an exercise with the numbers of a variant, as HTML; see
    `calculator.exercises.catalogue`.
`grade({"name", "variant", "answer"})`
    {`right`, `sentence`}: the verdict on an answer: a number with its unit, an option's index, or a program.
`ask_reader({"study", "reader", "part"})`
    {`questions`}: the questions of a reader study; see `calculator.exercises.quiz`.
`catalogue()`, `devices()`
    The options of a form.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, wraps

from calculator.choose import fit
from calculator.choose.devices import DEVICES, Device, device_named
from calculator.choose.inference import model_of
from calculator.errors import BadSetup
from calculator.families.registry import family_of
from calculator.figures.catalogue import figure_named
from calculator.figures.kit.figure import answered
from calculator.figures.step import address_of
from calculator.models.architectures import PRESETS, Architecture
from calculator.page.advised import advised
from calculator.page.explained import explanations
from calculator.page.fitting import models_on, settings_of
from calculator.page.generating import generating
from calculator.page.gpus import Run, note, rows
from calculator.page.models import own_values, used_part
from calculator.page.picture import picture
from calculator.page.question.answered import answered as answered_question
from calculator.page.shown import show_answer
from calculator.page.sweep import swept
from calculator.page.words import command, csv_of, judgement
from calculator.parts.optimizers import ADAMW, OPTIMIZERS
from calculator.parts.parameters import count_parameters
from calculator.reports.json_text import parsed
from calculator.step.answer import Estimate
from calculator.step.estimate import estimate
from calculator.step.resolve import check_layers, plain, resolve
from calculator.step.setups import ATTENTIONS, PCIE_BYTES_PER_SECOND, PRECISIONS, Setup, setup_from
from calculator.swarm import collaboration

LONGEST_CONFIG = 200_000
"""The longest config.json that is read, in characters; real ones have a few thousand."""

MODEL_TITLES = {
    "gpt3": "GPT-3",
    "dalle": "DALL-E",
    "mistral": "Mistral",
    "qwen2.5": "Qwen 2.5",
    "qwen3": "Qwen 3",
    "smollm2": "SmolLM",
    "smollm3": "SmolLM",
    "phi": "Phi",
    "deepseek": "DeepSeek",
    "sd3": "Stable Diffusion",
}
"""Titles of models under which readers look for them, by the first word of a preset's name; other models have the title
of their family."""


def _answering(function: Callable[[dict], dict]) -> Callable[[str], str]:
    @wraps(function)
    def answered(request_json: str) -> str:
        try:
            request = parsed(request_json)
            if not isinstance(request, dict):
                raise BadSetup("A request is an object with a setup.")
            return json.dumps(function(request))
        except BadSetup as error:
            return json.dumps({"error": str(error)})

    return answered


@_answering
def answer(request: dict) -> dict:
    """Everything that the page shows at once."""
    setup, result = _estimated(request)
    device = _device(request)
    verdict = fit.verdict(setup, device, result) if device else None
    return show_answer(setup, result, _estimate(plain(setup)), verdict) | {
        "why": explanations(setup, result, device),
        "own": own_values(resolve(setup)),
        "curve": address_of(setup),
    }


@_answering
def advise(request: dict) -> dict:
    """Ways to make the setup fit and the largest one that fits, each with its changes to the setup."""
    setup, _ = _estimated(request)
    device = _device(request)
    if device is None:
        return {"sentence": "Choose a GPU to see what fits it.", "room": "", "choices": []}
    return advised(setup, device)


@_answering
def sweep(request: dict) -> dict:
    """The memory over a range of one number."""
    setup, _ = _estimated(request)
    return swept(setup, request.get("along"), _device(request))


@_answering
def gpus(request: dict) -> dict:
    """The verdict, speed and cost of a setup on every listed GPU."""
    setup, result = _estimated(request)
    return {"rows": rows(setup, result, Run.of(request), _device(request)), "note": note(setup)}


@_answering
def generate(request: dict) -> dict:
    """The memory of generating text with a setup's model."""
    setup = setup_from(request.get("setup"))
    model = model_of(setup)
    check_layers(setup, model)
    return generating(model, request, _device(request))


@_answering
def models(request: dict) -> dict:
    """Every model on the GPU."""
    setup = setup_from(request.get("setup"))
    device = _device(request)
    if device is None:
        raise BadSetup("Choose a GPU to see which models fit it.")
    note = f"On the {device.title}, with the techniques of the form where they apply to a model."
    return {"rows": models_on(device, settings_of(setup)), "note": note}


@_answering
def export(request: dict) -> dict:
    """The whole estimate as the command line's JSON, as CSV and as a picture."""
    setup, result = _estimated(request)
    device = _device(request)
    fits = {"fit": {"verdict": fit.answer(setup, device), **fit.advice(setup, device)}} if device else {}
    whole = {"command": command(setup, device and device.name), "estimate": {**result.as_dict(), **fits}}
    stands = judgement(fit.verdict(setup, device, result), result)[0] if device else ""
    return {
        "json": json.dumps({"setup": request["setup"], **whole}, indent=2) + "\n",
        "csv": csv_of(result),
        "svg": picture(_in_short(setup, result), result, stands),
    }


@_answering
def forecast(request: dict) -> dict:
    """The throughput of volunteers."""
    return collaboration.answer(collaboration.collaboration_from(request))


@_answering
def read_config(request: dict) -> dict:
    """The part of a pasted config.json that the calculator uses."""
    text = request.get("text")
    if not isinstance(text, str) or not text.strip():
        raise BadSetup("Paste the text of a config.json first.")
    if len(text) > LONGEST_CONFIG:
        raise BadSetup(f"This is too long for a config.json: {len(text)} characters of at most {LONGEST_CONFIG}.")
    config = parsed(text)
    if not isinstance(config, dict):
        raise BadSetup("This is not a config.json, which is an object in braces.")
    used = used_part(config)
    setup, _ = _estimated({"setup": {"config": used}})
    return {"config": json.dumps(used, separators=(",", ":")), "own": own_values(resolve(setup))}


@_answering
def search(request: dict) -> dict:
    """Fields of the form that a reader's words set."""
    text = request.get("text")
    if not isinstance(text, str) or not text.strip():
        raise BadSetup("Type a model, and if you like a technique and a GPU, such as llama 8b lora 24 gb.")
    defaults = request.get("defaults", {})
    if not isinstance(defaults, dict):
        raise BadSetup("The defaults are an object.")
    return answered_question(text, defaults)


@_answering
def figure(request: dict) -> dict:
    """A figure, drawn with the reader's values."""
    asked = figure_named(request.get("name"))
    texts = request.get("values", {})
    if not isinstance(texts, dict):
        raise BadSetup("The values of a figure are an object.")
    return answered(asked, texts, narrow=bool(request.get("narrow")))


# Exercises are imported when one is asked for: browsers get them as a file of their own, see runtime.mjs.


@_answering
def exercise(request: dict) -> dict:
    """An exercise with the numbers of a variant."""
    from calculator.exercises.catalogue import asked

    return asked(request)


@_answering
def grade(request: dict) -> dict:
    """The verdict on an answer to an exercise."""
    from calculator.exercises.catalogue import answered

    return answered(request)


@_answering
def ask_reader(request: dict) -> dict:
    """The questions of a reader study."""
    from calculator.exercises.quiz import quiz

    return quiz(request)


def catalogue() -> str:
    """The options of the calculator's form: models with their sizes, and the choices of every other key.

    JSON: `models` is a list of {`name`, `family_title`, `parameters`}; `choices` maps keys to lists of {`value`,
    `title`}; `defaults` is a whole setup.
    """
    titles = {
        "amp-bf16": "Mixed, bfloat16",
        "amp-fp16": "Mixed, float16",
        "fp32": "Full, float32",
        "bf16": "Pure bfloat16",
        "fp16": "Pure float16",
        "sdpa": "Fused (SDPA, FlashAttention)",
        "eager": "Separate operations (eager)",
        "foreach": "foreach (PyTorch's default)",
        "for-loop": "for-loop",
        "fused": "fused",
    }
    offered = {
        "precision": [{"value": value, "title": titles[value]} for value in PRECISIONS],
        "attention": [{"value": value, "title": titles[value]} for value in ATTENTIONS],
        "optimizer": [{"value": optimizer.name, "title": optimizer.title} for optimizer in OPTIMIZERS.values()],
        "optimizer_impl": [{"value": value, "title": titles[value]} for value in ADAMW],
        "pcie_generation": [{"value": value, "title": f"PCIe {value}.0 x16"} for value in PCIE_BYTES_PER_SECOND],
    }
    defaults = {
        name: getattr(Setup(model="gpt2-large"), name) for name in Setup.__dataclass_fields__ if name != "config"
    }
    return json.dumps({"models": list(map(_listed, PRESETS.values())), "choices": offered, "defaults": defaults})


def devices() -> str:
    """The GPUs for which the calculator can judge a setup.

    JSON: a list of {`name`, `title`, `memory_bytes` (as sold), `usable_bytes`, `source` (of `usable_bytes`), `unified`,
    `bfloat16` (whether the hardware has it)}.
    """
    names = ("name", "title", "memory_bytes", "usable_bytes", "source", "unified", "bfloat16")
    return json.dumps([{name: getattr(device, name) for name in names} for device in DEVICES.values()])


def _in_short(setup: Setup, result: Estimate) -> str:
    tokens = setup.sequence_length or resolve(setup).sequence_length
    return f"Training {result.model}, {setup.micro_batch_size} x {tokens} tokens"


def _listed(architecture: Architecture) -> dict:
    family = family_of(architecture)
    named = MODEL_TITLES.get(architecture.name.split("-")[0], family.title)
    return {
        "name": architecture.name,
        "family_title": family.title if family.own_trainer else named,
        "parameters": count_parameters(architecture),
    }


def _estimated(request: dict) -> tuple[Setup, Estimate]:
    setup = setup_from(request.get("setup"))
    # `resolve` checks the setup before the cache is asked: true and 1 are equal to a cache, but the calculator refuses
    # one where it wants the other.
    check_layers(setup, resolve(setup))
    return setup, _estimate(setup)


def _estimate(setup: Setup) -> Estimate:
    """The estimate, from the cache if possible: a setup with a pasted config is not hashable."""
    return estimate(setup) if setup.config is not None else _remembered(setup)


@lru_cache(maxsize=512)
def _remembered(setup: Setup) -> Estimate:
    return estimate(setup)


def _device(request: dict) -> Device | None:
    return device_named(request["gpu"]) if request.get("gpu") else None
