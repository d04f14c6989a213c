"""`python -m calculator fit`: how to train a model on one GPU or several, as settings and as code."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, replace

from calculator.choose.devices import Device, device_named
from calculator.choose.fit import MORE_GPUS, Fit, Suggestion, largest_micro_batch, suggestions, verdict
from calculator.choose.names import gpu_of
from calculator.choose.techniques import LORA_RANK, Technique
from calculator.choose.training_code import OPTIMIZERS_OF_TRAINER, TEXT_OF_PICTURES, training_code
from calculator.errors import BadSetup
from calculator.families.registry import family_of
from calculator.models.architectures import quantization_of
from calculator.models.names import hub_id
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.reports.inference_report import add_model_flags, model_or_config
from calculator.step.resolve import resolve
from calculator.step.setups import DEEPSPEED, DIVIDED, PRECISIONS, Setup

USUAL_LENGTH = 2048
"""Tokens of a sequence if no length is given and the model takes more."""
LARGEST_BATCH = 64
"""Largest micro-batch that is proposed; larger ones make a step hardly more efficient."""
PRECISIONS_OF_TRAINER = tuple([precision for precision in PRECISIONS if precision != "fp16"])
"""Precisions of `Trainer`, which cannot unscale gradients in float16."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command `fit`."""
    add_model_flags(parser)
    parser.add_argument(
        "--gpu", required=True, type=gpu_of, metavar="NAME", help="what it must fit; cuda-20gb is any card of 20 GiB"
    )
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="how many of them train together (1)")
    parser.add_argument(
        "--sequence-length", type=int, metavar="T", help=f"tokens (the model's own, at most {USUAL_LENGTH})"
    )
    parser.add_argument("--precision", choices=PRECISIONS_OF_TRAINER, help="to begin with (autocast, bf16 if it can)")
    parser.add_argument(
        "--optimizer", choices=("adamw", *OPTIMIZERS_OF_TRAINER), default="adamw", help="to begin with (adamw)"
    )
    parser.add_argument(
        "--sharding", choices=("none", *DEEPSPEED, *DIVIDED), default="none", help="to begin with; DeepSpeed or FSDP2"
    )
    parser.add_argument("--optimizer-rank", type=int, metavar="R", help="of GaLore's and APOLLO's projections")
    parser.add_argument(
        "--optimizer-in-backward", action="store_true", help="GaLore or APOLLO layer by layer, which frees gradients"
    )
    parser.add_argument("--lora-rank", type=int, metavar="R", help="train LoRA's adapters in any case")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(flags: dict, read: Callable[[str], object]) -> str:
    """Runs the command `fit`; returns the text that it prints.

    Args:
        flags: Values of the flags by name.
        read: Reads the JSON file of a config.

    Raises:
        BadSetup: If no technique that the written code can use makes the model fit.
    """
    as_json, device = flags.pop("json"), device_named(flags.pop("gpu"))
    named = model_or_config(flags.pop("model"), flags.pop("config"), read)
    if resolve(Setup(**named)).patch_size:
        raise BadSetup("The code of this command trains language models; give one of them.")
    source = hub_id(named["model"]) if "model" in named else "path/to/the/model"
    if source is None:
        raise BadSetup(
            f"No weights of {named['model']} are published, so there is nothing to load; give another model."
        )
    config = named.get("config") or {}
    if "text_config" in config and config.get("model_type") not in TEXT_OF_PICTURES:
        raise BadSetup(
            "Only the text model of this config is counted, and no code loads it alone; give the config.json of a text "
            f"model, or of one of {', '.join(TEXT_OF_PICTURES)}."
        )
    if method := quantization_of(named.get("config")):
        raise BadSetup(
            f"The config says that its weights are quantized already ({method}); give the config.json of the model "
            "that they were made of."
        )
    setup = _first_setup(device, **named, **flags)
    if setup.optimizer_in_backward and setup.optimizer not in DEFAULT_RANKS:
        raise BadSetup(
            f"Trainer updates in backward with the optimizers {', '.join(DEFAULT_RANKS)} only, not {setup.optimizer}; "
            "choose one of these, or omit optimizer_in_backward."
        )
    setup, judged, changed = best(setup, device)
    techniques, costs = (changed.techniques, changed.costs) if changed else ((), "")
    code = training_code(setup, source)
    if as_json:
        settings = {name: value for name, value in asdict(setup).items() if value is not None}
        told = {"setup": settings, "techniques": techniques, "costs": costs, "verdict": judged.as_dict()}
        return json.dumps({**told, "snippet": code})
    how = f" with {', '.join(techniques)}" if techniques else " as it is"
    said = [f"Trained{how}: {setup.micro_batch_size} x {setup.sequence_length} tokens in a pass.", judged.sentence]
    said += [f"Cost: {costs}."] if costs else []
    return "".join(f"# {sentence}\n" for sentence in (*said, *judged.notes)) + "\n" + code


