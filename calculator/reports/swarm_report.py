"""`python -m calculator swarm`: the throughput of volunteers, as a report or as JSON."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import asdict

from calculator.choose.devices import DEVICES
from calculator.choose.names import gpu_of
from calculator.errors import BadSetup
from calculator.parts.adapters import ALL_LINEAR
from calculator.parts.optimizers import OPTIMIZERS
from calculator.swarm.collaboration import Collaboration, answer, collaboration_from
from calculator.swarm.exchange import CODECS
from calculator.swarm.forecast import Forecast
from calculator.swarm.settings import MODES, SPARSE_STATES_EVERY
from calculator.units import show_bytes, show_days, show_number, show_time

EXAMPLE = "30:t4:20/100"
SHARE_WORDS = {
    "computing": "computing samples that count",
    "adding_up": "adding up gradients",
    "last_micro_batch": "waiting for the slowest's micro-batch",
    "meeting": "meeting in groups",
    "averaging": "averaging",
    "joining": "joining: start and download",
    "leaving": "others' leaving",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the command `swarm`."""
    # Only for its defaults.
    one = Collaboration(volunteers=())
    parser.add_argument("--model", default=None, help="a preset, such as dalle-2021 (default) or llama-3.2-1b")
    parser.add_argument("--config", metavar="FILE", help="a Hugging Face config.json in place of a model")
    parser.add_argument("--lora-rank", type=int, metavar="R", help="peers train and exchange adapters of this rank")
    parser.add_argument("--lora-targets", default=ALL_LINEAR, metavar="NAMES", help="q_proj,v_proj or others")
    parser.add_argument("--lora-freeze-a", action="store_true", help="train only the adapters' second matrices, B")
    parser.add_argument("--parameters", type=int, metavar="N", help="in place of a model")
    parser.add_argument("--sequence-length", type=int, metavar="T", help="tokens of a sample of a language model")
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), help="whose state newcomers download (8-bit)")
    parser.add_argument(
        "--volunteers", action="append", required=True, metavar="COUNT:SPEED:UP/DOWN[:client]",
        help=f"SPEED is a GPU or samples per second, UP and DOWN are Mbit/s; may be repeated; example: {EXAMPLE}",
    )  # fmt: skip
    parser.add_argument("--micro-batch-size", type=int, default=1, metavar="N", help="of every volunteer")
    parser.add_argument("--present", type=float, default=1.0, metavar="SHARE", help="share of the time, each volunteer")
    parser.add_argument("--session-hours", type=float, metavar="H", help="mean time until a volunteer leaves")
    parser.add_argument("--latency-milliseconds", type=float, default=50.0, metavar="MS", help="one way")
    parser.add_argument("--target-batch-size", type=int, default=one.target_batch_size, metavar="N")
    parser.add_argument("--epochs", type=int, default=one.epochs, metavar="N", help="updates until the end")
    parser.add_argument("--utilisation", type=float, default=one.utilisation, help="share of a GPU's published peak")
    parser.add_argument("--gradient-codec", choices=CODECS, default=one.gradient_codec)
    parser.add_argument(
        "--compression-threshold", type=int, default=one.compression_threshold, metavar="N",
        help="tensors with fewer values are sent in 16 bits where large ones take 8",
    )  # fmt: skip
    parser.add_argument("--state-bits", type=int, choices=(8, 16), default=one.state_bits)
    # No default here: `collaboration_from` has the one of the mode.
    parser.add_argument(
        "--average-state-every", type=int, default=argparse.SUPPRESS, metavar="N",
        help=f"epochs from one average of the parameters to the next ({one.average_state_every}; with sparse "
        f"{SPARSE_STATES_EVERY}, the least)",
    )  # fmt: skip
    parser.add_argument("--matchmaking-seconds", type=float, default=one.matchmaking_seconds, metavar="S")
    parser.add_argument("--allreduce-timeout-seconds", type=float, default=one.allreduce_timeout_seconds, metavar="S")
    parser.add_argument("--next-chunk-timeout-seconds", type=float, default=one.next_chunk_timeout_seconds, metavar="S")
    parser.add_argument("--max-group-size", type=int, default=one.max_group_size, metavar="N")
    parser.add_argument(
        "--mode", choices=MODES, default=one.mode,
        help="delayed averages while the next epoch computes; with diloco and sparse, peers train alone in between",
    )  # fmt: skip
    parser.add_argument(
        "--sparse-kept", type=int, default=one.sparse_kept, metavar="K", help="values of each 4096 that are sent"
    )
    parser.add_argument("--delay-outer-step", action="store_true", help="with diloco and sparse, train on meanwhile")
    parser.add_argument("--declared-links", action="store_true", help="balance parts by bandwidth, as hivemind can")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(flags: dict, read: Callable[[str], object]) -> str:
    """Runs the command `swarm`; returns the text that it prints.

    Args:
        flags: Values of the flags by name.
        read: Reads the JSON file of a config.

    Raises:
        BadSetup: If the flags describe no collaboration.
    """
    as_json = flags.pop("json")
    shared = ("micro_batch_size", "present", "session_hours", "latency_milliseconds")
    common = {name: flags.pop(name) for name in shared}
    if flags["config"] is not None:
        flags["config"] = read(flags["config"])
    if flags["model"] is None and flags["parameters"] is None and flags["config"] is None:
        flags["model"] = "dalle-2021"
    kinds = [kind_of(text) | common for text in flags.pop("volunteers")]
    collaboration = collaboration_from({**flags, "volunteers": kinds})
    if as_json:
        return json.dumps(answer(collaboration))
    return report(collaboration, collaboration.forecast())


