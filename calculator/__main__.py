"""The calculator on the command line: `python -m calculator MODEL [flags]`, or one of its other commands."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
from dataclasses import asdict
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from calculator.choose import fit
from calculator.choose.devices import DEVICES, device_named
from calculator.choose.names import gpu_of
from calculator.errors import BadSetup
from calculator.models.architectures import PRESETS
from calculator.parts.adapters import ALL_LINEAR
from calculator.parts.optimizers import ADAMW, OPTIMIZERS
from calculator.reports.json_text import parsed
from calculator.step.answer import Estimate
from calculator.step.estimate import estimate
from calculator.step.setups import (
    ATTENTIONS,
    LOSSES,
    NOT_COUNTED,
    PCIE_BYTES_PER_SECOND,
    PRECISIONS,
    SHARDINGS,
    Setup,
    setup_from,
)

COMMANDS = {
    "swarm": ("The throughput of volunteers, and what their time is spent on.", "reports.swarm_report"),
    "inference": ("The memory of generating text: weights, and cached tokens.", "reports.inference_report"),
    "fit": (
        "Settings with which a model can be trained on a GPU, as code for transformers' Trainer.",
        "reports.fit_report",
    ),
    "study": ("What readers of the site have learned: their quizzes before and after, compared.", "exercises.study"),
    "schema": (
        "The JSON schema of an estimate (`MODEL --json`), and of a setup, a line of `batch`.",
        "reports.schema_report",
    ),
}
"""Commands besides an estimate: the help text of each, and the module that adds its flags and runs it. It is imported
for its own command only."""

LARGEST_FILE = 1 << 20
"""Most characters of a config.json, which a stranger may have written; those of known models have a few thousand."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Reports bad flags like any bad input: one sentence, exit code 2."""
        hint = ""
        if (chosen := re.search(r"invalid choice: '([^']+)'", message)) and chosen[1] in NOT_COUNTED:
            hint = f" {NOT_COUNTED[chosen[1]]}"
        if message.startswith("unrecognized arguments: "):
            asked = [word.split("=")[0].lstrip("-").replace("-", "_") for word in message.split()[2:]]
            if reasons := [NOT_COUNTED[word] for word in asked if word in NOT_COUNTED]:
                raise BadSetup(reasons[0])
            meant = [flag for word in message.split()[2:] if word.startswith("--") for flag in self._like(word)]
            hint = f" Did you mean {' or '.join(meant)}?" if meant else ""
            hint += f" `{self.prog} --help` lists all flags."
        raise BadSetup(message[:1].upper() + message[1:] + "." + hint)

    def _like(self, word: str) -> list[str]:
        """Flags that contain a word or are spelled nearly like it."""
        word = word.split("=")[0]
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        return [flag for flag in flags if word[2:] in flag][:3] or get_close_matches(word, flags, n=1)


def flags_parser() -> argparse.ArgumentParser:
    """Builds the parser of an estimate's flags."""
    parser = _Parser(
        prog="python -m calculator",
        description="Memory of one training step of a transformer. `batch` in place of MODEL reads one JSON setup per "
        "line from standard input and writes one JSON result per line; `swarm` forecasts what volunteers reach; "
        "`inference` says what generating text needs; `fit` writes code that trains a model on a GPU; `schema` "
        "describes the JSON; `study` compares readers' quizzes.",
        epilog=f"Models: {', '.join(PRESETS)}. GPUs: {', '.join(DEVICES)}, or any CUDA card by its memory in "
        "GiB, such as cuda-20gb.",
    )
    parser.add_argument("model", nargs="?", help="a preset (see below), its name on the Hugging Face Hub, or `batch`")
    parser.add_argument("--config", metavar="FILE", help="a Hugging Face config.json in place of MODEL")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--micro-batch-size", type=int, default=1, metavar="N", help="sequences per forward pass")
    parser.add_argument("--sequence-length", type=int, metavar="T", help="tokens per sequence (the model's own)")
    parser.add_argument("--image-size", type=int, metavar="PIXELS", help="side of a picture (the model's own)")
    parser.add_argument("--target-length", type=int, metavar="T", help="decoder tokens per sequence (the model's own)")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="amp-bf16", help="amp-*: autocast; others: everything"
    )
    parser.add_argument("--attention", choices=ATTENTIONS, default="sdpa", help="fused kernel or separate operations")
    parser.add_argument("--dropout", type=float, metavar="P", help="dropout probability (the model's own)")
    parser.add_argument(
        "--checkpointing", nargs="?", type=_checkpointing, const=True, default=False, metavar="K",
        help="compute each block again in backward, or every K-th",
    )  # fmt: skip
    parser.add_argument("--shared-groups", type=int, metavar="G", help="distinct layer groups (the model's own)")
    parser.add_argument(
        "--reversible", action=argparse.BooleanOptionalAction, default=None, help="reversible layers (the model's own)"
    )
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adamw")
    parser.add_argument("--optimizer-impl", choices=tuple(ADAMW), default="foreach", help="of AdamW")
    parser.add_argument(
        "--optimizer-rank", type=int, metavar="R", help="of GaLore's and APOLLO's projections (128, 256; Mini: 1)"
    )
    parser.add_argument(
        "--loss", choices=LOSSES, default="whole", help="with all logits at once, or in pieces by Liger or this trainer"
    )
    parser.add_argument("--packed", action="store_true", help="each sequence is a pack of samples")
    parser.add_argument("--fp8", action="store_true", help="matrix products of the layers in FP8 (torchao)")
    parser.add_argument(
        "--offload-activations", action="store_true", help="what is saved for backward on the host (save_on_cpu)"
    )
    _add_update_flags(parser)
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs that train together (1)")
    parser.add_argument(
        "--sharding", choices=SHARDINGS, default="none",
        help="what they divide among them: zero-1 is PyTorch's DDP, zero-2 and zero-3 are its FSDP2, not DeepSpeed's "
        "stages, which are deepspeed-1, -2 and -3",
    )  # fmt: skip
    _add_adapter_flags(parser)
    parser.add_argument(
        "--gpu",
        type=gpu_of,
        metavar="NAME",
        help="also say whether it fits this GPU, and what makes it fit; cuda-20gb is any CUDA card with 20 GiB",
    )
    return parser


