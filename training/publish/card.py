"""The model card of a checkpoint: a description with numbers from the run's history, and the model's limits."""

from __future__ import annotations

import json
import string
import time
from pathlib import Path

from training.checkpoints.facts import read_facts
from training.publish.history.history import HistoryReader
from training.publish.showcase import CardWords, card_words
from training.recipe import RunConfig

MOST_NAMES = 50
"""Volunteers that the card names; it counts the others."""
MARKUP = "\\`*_[]<>|#!~&"
"""Characters with a meaning in Markdown or HTML."""


def model_card(checkpoint: Path, run: RunConfig, history: HistoryReader) -> str:
    """Writes the card as Markdown with a YAML header, as model hubs read it.

    The card names no licence: the run's maintainers decide on it, and the rights to the data limit their choice.

    Args:
        checkpoint: Folder of the checkpoint.
        run: Recipe of the run.
        history: History of the run.
    """
    facts, words = read_facts(checkpoint), card_words(run)
    header = {
        "library_name": "training-transformers-together",
        "pipeline_tag": words.pipeline_tag,
        "tags": [words.pipeline_tag, "volunteer-computing", "distributed-training", run.run_id],
    }
    if words.base is not None:
        header["base_model"] = words.base
    yaml = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in header.items())
    return "\n".join(
        [
            f"---\n{yaml}---\n",
            f"# {_plain(run.title)}\n",
            f"{_plain(run.description)}\n" if run.description else "",
            f"Weights of {words.weights} that {_trainers(history)}.",
            "This card was written by a program when the checkpoint was copied here.\n",
            _table(facts, run, history, words),
            "## Volunteers\n",
            _volunteers(history),
            "## Use\n",
            '`python -m training generate --checkpoint FOLDER "a prompt"`, with this folder. `recipe.toml` describes '
            f"the model. {_plain(words.needs)}\n",
            "## Limits\n",
            _limits(run, facts, words),
        ]
    )


def _trainers(history: HistoryReader) -> str:
    document = json.loads(history.run_value("document") or "{}")
    if document.get("one_machine"):
        return "volunteers' programs on one computer train together"
    return "volunteers train together over the Internet"


def _table(facts: dict, run: RunConfig, history: HistoryReader, words: CardWords) -> str:
    loss, samples = facts["metrics"].get("loss"), facts["metrics"].get("total_samples")
    rows = {
        "Epoch (updates of the weights)": f"{facts['epoch']:,} of {run.schedule.total_epochs:,}",
        "Parameters": f"{facts['parameters']:,}",
        "Training loss at this epoch": "not known" if loss is None else f"{loss:.4g} {words.loss_unit}",
        "Samples that volunteers have contributed": "not known" if samples is None else f"{samples:,}",
        "Begun": _day(float(history.run_value("started_at") or 0)),
        "Written": _day(facts["written_at"]),
        "Recipe": f"{run.run_id}, digest {run.digest}",
        "Training data": _plain(str(facts["shards"])),
    }
    return "".join(["| | |\n|---|---|\n", *(f"| {name} | {value} |\n" for name, value in rows.items())])


def _volunteers(history: HistoryReader) -> str:
    people = history.leaderboard()
    if not people:
        return "None are recorded.\n"
    lines = [
        f"- {_plain(one['name'], string.punctuation)}: {one['samples']:,} samples"
        + (f" ({one['share']:.1%})" if one["share"] else "")
        for one in people[:MOST_NAMES]
    ]
    more = [f"- and {len(people) - MOST_NAMES} more"] if len(people) > MOST_NAMES else []
    told = "Names were given when joining. All machines of an account, or of a copied key, are one volunteer.\n"
    return "\n".join([told, *lines, *more, ""])


def _limits(run: RunConfig, facts: dict, words: CardWords) -> str:
    unfinished = facts["epoch"] < run.schedule.total_epochs
    limits = [
        "The training is not finished; later checkpoints differ." if unfinished else "",
        "The loss is on training samples, as volunteers reported it. This card contains no evaluation on other data.",
        f"The model knows {words.knows}, with their faults and prejudices, and may reproduce some of them; nobody has "
        f"filtered what it {words.makes}.",
        "The weights come from volunteers' machines. The monitor checked that they are finite and of usual size, not "
        "that each volunteer computed honestly.",
    ]
    return "".join(f"- {limit}\n" for limit in limits if limit)


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _plain(text: str, signs: str = MARKUP) -> str:
    """Puts a stranger's text into one line, and escapes markup of Markdown and HTML.

    Args:
        text: The text.
        signs: Characters to escape. A stranger's text needs all punctuation, since Markdown makes links of addresses,
            and a list of a number or a hyphen at the beginning.
    """
    line = " ".join(text.split())
    return "".join(f"\\{sign}" if sign in signs else sign for sign in line)
