"""The tutorial: one text for a page and a notebook, with its memory as predicted today and as once measured.

Its last section is for a run with others: its commands need a clone, so the notebook shows them as text.
"""

from __future__ import annotations

import html
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace

from builder.benchmark_records import record
from builder.folders import PAGES, RESULTS
from builder.markup.tables import stacked, table
from calculator import Setup, estimate
from calculator.choose.advice import advised_micro_batch, sizes_to_advise
from calculator.choose.devices import DEVICES, Device
from calculator.choose.fit import verdict
from calculator.step.resolve import plain
from calculator.swarm.exchange import USUAL_GROUP
from calculator.swarm.forecast import ExchangedVectors
from calculator.units import show_bytes, show_count
from training.compute.plan import training_of
from training.recipe import LanguageRun, load_recipe, read_recipe, run_of
from training.simulate.forecast import collaboration_of

SOURCE = PAGES / "tutorial.md"

STEPS: tuple[tuple[str, dict], ...] = (
    ("Adam in 32 bits", {}),
    ("Adam in 8 bits", {"optimizer": "adamw8bit"}),
    ("and checkpointing", {"checkpointing": True}),
    ("and 32 passes per update", {"accumulation_steps": 32}),
    ("and autocast: the tutorial", {"precision": "amp-fp16"}),
)
"""Rows of the table: a technique and its changes of the setup; each row also has the changes of those above it."""
BASELINE = Setup(model="gpt2-large", precision="fp32", optimizer="adamw", dropout=0.0)
"""The first row: PyTorch's defaults, among them fused attention, and no dropout. The calculator's "plain" setup has
eager attention and dropout."""
TUTORIAL_SETUP = replace(BASELINE, **{name: value for _, change in STEPS for name, value in change.items()})
"""The last row: the tutorial's training on an older GPU. A test compares it with the tutorial's code."""

TOGETHER = "\n## The same, with others\n"
"""Heading of the last section."""
RECIPE = "llama-150m"
GPT2_LARGE = {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20}
"""Sizes from the published config.json of the weights, so that the site is built without the hub."""
VOLUNTEER_GPU, UPLOAD_MBITS = "t4", 50
"""A GPU and a link for which the last section's table has a column."""

_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def page_data(repository: str) -> dict:
    """The values for the text, by the name under which it uses them: `tutorial.table` and so on."""
    return {
        "usual": show_bytes(estimate(BASELINE).gpu.total),
        "plain": show_bytes(estimate(plain(Setup(model="gpt2-large"))).gpu.total),
        "weights": show_bytes(estimate(TUTORIAL_SETUP).gpu.weights),
        "chosen": show_bytes(estimate(TUTORIAL_SETUP).gpu.total),
        "table": memory_table(),
        "measured": measured(),
        "together": together_table(),
        "llama_weights": _millions(exchange_of(load_recipe(RECIPE)).parameters),
        "block_length": show_count(load_recipe(RECIPE).model.block_length),
        "package": f"git+{repository}",
    }


def notebook(text: str) -> str:
    """The notebook's JSON: text and code in turn, without the page's front matter and its links to other pages.

    Args:
        text: The tutorial's Markdown, its calls replaced.
    """
    cells = [
        {"cell_type": kind, "id": f"cell-{number}", "metadata": metadata, "source": source, **more}
        for number, (kind, source, metadata, more) in enumerate(_cells(text))
    ]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "accelerator": "GPU",
    }
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def code_blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of every block of the reader's own GPU, in order: those that the notebook can run."""
    return _BLOCK.findall(text.partition(TOGETHER)[0])


def _cells(text: str) -> Iterator[tuple[str, str, dict, dict]]:
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    empty = {"execution_count": None, "outputs": []}
    place, first = 0, True
    for block in _BLOCK.finditer(body.partition(TOGETHER)[0]):
        yield "markdown", _without_links(body[place : block.start()]), {}, {}
        language, code = block.groups()
        tags = {"tags": ["parameters"]} if language == "python" and first else {}
        first = first and language != "python"
        yield "code", code.rstrip("\n") if language == "python" else f"%{code.strip()}", tags, empty
        place = block.end()
    yield "markdown", _without_links(body[place:]), {}, {}


def _without_links(text: str) -> str:
    """Markdown without links to pages of the site and without HTML attributes of the site's tables."""
    text = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", text)
    return re.sub(r' (?:class|tabindex|role|aria-label|scope|data-label)="[^"]*"', "", text).strip()


def memory_table() -> str:
    """HTML table: the memory with each technique, and the smallest GPU that has enough."""
    rows, changes = [], {}
    for title, change in STEPS:
        changes |= change
        setup = replace(BASELINE, **changes)
        gpu = estimate(setup).gpu
        numbers = (gpu.optimizer_state, gpu.gradients, gpu.activations + gpu.temporary)
        smallest = html.escape(_smallest(setup).removeprefix("GeForce "))
        rows.append((html.escape(title), show_bytes(gpu.total), smallest, *map(show_bytes, numbers)))
    names = ("total", "smallest GPU that fits it", "Adam's state", "gradients", "the rest")
    return table("Memory of each technique", ("trained with", *names), rows)


