"""`python -m calculator fit`: how to train a model on a GPU, as settings and as code for transformers' `Trainer`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, replace

from calculator.adapters import ALL_LINEAR, modules_of
from calculator.architectures import PRESETS
from calculator.devices import Device, device_named
from calculator.errors import BadSetup
from calculator.fit import Fit, largest_micro_batch, suggestions, verdict
from calculator.inference_report import add_model_flags, model_or_config
from calculator.low_rank import DEFAULT_RANKS
from calculator.names import HUB, gpu_of
from calculator.setups import PRECISIONS, Setup, resolve, sees_pictures
from calculator.techniques import Technique

USUAL_LENGTH = 2048
"""Tokens of a sequence if none are said and the model takes more."""
LARGEST_BATCH = 64
"""Larger micro-batches make a step hardly more efficient."""
OPTIMIZERS_OF_TRAINER = {
    "adamw8bit": "adamw_8bit",
    "paged-adamw": "paged_adamw_32bit",
    "paged-adamw8bit": "paged_adamw_8bit",
    "lion": "lion_32bit",
    "lion8bit": "lion_8bit",
    "paged-lion": "paged_lion_32bit",
    "paged-lion8bit": "paged_lion_8bit",
    "adafactor": "adafactor",
    "galore": "galore_adamw",
    "apollo": "apollo_adamw",
    "apollo-mini": "apollo_adamw",
    "sgd": "sgd",
}
"""The optimizers of a setup, as `transformers.TrainingArguments(optim=...)` names them."""
PRECISIONS_OF_TRAINER = tuple([precision for precision in PRECISIONS if precision != "fp16"])
"""Of gradients in float16, `Trainer` cannot scale the loss back."""
ADAMW_OF_TRAINER = {"foreach": "adamw_torch", "fused": "adamw_torch_fused"}
LOSS_OF_LIGER = dict.fromkeys(("rope", "rms_norm", "layer_norm", "swiglu", "geglu"), False)
"""What of Liger's kernels is left out, so that only its loss, whose memory is counted, takes the place of the model's
own."""
CLASSES = {"bert": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM"}
"""Of transformers, by the architecture's family; the others are `AutoModelForCausalLM`."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    add_model_flags(parser)
    parser.add_argument(
        "--gpu", required=True, type=gpu_of, metavar="NAME", help="what it must fit; cuda-20gb is any card of 20 GiB"
    )
    parser.add_argument(
        "--sequence-length", type=int, metavar="T", help=f"tokens (the model's own, at most {USUAL_LENGTH})"
    )
    parser.add_argument("--precision", choices=PRECISIONS_OF_TRAINER, help="to begin with (autocast, bf16 if it can)")
    parser.add_argument(
        "--optimizer", choices=("adamw", *OPTIMIZERS_OF_TRAINER), default="adamw", help="to begin with (adamw)"
    )
    parser.add_argument("--optimizer-rank", type=int, metavar="R", help="of GaLore's and APOLLO's projections")
    parser.add_argument("--lora-rank", type=int, metavar="R", help="train LoRA's adapters in any case")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(flags: dict, read: Callable[[str], object]) -> str:
    """What the command prints.

    Args:
        flags: By name.
        read: Reads the JSON file of a config.

    Raises:
        BadSetup: If nothing that `Trainer` can do makes the model fit.
    """
    as_json, device = flags.pop("json"), device_named(flags.pop("gpu"))
    named = model_or_config(flags.pop("model"), flags.pop("config"), read)
    if resolve(Setup(**named)).patch_size:
        raise BadSetup("The code of this command trains language models; give one of them.")
    if named.get("model") in PRESETS.keys() - HUB.keys():
        raise BadSetup(
            f"No weights of {named['model']} are published, so there is nothing to load; give another model."
        )
    setup = _first_setup(device, **named, **flags)
    setup, judged, techniques = best(setup, device)
    code = snippet(setup, HUB.get(setup.model, "path/to/the/model"))
    if as_json:
        settings = {name: value for name, value in asdict(setup).items() if value is not None}
        return json.dumps({"setup": settings, "techniques": techniques, "verdict": judged.as_dict(), "snippet": code})
    how = f" with {', '.join(techniques)}" if techniques else " as it is"
    head = (
        f"# Trained{how}: {setup.micro_batch_size} x {setup.sequence_length} tokens in a pass.\n# {judged.sentence}\n"
    )
    return head + "".join(f"# {note}\n" for note in judged.notes) + "\n" + code


def _first_setup(device: Device, *, precision: str | None, sequence_length: int | None, **flags: object) -> Setup:
    """What is tried first: 16-bit autocast, everything else as `Trainer` does it if nothing is said."""
    setup = Setup(
        precision=precision or ("amp-bf16" if device.bfloat16 else "amp-fp16"), embeddings_32bit=True, **flags
    )
    architecture = resolve(setup)
    if architecture.family == "text-to-image":
        raise BadSetup("Trainer has no text-to-image models; give another model.")
    usual = min(architecture.sequence_length, USUAL_LENGTH)
    return replace(setup, sequence_length=usual if sequence_length is None else sequence_length)


def best(setup: Setup, device: Device) -> tuple[Setup, Fit, tuple[str, ...]]:
    """The setup with the fewest changes that fits, its verdict, and the names of what was changed.

    Its micro-batch is the largest power of two that is not tight, at most `LARGEST_BATCH`.

    Raises:
        BadSetup: If none fits.
    """
    techniques: tuple[str, ...] = ()
    if verdict(setup, device).standing != "fits":
        found = suggestions(setup, device, allowed=in_trainer)
        if not found:
            raise BadSetup(_refusal(setup, device))
        setup, techniques = replace(setup, **found[0].changes), found[0].techniques
    size = min(largest_micro_batch(setup, device), LARGEST_BATCH)
    size = 1 << size.bit_length() - 1
    while size > 1 and verdict(replace(setup, micro_batch_size=size), device).standing != "fits":
        size //= 2
    setup = replace(setup, micro_batch_size=size)
    return setup, verdict(setup, device), techniques


