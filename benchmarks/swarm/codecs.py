"""Codecs for gradients: error, bytes and CPU time per value, of this project's codec and of hivemind's.

    python benchmarks/swarm/codecs.py --json benchmarks/results/codecs.json

The gradients are of three kinds: Gaussian, Student-t with three degrees of freedom, and those of the demo's model after
30 steps on synthetic samples. Each codec encodes and decodes parts as large as in an all-reduce, in one thread. The
codecs take turns, so that other work on the machine affects all of them; the table shows medians over the rounds. A CPU
is enough.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result

OURS, PEER = "block-wise 8 bit", "hivemind uniform 8 bit"
PART_VALUES = 1 << 19
"""Values in hivemind's largest part of an all-reduce, in 8 bit."""


def codecs() -> dict:
    """The codecs by name. Each object decodes its own output, because not all of them are in hivemind's registry."""
    from hivemind.compression import BlockwiseQuantization, Float16Compression, Uniform8BitQuantization

    from training.swarm.engine.codecs import BlockwiseCodec

    return {
        OURS: BlockwiseCodec(),
        f"{OURS}, PyTorch alone": BlockwiseCodec(native=False),
        PEER: Uniform8BitQuantization(),
        "hivemind block-wise 8 bit": BlockwiseQuantization(),
        "hivemind 16 bit": Float16Compression(),
    }


def gradients() -> dict:
    """One part of each kind of gradient."""
    import torch

    generator = torch.Generator().manual_seed(0)
    gaussian = torch.randn(PART_VALUES, generator=generator)
    chi_squared = (torch.randn((3, PART_VALUES), generator=generator) ** 2).mean(0)
    student = torch.randn(PART_VALUES, generator=generator) / chi_squared.sqrt()
    return {"Gaussian": gaussian, "Student-t(3)": student, "demo's model": model_gradient()}


def model_gradient() -> object:
    """As many gradients of the demo's model as a part holds, after 30 steps on eight synthetic samples."""
    import torch

    from training.config import load_recipe
    from training.model.transformer import TextToImageTransformer

    torch.manual_seed(0)
    shape = load_recipe("demo").model
    model = TextToImageTransformer(shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    text = torch.randint(1, shape.text_vocab_size, (8, shape.text_seq_len))
    codes = torch.randint(0, shape.image_vocab_size, (8, shape.image_seq_len))
    for _ in range(30):
        optimizer.zero_grad()
        model(text, codes).loss.backward()
        optimizer.step()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])[:PART_VALUES].clone()


def measure(rounds: int) -> dict[tuple[str, str], dict]:
    """Error, bytes per value, and times of encoding and decoding for each kind of gradient and codec.

    Times are in CPU nanoseconds per value, from all rounds but the first, which warms up.
    """
    from hivemind.compression import CompressionInfo

    measured: dict[tuple[str, str], dict] = {}
    for kind, gradient in gradients().items():
        info, times = CompressionInfo.from_tensor(gradient), {name: ([], []) for name in codecs()}
        for number in range(rounds + 1):
            for name, codec in codecs().items():
                began = time.process_time()
                message = codec.compress(gradient, info)
                encoded = time.process_time()
                restored = codec.extract(message)
                decoded = time.process_time()
                if number:
                    times[name][0].append((encoded - began) / PART_VALUES * 1e9)
                    times[name][1].append((decoded - encoded) / PART_VALUES * 1e9)
                measured[kind, name] = {
                    "error": float((restored - gradient).norm() / gradient.norm()),
                    "bytes": len(message.buffer) / PART_VALUES,
                    "times": times[name],
                }
    return measured


def main(arguments: list[str] | None = None) -> int:
    """Measures every codec on every gradient, prints the table, and writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="timed rounds of each codec (15)")
    flags = parser.parse_args(arguments)

    import hivemind
    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    measured = measure(flags.rounds)
    kinds = list(dict.fromkeys(kind for kind, _ in measured))
    print(f"{'error':<34}" + "".join(f"{kind:>14}" for kind in kinds), end="")
    print(f"{'bytes':>8}{'encode ns':>10}{'decode ns':>10}")
    results = []
    for name in codecs():
        row = [measured[kind, name] for kind in kinds]
        encoding, decoding = row[0]["times"]
        print(
            f"{name:<34}"
            + "".join(f"{entry['error']:>14.2%}" for entry in row)
            + f"{row[0]['bytes']:>8.3f}{statistics.median(encoding):>10.2f}{statistics.median(decoding):>10.2f}"
        )
        of_peer = {kind: measured[kind, PEER] for kind in kinds}
        for kind, entry in zip(kinds, row, strict=True):
            peer = {"peer": of_peer[kind]["error"], "peer_name": PEER} if name != PEER else {}
            results.append(result(f"error, {kind}: {name}", "share of the norm", entry["error"], **peer))
        results.append(result(f"bytes: {name}", "bytes per value", row[0]["bytes"]))
        for what, runs, of_peers in zip(
            ("encoding", "decoding"), (encoding, decoding), of_peer[kinds[0]]["times"], strict=True
        ):
            peer = {"peer": statistics.median(of_peers), "peer_name": PEER} if name != PEER else {}
            spread = {"runs": len(runs), "min": min(runs), "max": max(runs)}
            results.append(result(f"{what}: {name}", "CPU ns per value", statistics.median(runs), **{**spread, **peer}))
    if flags.json:
        versions = {"torch": torch.__version__, "hivemind": hivemind.__version__}
        record(flags.json, "codecs", versions, results, part_values=PART_VALUES, threads=1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