def _add_update_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--optimizer-in-backward",
        action="store_true",
        help="update each parameter once its gradient is there; free that",
    )
    parser.add_argument("--offload-optimizer", action="store_true", help="state and update on the host")
    parser.add_argument("--delta-rule", action="store_true", help="hivemind's delta rule with the offloaded optimizer")
    parser.add_argument("--accumulation-steps", type=int, default=1, metavar="N", help="micro-batches per update")
    parser.add_argument(
        "--embeddings-32bit", action="store_true", help="32-bit state for embeddings in 8-bit optimizers"
    )
    parser.add_argument(
        "--pcie-generation", type=int, choices=tuple(PCIE_BYTES_PER_SECOND), default=3, help="bus to the host, 16 lanes"
    )


def _add_adapter_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lora-rank", type=int, metavar="R", help="train LoRA's adapters beside the frozen model")
    parser.add_argument(
        "--lora-targets", default=ALL_LINEAR, metavar="NAMES", help="q_proj,v_proj or others; all-linear (default)"
    )
    parser.add_argument("--lora-dropout", type=float, default=0.0, metavar="P", help="dropout of the adapters' inputs")
    parser.add_argument("--lora-freeze-a", action="store_true", help="train only the adapters' second matrices, B")
    parser.add_argument("--base-bits", type=int, metavar="BITS", help="of the frozen model: 32, 16 or 4 (QLoRA)")
    parser.add_argument("--adapter-bits", type=int, metavar="BITS", help="of the adapters: 32 or 16")
    parser.add_argument(
        "--rest-32bit", action="store_true", help="embeddings, norms and head of a 4-bit model in 32 bits"
    )


def _checkpointing(text: str) -> bool | int:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"true, false, or k for every k-th block, not {text!r}") from None


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    try:
        words = sys.argv[1:] if arguments is None else arguments
        if words and words[0] in COMMANDS:
            print(_module(words[0]).run(vars(command_parser(words[0]).parse_args(words[1:])), _read))
            return 0
        # Afterwards the flags that are left are the fields of a `Setup`.
        flags = vars(flags_parser().parse_args(words))
        as_json, path, gpu = flags.pop("json"), flags.pop("config"), flags.pop("gpu")
        if flags["model"] == "batch":
            if words not in (["batch"], ["batch", "--json"]):
                raise BadSetup("batch takes no flags; each line of its input is a complete setup.")
            return _batch()
        if (flags["model"] is None) == (path is None):
            either = "Give a model or --config FILE" + (", not both" if path else "")
            raise BadSetup(f"{either}; `python -m calculator --help` lists the models.")
        setup = Setup(config=_read(path) if path else None, **flags)
        device = None if gpu is None else device_named(gpu)
        result = estimate(setup)
        fits = {}
        if device is not None:
            fits = {"verdict": fit.answer(setup, device), **fit.advice(setup, device)}
    except BadSetup as error:
        print(error, file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps({**result.as_dict(), **({"fit": fits} if fits else {})}))
    else:
        print("\n".join([report(result), *(_fit_report(fits) if fits else [])]))
    return 0


