"""`python -m calculator inference`: the memory of generating text, as a report or as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

from calculator.choose.devices import device_named
from calculator.choose.inference import ITEMSIZES, PROMPT, inference_memory, largest_batch, longest_context, model_of
from calculator.choose.names import gpu_of
from calculator.choose.stored import FP8, MXFP4, NF4, STORED, can_be_stored
from calculator.errors import BadSetup
from calculator.families.lengths import beyond_training
from calculator.models.architecture import Architecture
from calculator.models.architectures import quantization_of
from calculator.models.names import Named, named
from calculator.step.setups import Setup, sees_pictures
from calculator.units import show_bytes


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the two flags that name a model; `model_or_config` accepts one of them."""
    parser.add_argument("model", nargs="?", help="a preset, or its name on the Hugging Face Hub")
    parser.add_argument("--config", metavar="FILE", help="a Hugging Face config.json in place of MODEL")


def model_or_config(name: str | None, path: str | None, read: Callable[[str], object]) -> dict[str, object]:
    """Builds the field of a setup that names its model: `model` or `config`.

    Raises:
        BadSetup: If both flags are given, or neither.
    """
    if (name is None) == (path is None):
        raise BadSetup("Give a model or --config FILE, one of the two; `python -m calculator --help` lists the models.")
    return {"model": name} if path is None else {"config": read(path)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command `inference`."""
    add_model_flags(parser)
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at once")
    parser.add_argument(
        "--length", type=int, metavar="T", help="tokens of each, prompt and answer (the model's own, at most 4096)"
    )
    parser.add_argument(
        "--weights", choices=STORED, help="type of weights (bf16, or as the name says); nf4 is bitsandbytes' 4 bit"
    )
    parser.add_argument("--cache", choices=ITEMSIZES, default="bf16", help="type of cached keys and values")
    parser.add_argument("--block", type=int, default=1, metavar="N", help="tokens of a paged block, such as vLLM's 16")
    parser.add_argument(
        "--gpu", type=gpu_of, metavar="NAME", help="also say the longest context and the largest batch that fit it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(flags: dict, read: Callable[[str], object]) -> str:
    """Runs the command `inference`; returns the text that it prints.

    Args:
        flags: Values of the flags by name.
        read: Reads the JSON file of a config.

    Raises:
        BadSetup: If the flags describe no model that generates text.
    """
    as_json, gpu = flags.pop("json"), flags.pop("gpu")
    setup = Setup(**model_or_config(flags.pop("model"), flags.pop("config"), read))
    model = model_of(setup)
    name = named(setup.model) if setup.model else None
    flags["weights"] = flags["weights"] or usual_weights(model, name, setup.config)
    answer = answered(model, gpu, **flags)
    beyond = beyond_training(model, max(answer["length"], answer.get("longest_context", 0)))
    answer["notes"] = [*notes(setup, flags["weights"]), *filter(None, [beyond])]
    return json.dumps(answer) if as_json else _report(answer)


def answered(architecture: Architecture, gpu: str | None, *, length: int | None = None, **options: object) -> dict:
    """The answer as plain data: the parts, and for a GPU the longest context and the largest batch that fit."""
    length = architecture.sequence_length if length is None else length
    memory = inference_memory(architecture, length=length, **options)
    device = None if gpu is None else device_named(gpu)
    if device is not None and device.unified:
        memory = replace(memory, overhead=0)  # it has no CUDA
    answer = {"model": architecture.name, "length": length, **options, **asdict(memory), "total": memory.total}
    if device is None:
        return answer
    batch = options.pop("batch", 1)
    return answer | {
        "gpu": device.title,
        "usable_bytes": device.usable_bytes,
        "longest_context": longest_context(architecture, device, batch=batch, **options),
        "largest_batch": largest_batch(architecture, device, length=length, **options),
    }


def usual_weights(architecture: Architecture, name: Named | None, config: Mapping[str, object] | None) -> str:
    """Type of the weights if no flag gives it: as published, or that of a quantized copy by its name or config,
    if counted."""
    said = {4: NF4, 8: FP8}.get(name.bits) if name else {"mxfp4": MXFP4, "fp8": FP8}.get(quantization_of(config))
    if name and name.bits in (None, 4) and architecture.mxfp4:
        said = MXFP4
    return said if said and can_be_stored(architecture, said) else "bf16"


def notes(setup: Setup, weights: str) -> list[str]:
    """Sentences about the prompt, about quantized weights, and about parts that are not counted."""
    found = [PROMPT]
    name = named(setup.model) if setup.model else None
    if name and name.quantization:
        found.append(
            f"The name says that its weights are quantized ({name.quantization}): they count as {weights}; --weights "
            "counts others."
        )
    elif name and weights == MXFP4:
        found.append("Its experts are published in MXFP4, and count so; --weights counts others.")
    if method := quantization_of(setup.config):
        found.append(
            f"The config says that its weights are quantized ({method}): they count as {weights}; --weights counts "
            "others."
        )
    if sees_pictures(setup):
        found.append("Only the text model is counted, not what reads pictures or sounds for it.")
    return found


def _report(answer: Mapping[str, object]) -> str:
    lines = [f"{answer['model']}: {answer['batch']} x {answer['length']:,} tokens", ""]
    names = {"weights": "Weights", "cache": "Cached keys and values", "overhead": "CUDA itself", "total": "Total"}
    lines += [f"{words:<28}{show_bytes(answer[name]):>14} {answer[name]:>22,} B" for name, words in names.items()]
    if "gpu" in answer:
        lines += [
            "",
            f"{show_bytes(answer['usable_bytes'])} of the {answer['gpu']} can be used.",
        ]
        if not answer["largest_batch"] and not answer["longest_context"]:
            alone = show_bytes(answer["weights"] + answer["overhead"])
            what = "the weights and CUDA itself" if answer["overhead"] else "the weights"
            return "\n".join([*lines, f"Not even one token fits: {what} take {alone}."])
        lines += [
            f"Longest context that fits, all else unchanged: {answer['longest_context']:,} tokens.",
            f"Largest batch that fits, all else unchanged: {answer['largest_batch']:,}.",
        ]
    return "\n".join([*lines, "", *answer["notes"]])