def _first_setup(device: Device, *, precision: str | None, sequence_length: int | None, **flags: object) -> Setup:
    """The setup that is tried first: 16-bit autocast, everything else as in `Trainer`'s defaults."""
    setup = Setup(
        precision=precision or ("amp-bf16" if device.bfloat16 else "amp-fp16"), embeddings_32bit=True, **flags
    )
    architecture = resolve(setup)
    if family_of(architecture).own_trainer:
        raise BadSetup(f"transformers' Trainer does not train {architecture.name}; give another model.")
    usual = min(architecture.sequence_length, USUAL_LENGTH)
    # transformers refuses to load a model with fused attention if its code has none.
    attention = "sdpa" if architecture.fusable else "eager"
    return replace(setup, attention=attention, sequence_length=usual if sequence_length is None else sequence_length)


def best(setup: Setup, device: Device) -> tuple[Setup, Fit, Suggestion | None]:
    """Finds the setup with the fewest changes that fits; returns it, its verdict, and the changes,
    None if there are none.

    Its micro-batch is the largest power of two that is not tight, at most `LARGEST_BATCH`.

    Raises:
        BadSetup: If no setup fits.
    """
    changed = None
    if verdict(setup, device).standing != "fits":
        found = suggestions(setup, device, allowed=can_be_written)
        if not found:
            raise BadSetup(_refusal(setup, device))
        changed = found[0]
        setup = replace(setup, **changed.changes)
    size = min(largest_micro_batch(setup, device), LARGEST_BATCH)
    size = 1 << size.bit_length() - 1
    while size > 1 and verdict(replace(setup, micro_batch_size=size), device).standing != "fits":
        size //= 2
    setup = replace(setup, micro_batch_size=size)
    return setup, verdict(setup, device), changed


def _refusal(setup: Setup, device: Device) -> str:
    among, how = (f"{setup.gpus} of ", "Trainer or FSDP2") if setup.gpus > 1 else ("", "Trainer")
    sentence = (
        f"No settings of {how} make {resolve(setup).name} fit {among}the {device.title} with {setup.sequence_length} "
        "tokens; choose a larger GPU or a smaller model"
    )
    more = [] if device.unified else [gpus for gpus in MORE_GPUS if gpus > setup.gpus]
    enough = next((gpus for gpus in more if _can_divide(setup, gpus, device)), None)
    if enough is not None:
        return f"{sentence}, or give --gpus {enough}."
    other = suggestions(setup, device)
    return f"{sentence}, or train with {' and '.join(other[0].techniques)} by other means." if other else f"{sentence}."


def _can_divide(setup: Setup, gpus: int, device: Device) -> bool:
    """Returns True if these GPUs suffice with the strongest techniques, which spares a search through all sets."""
    strongest = {"gpus": gpus, "sharding": "zero-3", "checkpointing": True}
    for changes, loss in itertools.product(
        ({"precision": "bf16" if device.bfloat16 else setup.precision}, {"lora_rank": LORA_RANK, "base_bits": 16}),
        ("liger", "whole"),
    ):
        try:
            if verdict(replace(setup, loss=loss, **strongest, **changes), device).fits:
                return True
        except BadSetup:  # one of them is not counted for this model
            continue
    return False


def can_be_written(technique: Technique) -> bool:
    """Returns True if `training_code` can write a technique: `Trainer` has a setting for it, or it is FSDP2."""
    changes = technique.changes
    other_precision = changes.get("precision", PRECISIONS_OF_TRAINER[0]) not in PRECISIONS_OF_TRAINER
    every_kth = not isinstance(changes.get("checkpointing", True), bool)
    other_sharding = changes.get("sharding", "none") not in ("none", *DIVIDED)
    other = {"offload_optimizer", "offload_activations", "shared_groups", "reversible"}
    return not (other_precision or every_kth or other_sharding or other & changes.keys())
