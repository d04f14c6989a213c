"""Encoding pictures with `prepare`: what it costs beside the codec, and how img2dataset resizes the same pictures.

    pip install --no-deps img2dataset==1.47.0    # in an environment of its own: it pins old versions of other packages
    pip install "albumentations<2" "opencv-python-headless<5"
    python benchmarks/data/prepare.py --peer-python THAT/bin/python --json benchmarks/results/prepare.json

The codec has the size of the 2021 run's VQ-GAN (f = 8, 8192 entries, pictures of 256 x 256) and random weights; so it
takes the same time. Pictures are drawn JPEG files of 640 x 480, with the noise of a photo. All of it runs in one
process with one thread, in turn: `prepare` of 16 pictures and of all, whose difference is what further pictures cost
(rows, near-duplicates, shards and a look at the codec's error included; the codec's weights and the 16 decoded pictures
of the data card come once in a set), the codec's `encode` alone on all pictures, opening and cutting them as `prepare`
does it, and img2dataset's `Resizer` (center crop, area, JPEG of quality 95, its default). Times are CPU seconds, the
median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
from PIL import Image

from benchmarks.record import record, renew, result
from training.config import load_recipe
from training.data.prepare.pictures import Input, prepare
from training.data.sources.pictures import Picture, Pictures
from training.data.sources.rows import Row
from training.data.store.tokenizer import Tokenizer
from training.model.codecs.codec import load_codec, save_codec
from training.model.codecs.vqgan import VqGan, VqGanShape

SHAPE = VqGanShape(
    widths=(128, 128, 256, 512),
    blocks_per_level=2,
    attention=(False, False, False, True),
    map_width=256,
    entry_width=256,
    codebook_size=8192,
)
"""Of the published weights."""
SIZE, SIDE = (640, 480), 256
FEW = 16
"""Pictures of the smaller set; the data card shows as many."""
RESIZES = 20
"""The peer and our opening repeat their work: one picture takes milliseconds."""
PEER = """
import importlib.util, io, json, sys, time, warnings
warnings.simplefilter("ignore")
from pathlib import Path
file = importlib.util.find_spec("img2dataset").submodule_search_locations[0] + "/resizer.py"
spec = importlib.util.spec_from_file_location("resizer", file)  # the package itself imports Spark and others
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
resize = module.Resizer(int(sys.argv[2]), "center_crop", False)
pictures = [path.read_bytes() for path in sorted(Path(sys.argv[1]).glob("*.jpg"))]
assert resize(io.BytesIO(pictures[0]))[-1] is None
began = time.process_time()
for _ in range(int(sys.argv[3])):
    for picture in pictures:
        resize(io.BytesIO(picture))
