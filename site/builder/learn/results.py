"""The pictures of the recorded run, how many of them are right, and the model card."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime

from builder.dashboard.recorded_run import is_recorded, load_recorded
from builder.folders import PAGES, ROOT
from builder.markup.links import site_link
from builder.markup.tables import table
from calculator.units import show_count
from training.recipe import load_recipe

README = ROOT / "README.md"

PAPER_PROMPTS = load_recipe("dalle-2021").monitor.prompts
"""The first four prompts of the paper's appendix B."""


def gallery() -> str:
    """HTML table: for each prompt of the recorded run its pictures from the first to the last epoch.

    Returns a sentence if no run is recorded.
    """
    recorded = load_recorded(PAGES)
    if recorded is None:
        return "No finished run is recorded on this site."
    snapshots = recorded["pictures"][::-1]
    lines = []
    for prompt in recorded["run"]["prompts"]:
        cells = []
        for snapshot in snapshots:
            drawn = [picture for picture in snapshot["pictures"] if picture["prompt"] == prompt]
            cells.append("".join(_picture(picture, snapshot["epoch"]) for picture in drawn))
        lines.append((html.escape(prompt), *cells))
    columns = ("Prompt", *(f"epoch {snapshot['epoch']}" for snapshot in snapshots))
    return table("Pictures per prompt and epoch", columns, lines, kind="gallery")


def gallery_caption() -> str:
    """Says how many recorded pictures are right, and from which epoch on all are, by the judge's recorded verdicts.

    Returns an empty text if no run is recorded, or the recorded run writes texts.
    """
    if not is_recorded(PAGES) or load_recorded(PAGES)["writes"]:
        return ""
    snapshots = json.loads((PAGES / "live" / "pictures.json").read_text(encoding="utf-8"))["snapshots"]
    judged = [(one["epoch"], all(_right(picture) for picture in one["pictures"])) for one in snapshots]
    wrong = [epoch for epoch, right in judged if not right]
    pictures = [picture for one in snapshots for picture in one["pictures"]]
    share = f"{sum(map(_right, pictures))} of {len(pictures)} recorded pictures have the shape and the colour asked for"
    settled = next((epoch for epoch, _ in judged if not wrong or epoch > wrong[-1]), None)
    return f"{share}." if settled is None else f"{share}; from epoch {settled} on, all have them."


def quality_table() -> str:
    """HTML table of the demo model's quality by `evaluate`, copied from the README.

    Raises:
        ValueError: If the README has no such table.
    """
    rows = re.findall(r"^\| (that|never|with)([^|]*)\| ([^|]*)\| ([^|]*)\|$", README.read_text(encoding="utf-8"), re.M)
    if len(rows) != 3:
        raise ValueError("README.md has no table with three kinds of captions, which the page Results copies.")
    lines = [(html.escape(first + rest.rstrip()), right.strip(), chance.strip()) for first, rest, right, chance in rows]
    return table("Quality of the demo's model", ("Captions", "Shape and colour right", "By chance"), lines)


def codec_loss() -> str:
    """Share of the pictures that become wrong through the demo's codec alone, copied from the README.

    Raises:
        ValueError: If the README does not state it.
    """
    found = re.search(r"codec itself loses (\d+ %) of the pictures", README.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(
            "README.md has no words 'codec itself loses N % of the pictures', which the page Results copies."
        )
    return found[1]


def model_card() -> str:
    """HTML list of facts about the demo's model and the run that trained it."""
    run = load_recipe("demo")
    facts = {
        "What it is": f"a decoder-only transformer that turns a caption into {run.model.image_grid} × "
        f"{run.model.image_grid} picture codes, and a small codec that turns codes into pixels",
        "Architecture": f"{run.model.num_layers} layers of width {run.model.hidden_size} with {run.model.num_heads} "
        f"heads of width {run.model.head_dim}. Their attention repeats the cycle "
        f"“{', '.join(run.model.attention_cycle)}”; "
        "layers at the same place of the cycle share weights",
        "Draws": f"pictures of {run.codec.image_size} × {run.codec.image_size} pixels",
        "Trained on": "pictures of coloured shapes with captions of a fixed grammar, made by the command "
        "<code>draw</code>; no photographs and no personal data",
        "Trained with": f"{run.optimizer.name}, {show_count(run.swarm.target_batch_size)} samples per epoch, peak "
        f"learning rate {run.schedule.peak_learning_rate:g}",
    }
    recorded = load_recorded(PAGES)
    if recorded:
        ended = datetime.fromtimestamp(recorded["state"]["last_epoch_at"], UTC)
        facts |= {
            "Weights": f"{show_count(recorded['run']['parameters'])}; shared ones count once",
            "Trained by": f"{recorded['people']}; {recorded['tiles']['samples']} samples, "
            f"{recorded['tiles']['epoch']} epochs, ended on {ended.day} {ended:%B %Y}",
        }
    facts |= {
        "Meant for": "showing and testing every part of a run, from the training pictures to the judge",
        "Licence": "Apache-2.0, like the code",
    }
    rows = "".join(f"<div><dt>{name}</dt><dd>{fact}</dd></div>" for name, fact in facts.items())
    return f'<dl class="uses card-facts">{rows}</dl>'


def paper_prompts() -> str:
    """Markdown list of the prompts that the full run draws regularly."""
    return "\n".join(f"- “{prompt}”" for prompt in PAPER_PROMPTS)


def _right(picture: dict) -> bool:
    return bool(picture.get("shape") and picture.get("colour"))


def _picture(picture: dict, epoch: int) -> str:
    if "written" in picture:
        return f'<p dir="auto">{picture["written"]}</p>'
    prompt = html.escape(picture["prompt"])
    verdict = "right" if _right(picture) else "wrong"
    return (
        f'<img src="{site_link(picture["still"])}" alt="“{prompt}” as drawn at epoch {epoch}; {verdict}" '
        f'loading="lazy" width="72" height="72"><span class="verdict">{verdict}</span>'
    )