def measured() -> str:
    """Sentences that compare the recorded measurement with today's prediction; empty if nothing is recorded."""
    if not (RESULTS / "tutorial.json").is_file():
        return ""
    facts = record("tutorial")
    (result,) = facts["results"]
    cores, memory = facts["machine"]["cores"], show_bytes(facts["machine"]["memory_bytes"])
    return (
        f"On {facts['date']} these blocks took **{show_bytes(result['peer'])}** of memory with a model as large as "
        f"`{facts['model']}`, in 32 bits, on a machine with {cores} processor cores and {memory}; the prediction is "
        f"**{show_bytes(predicted_of(facts))}** (`benchmarks/model/tutorial.py`). We have not run them on a small GPU "
        "yet; on yours, the block above shows both figures."
    )


def predicted_of(facts: dict) -> int:
    """Bytes that the calculator predicts today for the recorded measurement."""
    measured_setup = {name: facts[name] for name in ("model", "accumulation_steps", "precision")}
    return estimate(replace(TUTORIAL_SETUP, **measured_setup)).gpu.total


def _smallest(setup: Setup) -> str:
    """Name of the GPU with the least memory that still has a margin for this setup."""
    fitting = [device for device in DEVICES.values() if device.capability and verdict(setup, device).standing == "fits"]
    return min(fitting, key=lambda device: device.usable_bytes).title if fitting else "none"


def runs_together() -> dict[str, LanguageRun]:
    """The runs of the last section, by their names in the table."""
    return {RECIPE: load_recipe(RECIPE), "GPT-2 Large": gpt2_run()}


def gpt2_run() -> LanguageRun:
    """The recipe of the last section for GPT-2 Large: `llama-150m` with the section's own lines."""
    recipe = tomllib.loads(read_recipe(RECIPE))
    for name, lines in _own_lines().items():
        recipe[name] = lines if name == "model" else recipe[name] | lines
    del recipe["model"]["from"]
    recipe["model"]["architecture"] = GPT2_LARGE
    return run_of(recipe)


def _own_lines() -> dict[str, dict]:
    """The recipe's lines in the last section, parsed from TOML."""
    section = SOURCE.read_text(encoding="utf-8").partition(TOGETHER)[2]
    return tomllib.loads(re.search(r"^```toml\n(.*?)^```", section, re.DOTALL | re.MULTILINE)[1])


def exchange_of(run: LanguageRun) -> ExchangedVectors:
    """The vectors that the peers of a run exchange."""
    return collaboration_of(run, ()).exchange()


def together_table() -> str:
    """HTML table: the share of a volunteer's GPU, computer and link that each of the two runs takes."""
    needs = {title: volunteer_needs(run) for title, run in runs_together().items()}
    names = next(iter(needs.values()))
    rows = [(name, *(cells[name] for cells in needs.values())) for name in names]
    return stacked("What a volunteer needs", ("run", *needs), rows)


def volunteer_needs(run: LanguageRun) -> dict[str, str]:
    """The cells of a run's column of `together_table`, by the name of their row."""
    training, exchange, gpu = training_of(run), exchange_of(run), DEVICES[VOLUNTEER_GPU]
    result = estimate(training.setup(gpu, 1, checkpointing=True))
    fitting = [device for device in DEVICES.values() if device.capability and micro_batch(run, device)]
    smallest = min(fitting, key=lambda device: device.usable_bytes).title
    sent = round(exchange.sent_bytes())
    return {
        "weights": f"{_millions(exchange.parameters)} million",
        "memory of the GPU, one sequence at once": show_bytes(training.need_bytes(gpu, 1)),
        "smallest GPU that fits it": html.escape(smallest.removeprefix("GeForce ")),
        f"sequences at once on a {gpu.title.split(' (')[0]}": str(micro_batch(run, gpu)),
        "memory of the computer": show_bytes(result.host.total + training.bytes_of_the_mode(result)[1]),
        "download on joining": show_bytes(exchange.newcomer_bytes),
        f"sent in an epoch among {USUAL_GROUP} volunteers": show_bytes(sent),
        f"time to send it at {UPLOAD_MBITS} Mbit/s": f"{sent * 8 / (UPLOAD_MBITS * 1e6) / 60:.1f} min",
    }


def micro_batch(run: LanguageRun, device: Device) -> int:
    """The sequences at once that `plan` advises; 0 if not even one fits."""
    training = training_of(run)
    return advised_micro_batch(
        sizes_to_advise(run.swarm.target_batch_size), lambda size: training.need_bytes(device, size), device
    )


def _millions(count: int) -> str:
    return f"{count / 1e6:.0f}"
