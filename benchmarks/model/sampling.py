"""Sampling of image codes compared with dalle-pytorch 1.6.6: tokens per CPU second.

    python benchmarks/model/sampling.py --json benchmarks/results/sampling.json

The model is S of `model_cases`. Each measurement is a process of its own with one thread; those of our model and of
dalle-pytorch take turns. A process samples one image to warm up, and then samples once with the clock running. The
released dalle-pytorch never uses its cache while it samples, because one function does not pass it on. It is measured
with this function mended, and for one image at a time also as released.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.model import peer_dalle_pytorch as peer
from benchmarks.model.model_cases import batch, case, in_own_process
from benchmarks.record import record, result

PEERS = {
    "mended": "dalle-pytorch 1.6.6, its cache mended",
    "mended-sparse": "dalle-pytorch 1.6.6, its cache mended, without optimize_for_inference",
    "released": "dalle-pytorch 1.6.6 as released",
}


def measure(side: str, batch_size: int) -> dict:
    """Image tokens of all samples per CPU second. Must run in a process of its own."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = case("S")
    text, _ = batch(config, batch_size)
    if side == "ours":
        from training.model.sampling import sample_codes
        from training.model.transformer import build_model

        model = build_model(config, seed=0)

        def draw():
            return sample_codes(model, text)
    else:
        model = peer.build(config, for_sampling=side != "mended-sparse")
        if side.startswith("mended"):
            peer.mend_cache(model)

        def draw():
            return peer.sample(model, text)

    text, whole = text[:1], text  # one image warms up
    if side != "released":
        draw()
    text = whole
    started = time.process_time()
    codes = draw()
    return {"rate": codes.numel() / (time.process_time() - started)}


def main() -> None:
    """Measures all sides in turn, prints the rates, and writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8], help="images at once (1 8)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side (3)")
    parser.add_argument("--ours-only", action="store_true", help="omit dalle-pytorch")
    parser.add_argument("--json", type=Path, help="also write the result")
    parser.add_argument("--one", nargs=2, metavar=("SIDE", "BATCH"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        print(json.dumps(measure(flags.one[0], int(flags.one[1]))))
        return
    if not flags.ours_only and not peer.is_installed():
        raise SystemExit(f"dalle-pytorch is not installed: {peer.INSTALL} (or omit it with --ours-only)")
    results = []
    for size in flags.batch_sizes:
        sides = ["ours"] if flags.ours_only else ["ours", *PEERS]
        rates = {side: [] for side in sides}
        for turn in range(flags.rounds):
            for side in sides:
                if side != "released" or (turn == 0 and size == 1):
                    rates[side].append(in_own_process("sampling.py", ["--one", side, str(size)])["rate"])
        ours = rates.pop("ours")
        for side in [side for side in rates if rates[side]] or [None]:
            others = {"peer": statistics.median(rates[side]), "peer_name": PEERS[side]} if side else {}
            entry = result(
                f"S, {size} image{'s' * (size > 1)} at once: image tokens",
                "per CPU s",
                statistics.median(ours),
                runs=len(ours),
                min=min(ours),
                max=max(ours),
                **others,
            )
            results.append(entry)
            beside = f"   {entry['peer_name']}: {entry['peer']:.1f}   ratio {entry['ratio']:.1f}" if side else ""
            print(f"{entry['metric']}: {entry['ours']:.1f} per CPU second{beside}", flush=True)
    if flags.json:
        import torch

        record(flags.json, "sampling", {"torch": torch.__version__, "dalle-pytorch": "1.6.6"}, results)


if __name__ == "__main__":
    main()