def _refusal(setup: Setup, device: Device) -> str:
    name = resolve(setup).name
    sentence = (
        f"No settings of Trainer make {name} fit the {device.title} with {setup.sequence_length} tokens; choose a "
        "larger GPU or a smaller model"
    )
    other = suggestions(setup, device)
    return f"{sentence}, or train with {' and '.join(other[0].techniques)} by other means." if other else f"{sentence}."


def in_trainer(technique: Technique) -> bool:
    """Whether transformers' `Trainer` has a setting for a technique."""
    changes = technique.changes
    other_precision = changes.get("precision", PRECISIONS_OF_TRAINER[0]) not in PRECISIONS_OF_TRAINER
    every_kth = not isinstance(changes.get("checkpointing", True), bool)
    other = {"offload_optimizer", "offload_activations", "shared_groups", "reversible", "gpus", "sharding"}
    return not (other_precision or every_kth or other & changes.keys())


def snippet(setup: Setup, source: str) -> str:
    """Python code that trains so; `train_dataset` is the reader's.

    Args:
        setup: As `best` returns it.
        source: Hub id or folder of the model.
    """
    architecture = resolve(setup)
    name = CLASSES.get(architecture.family, "AutoModelForCausalLM")
    adapters = setup.lora_rank is not None
    half = setup.precision in ("bf16", "fp16") or (adapters and setup.base_bits in (4, 16))
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[setup.precision[-4:]] if half else "float32"
    loaded = [json.dumps(source), f"dtype=torch.{dtype}", f'attn_implementation="{setup.attention}"']
    lines = ["import torch"]
    if adapters:
        lines.append("from peft import LoraConfig, get_peft_model")
    quantized = "BitsAndBytesConfig, " if adapters and setup.base_bits == 4 else ""
    text_model = "Gemma3ForCausalLM, " if sees_pictures(setup) else ""
    lines += [f"from transformers import {name}, {quantized}{text_model}Trainer, TrainingArguments", ""]
    if quantized:
        lines += [
            "quantization = BitsAndBytesConfig(",
            f'    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, '
            f"bnb_4bit_compute_dtype=torch.{dtype}",
            ")",
        ]
        loaded.append("quantization_config=quantization")
    lines += [f"model = {name}.from_pretrained(", *(f"    {one}," for one in loaded), ")"]
    if sees_pictures(setup):
        lines += [
            "# It is loaded with its vision tower, which is not counted; only the text model is kept.",
            'with torch.device("meta"):',
            "    text = Gemma3ForCausalLM(model.config.text_config)",
            "text.model, text.lm_head = model.model.language_model, model.lm_head",
            "model = text",
        ]
    if architecture.family not in CLASSES:
        lines.append("model.config.use_cache = False")
    if adapters:
        targets = setup.lora_targets
        named = list(modules_of(architecture)) if targets == ALL_LINEAR else targets.split(",")
        lines += [
            "adapters = LoraConfig(",
            f'    r={setup.lora_rank}, lora_alpha={2 * setup.lora_rank}, task_type="CAUSAL_LM",',
            f"    target_modules={json.dumps(named)},",
            ")",
            "model = get_peft_model(model, adapters)",
        ]
        if setup.checkpointing:
            lines.append("model.enable_input_require_grads()")
    return "\n".join([*lines, "", *_arguments(setup), ""])


def _literal(value: object) -> str:
    """A setting as Python code; texts have double quotes."""
    return json.dumps(value) if isinstance(value, str | list) else repr(value).replace("'", '"')


def _arguments(setup: Setup) -> list[str]:
    optimizer = ADAMW_OF_TRAINER[setup.optimizer_impl] if setup.optimizer == "adamw" else None
    settings: dict[str, object] = {
        "output_dir": "trained",
        "per_device_train_batch_size": setup.micro_batch_size,
        "gradient_accumulation_steps": setup.accumulation_steps,
        "optim": optimizer or OPTIMIZERS_OF_TRAINER[setup.optimizer],
    }
    if setup.optimizer in DEFAULT_RANKS:
        settings["optim_target_modules"] = list(modules_of(resolve(setup)))
        settings["optim_args"] = f"rank={setup.optimizer_rank or DEFAULT_RANKS[setup.optimizer]}"
        if setup.optimizer == "apollo-mini":
            settings["optim_args"] += ", scale_type=tensor, scale=128"
    if setup.precision.startswith("amp-"):
        settings[setup.precision.removeprefix("amp-")] = True
    if setup.checkpointing:
        settings["gradient_checkpointing"] = True
    if setup.loss == "liger":
        settings |= {"use_liger_kernel": True, "liger_kernel_config": LOSS_OF_LIGER}
    needed = []
    if setup.optimizer in DEFAULT_RANKS:
        package = "galore-torch" if setup.optimizer == "galore" else "apollo-torch"
        needed.append(f"# The optimizer is that of a package: pip install {package}")
    if setup.loss == "liger":
        needed.append("# The loss is that of a package: pip install liger-kernel")
    return [
        *needed,
        "arguments = TrainingArguments(",
        *(f"    {name}={_literal(value)}," for name, value in settings.items()),
        ")",
        f"# Each sample of train_dataset has {setup.sequence_length} tokens.",
        "Trainer(model=model, args=arguments, train_dataset=train_dataset).train()",
    ]