print(json.dumps((time.process_time() - began) / len(pictures) / int(sys.argv[3])))
"""


def draw(folder: Path, count: int) -> None:
    """Pictures with captions beside them."""
    numbers = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(numbers.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize(SIZE, Image.BICUBIC)
        noisy = np.asarray(coarse) + numbers.normal(0, 6, (SIZE[1], SIZE[0], 3))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number:04d}.jpg", quality=90)
        (folder / f"{number:04d}.txt").write_text(f"picture {number} of some colours")


def cpu_seconds(work) -> float:
    """What the call takes, in all threads of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measured(folder: Path, count: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds a picture: `all` and `encode`, of each round."""
    run, images, few = load_recipe("dalle-2021"), folder / "images", folder / "few"
    for where, number in ((images, count), (few, FEW)):
        where.mkdir()
        draw(where, number)
    codec_folder, tokenizer = folder / "codec", folder / "tokenizer.json"
    codec_folder.mkdir()
    torch.manual_seed(0)
    save_codec(VqGan(SHAPE, run.codec).eval().requires_grad_(False), codec_folder)
    Tokenizer.train([path.read_text() for path in images.glob("*.txt")], 4096).save(tokenizer)
    codec = load_codec(codec_folder / "codec.safetensors", run.codec)
    rows = [Row(file=path.name, caption="", split="train") for path in sorted(images.glob("*.jpg"))]
    opened = [one for batch in Pictures(images, run, workers=1).batches(rows) for one in batch]
    assert all(isinstance(one, Picture) for one in opened)
    pixels = torch.from_numpy(np.stack([one.pixels for one in opened])).float() / 255

    def make(where: Path, number: int) -> None:
        out = folder / f"{where.name}-{number}"
        prepare(
            Input(images=where),
            out,
            run,
            codec_file=codec_folder / "codec.safetensors",
            tokenizer_file=tokenizer,
            workers=1,
        )

    found: dict[str, list[float]] = {"all": [], "encode": []}
    for number in range(rounds):
        smaller, larger = (cpu_seconds(partial(make, where, number)) for where in (few, images))
        found["all"].append((larger - smaller) / (count - FEW))
        found["encode"].append(cpu_seconds(lambda: codec.encode(pixels)) / count)
        tell_round(number, found)
    return found


def measured_opening(folder: Path, count: int, rounds: int, peer_python: str | None) -> dict[str, list[float]]:
    """CPU seconds to open a picture: `open`, and `peer` if there is one; of each round."""
    run, images = load_recipe("dalle-2021"), folder / "opened"
    images.mkdir()
    draw(images, count)
    rows = [Row(file=path.name, caption="", split="train") for path in sorted(images.glob("*.jpg"))]

    def reopen() -> None:
        for _ in range(RESIZES):
            list(Pictures(images, run, workers=1).batches(rows))

    found: dict[str, list[float]] = {"open": [], "peer": []}
    for number in range(rounds):
        found["open"].append(cpu_seconds(reopen) / count / RESIZES)
        if peer_python:
            command = [peer_python, "-c", PEER, str(images), str(SIDE), str(RESIZES)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            found["peer"].append(json.loads(done.stdout))
        tell_round(number, found)
    return found


def tell_round(number: int, found: dict[str, list[float]]) -> None:
    """Prints what a round has found."""
    print(f"round {number + 1}: " + ", ".join(f"{name} {times[-1]:.4f} s" for name, times in found.items() if times))


def results_of(whole: dict[str, list[float]], opening: dict[str, list[float]]) -> list[dict]:
    """Results of what was measured; the first may be empty."""
    rows = []
    if whole:
        shares = [1 - encode / everything for everything, encode in zip(whole["all"], whole["encode"], strict=True)]
        spread = {"runs": len(shares), "min": min(shares), "max": max(shares)}
        rate = 1 / statistics.median(whole["all"])
        rows += [
            result("pictures prepared, one core", "pictures per CPU second", rate),
            result("share of the CPU time that is not the codec's", "1", statistics.median(shares), **spread),
        ]
    times = opening["open"]
    spread = {"runs": len(times), "min": min(times), "max": max(times)}
    if opening["peer"]:
        spread |= {"peer": statistics.median(opening["peer"]), "peer_name": "img2dataset's Resizer"}
    return [*rows, result("opening and cutting a picture", "CPU s", statistics.median(times), **spread)]


def main() -> int:
    """Measures, prints and, if asked, records; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pictures", type=int, default=48, metavar="N", help="pictures to prepare (48)")
    arguments.add_argument("--rounds", type=int, default=3, metavar="N", help="measurements (3)")
    arguments.add_argument("--peer-python", metavar="FILE", help="Python of an environment with img2dataset")
    only = "measure the opening of pictures alone, and keep the record's other results"
    arguments.add_argument("--only-opening", action="store_true", help=only)
    arguments.add_argument("--json", metavar="FILE", help="record the results")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sizes = Path(folder), chosen.pictures, chosen.rounds
        whole = {} if chosen.only_opening else measured(*sizes)
        opening = measured_opening(*sizes, chosen.peer_python)
    rows = results_of(whole, opening)
    for row in rows:
        print(f"{row['metric']:<50} {row['ours']:>10.4f} {row['peer'] or '':<10.6} {row['unit']}")
    if chosen.json and chosen.only_opening:
        renew(Path(chosen.json), rows, {name: metadata.version(name) for name in ("torch", "pillow")})
    elif chosen.json:
        versions = {name: metadata.version(name) for name in ("torch", "pillow", "diffusers")}
        record(Path(chosen.json), "prepare", versions, rows, pictures=chosen.pictures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