def command_parser(name: str) -> argparse.ArgumentParser:
    """Builds the parser of a command in `COMMANDS`; an estimate has `flags_parser`."""
    parser = _Parser(prog=f"python -m calculator {name}", description=COMMANDS[name][0])
    _module(name).add_flags(parser)
    return parser


def _module(command: str) -> ModuleType:
    return import_module(f"calculator.{COMMANDS[command][1]}")


def _batch() -> int:
    # As a config.json is read, whatever the locale is. A line that is no UTF-8 is refused, and the next one answered.
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")
    for line in sys.stdin:
        if line.strip():
            print(batch_line(line), flush=True)
    return 0


def batch_line(line: str) -> str:
    """Answers one line of a batch with a line of JSON: an estimate, or the reason why the setup is refused."""
    try:
        return json.dumps(estimate(setup_from(parsed(line))).as_dict())
    except BadSetup as error:
        return json.dumps({"error": str(error)})


def _read(path: str) -> object:
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            text = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise BadSetup(f"{path} cannot be read: {error.strerror or error}. Give the path of a JSON file.") from None
    except UnicodeDecodeError:
        raise BadSetup(f"{path} is not a text file. Give the path of a JSON file.") from None
    if len(text) > LARGEST_FILE:
        raise BadSetup(f"{path} is too long for a config.json: it has more than {LARGEST_FILE} characters.")
    if (content := parsed(text, path)) is None:
        raise BadSetup(f"{path} has null in it, no config. Give the path of a JSON file with an object.")
    return content


def report(result: Estimate) -> str:
    """Formats an estimate as a table for people: GPU and host memory by part, the peak,
    and the bytes kept for backward."""
    trained = result.trained_parameters
    adapters = f", of which {trained:,} are trained" if trained < result.parameters else ""
    lines = [f"{result.model}: {result.parameters:,} parameters{adapters}", ""]
    where = "GPU memory" if result.gpus == 1 else f"Memory of each of {result.gpus} GPUs"
    lines += _table(f"{where} at the peak", asdict(result.gpu), result.gpu.total)
    lines += ["", result.peak.instant, ""]
    lines += _table("Host memory", asdict(result.host), result.host.total)
    overhead = {name: size for name, size in result.overhead.items() if name != "total"}
    lines += ["", *_table("In addition, outside of PyTorch's figures", overhead, result.overhead["total"]), ""]
    lines += [
        _row("Kept for backward after forward", result.saved_activations),
        _row("Autocast's copies of weights", result.autocast_weight_copies),
        _row("All gradients", result.gradient_bytes),
    ]
    if result.transfer.bytes_per_step:
        lines.append(_row("Over the bus per step", result.transfer.bytes_per_step))
        lines.append(f"{'  in':<40} {result.transfer.seconds:>10.3f} s")
    lines += ["", *result.notes] if result.notes else []
    return "\n".join(lines)


def _fit_report(fits: dict) -> list[str]:
    """Lines on whether the setup fits, the largest micro-batch and longest sequence that fit, and what makes it fit."""
    judged = fits["verdict"]
    lines = ["", judged["sentence"], *judged["notes"]]
    if judged["largest_micro_batch"]:
        lines.append(f"Largest micro-batch that fits, all else unchanged: {judged['largest_micro_batch']:,}.")
    if judged["longest_sequence"]:
        lines.append(f"Longest sequence that fits, all else unchanged: {judged['longest_sequence']:,} tokens.")
    if judged["standing"] != "fits":
        lines += ["", fits["sentence"]]
        for number, suggestion in enumerate(fits["suggestions"], 1):
            flags = " ".join(_flag(name, value) for name, value in suggestion["changes"].items())
            lines += [f"{number}. {suggestion['sentence']}", f"   {flags}"]
    return lines


def _flag(name: str, value: object) -> str:
    flag = "--" + name.replace("_", "-")
    # The others are there or not; null is the default, for which there is no text.
    if value is None or (value is False and name != "checkpointing"):
        return f"without {flag}"
    return flag if value is True else f"{flag} {str(value).lower()}"


def _table(title: str, parts: dict[str, int], total: int) -> list[str]:
    rows = [_row("  " + name.replace("_", " "), size) for name, size in parts.items()]
    return [title, *rows, _row("  total", total)]


def _row(name: str, size: int) -> str:
    return f"{name:<40} {size / 2**30:>10.3f} GiB {size:>22,} B"


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Without this, Python would fail again when it flushes
        # standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
