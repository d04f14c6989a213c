"""Predicted and measured memory of the tutorial's code blocks, with a model as large as a released GPT-2.

    python benchmarks/model/tutorial.py --json benchmarks/results/tutorial.json

The model has random weights, and the text is synthetic, in shards like those of C4, because memory depends on neither.
Nothing is downloaded. GPT-2 Large takes 11 GB of memory and some minutes on a CPU; `--size gpt2` takes a seventh of
both.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "site")]

from benchmarks.record import error_percent, record, result
from builder.learn import tutorial

PASSES = 2
"""Passes per update. More would take longer, but no more memory."""


def main() -> int:
    """Runs the blocks up to the measurement, and prints or records both figures."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    arguments.add_argument("--size", default="gpt2-large", choices=("gpt2", "gpt2-medium", "gpt2-large"))
    chosen = arguments.parse_args()
    import bitsandbytes
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        names = run_blocks(Path(folder), chosen.size)
    predicted, measured = names["predicted"].gpu.total, names["measured"]
    error = error_percent(predicted, measured)
    print(f"{chosen.size}: predicted {predicted}, measured {measured} bytes: {error:+.2f} %")
    if chosen.json:
        entry = result(
            f"tutorial: peak of the passes of {chosen.size}",
            "bytes",
            predicted,
            peer=measured,
            peer_name="PyTorch's count",
            error_percent=error,
        )
        versions = {module.__name__: module.__version__ for module in (torch, transformers, bitsandbytes)}
        facts = {"accumulation_steps": PASSES, "precision": names["precision"], "model": chosen.size}
        gpu = torch.cuda.get_device_name() if names["device"] == "cuda" else None
        record(chosen.json, "tutorial", versions, [entry], gpu=gpu, **facts)
    return 0


def run_blocks(folder: Path, size: str) -> dict:
    """Runs the tutorial's blocks up to the measurement; returns their global variables."""
    make_model(folder / "model", size)
    make_shard(folder / "c4-train.00000-of-00001.json.gz")
    names: dict = {"__name__": "__main__"}
    for number, code in enumerate(code for language, code in blocks() if language == "python"):
        exec(compile(code, f"block {number}", "exec"), names)
        if number == 0:
            names |= {
                "model_name": str(folder / "model"),
                "data_files": str(folder / "c4-train.*.json.gz"),
                "accumulation_steps": PASSES,
            }
        if "measured" in names:
            break
    return names


def blocks() -> list[tuple[str, str]]:
    """The tutorial's code blocks: (language, code)."""
    return tutorial.code_blocks(tutorial.SOURCE.read_text(encoding="utf-8"))


def make_model(folder: Path, size: str) -> None:
    """Writes a model of this size with random weights, and a tokenizer whose tokens are single bytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast

    width, layers, heads = {"gpt2": (768, 12, 12), "gpt2-medium": (1024, 24, 16), "gpt2-large": (1280, 36, 20)}[size]
    config = GPT2Config(n_embd=width, n_layer=layers, n_head=heads)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(["<|endoftext|>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)


def make_shard(file: Path) -> None:
    """Writes a file of lines like C4's, with random letters as text."""
    draw = random.Random(0)
    with gzip.open(file, "wt", encoding="utf-8") as shard:
        for number in range(50):
            text = "".join(draw.choices("abcdefgh  ", k=2000))
            line = {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": f"https://example.org/{number}"}
            shard.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