def kind_of(text: str) -> dict:
    """Reads one kind of volunteers from a flag's text, into an object as a request has it."""
    # No number of more than 4300 digits, which Python refuses to convert.
    matched = re.fullmatch(r"(\d{1,20}):([^:]+):([\d.]+)/([\d.]+)(:client)?", text)
    if not matched:
        raise BadSetup(f"Volunteers are given as COUNT:SPEED:UP/DOWN[:client], such as {EXAMPLE}, not {text!r:.60}.")
    count, speed, up, down, client = matched.groups()
    gpu = gpu_of(speed)
    try:
        # "4090" is a card, and nobody computes 4090 samples per second; 4090.0 says so all the same.
        pace = {"gpu": gpu} if gpu in DEVICES else {"samples_per_second": float(speed)}
    except ValueError:
        pace = {"gpu": gpu}
    try:
        rates = {"up_megabits": float(up), "down_megabits": float(down)}
    except ValueError:
        raise BadSetup(f"UP and DOWN of {text!r:.60} are Mbit/s, such as 20/100.") from None
    return {"count": int(count), **pace, **rates, "client_mode": bool(client)}


def report(collaboration: Collaboration, made: Forecast) -> str:
    """Formats a forecast as a table for people."""
    exchange = collaboration.exchange()
    reached, ideal = show_number(made.samples_per_second), show_number(made.ideal_samples_per_second)
    lines = [
        f"{show_number(made.peers)} peers at a time, {made.groups} group{'s' * (made.groups > 1)}; "
        f"{exchange.parameters:,} parameters, {exchange.target_batch_size:,} samples an epoch",
        f"Samples at once: {collaboration.volunteers[0].micro_batch_size} (--micro-batch-size, of every volunteer)",
        "",
        f"{'Samples per second':<44}{reached:>12} of {ideal}",
        f"{'An epoch':<44}{show_time(made.epoch_seconds):>12}, of which {show_time(made.computing_seconds)} computing",
        f"{'An exchange':<44}{show_time(made.all_reduce_seconds):>12}",
        f"{'Each peer sends an epoch, at most':<44}{show_bytes(made.sent_bytes):>12}",
        f"{'A newcomer trains after':<44}{show_time(made.newcomer_seconds):>12}, {show_bytes(exchange.newcomer_bytes)}",
        f"{f'{collaboration.epochs:,} epochs':<44}{show_days(made.days(collaboration.epochs)):>12}",
        "",
        "Where a volunteer's time goes",
        *[f"  {SHARE_WORDS[name]:<42}{share:>12.1%}" for name, share in asdict(made.shares).items()],
    ]
    if made.limits:
        lines += ["", "Limits"]
        lines += [
            f"  {limit.name}{' (stops the run)' if limit.stops else ''}: {limit.sentence}" for limit in made.limits
        ]
    return "\n".join(lines)
