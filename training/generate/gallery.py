"""A page of pictures: `index.html` to open directly, `gallery.html` to include in another page.

Both are made from `pictures.json` alone, so that they can be made again, and refer to the picture files beside them.
"""

from __future__ import annotations

import json
from html import escape
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from training.errors import BadInput, reason_of
from training.storage.whole import write_whole

PICTURES_FILE, PAGE_FILE, FRAGMENT_FILE = "pictures.json", "index.html", "gallery.html"
_STYLE = """
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1f; background: #fff; }
.gallery figure { display: inline-block; margin: 0 .75rem .75rem 0; }
.gallery img { width: 12rem; max-width: 100%; image-rendering: pixelated; display: block; }
.gallery figcaption { font-size: .85rem; }
.gallery h2 { font-size: 1.1rem; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { body { color: #e6e6ea; background: #16161a; } }
"""


def write_gallery(folder: Path) -> Path:
    """Writes both pages beside a folder's `pictures.json` and returns the one to open.

    Raises:
        BadInput: If there is no `pictures.json`.
    """
    try:
        facts = json.loads((folder / PICTURES_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{folder} has no pictures to show: {reason_of(error)}.",
            cure="Give the folder that `generate` has written.",
        ) from None
    fragment = gallery_html(facts)
    write_whole(folder / FRAGMENT_FILE, fragment)
    title = escape(f"Pictures by {facts['run_id']}, epoch {facts['epoch']}")
    write_whole(
        folder / PAGE_FILE,
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f"{fragment}</main>\n</body>\n</html>\n",
    )
    return folder / PAGE_FILE


def gallery_html(facts: dict, *, base: str = "") -> str:
    """A section with a heading for each prompt and its pictures, best first if they are ranked.

    Args:
        facts: The contents of `pictures.json`.
        base: Prefix of each file's name, such as `gallery/`.
    """
    lines = ['<section class="gallery">']
    # `groupby` needs the pictures of a prompt one after another, as `save_pictures` writes them.
    for prompt, group in groupby(facts["pictures"], key=lambda entry: entry["prompt"]):
        lines.append(f"<h2>{escape(prompt)}</h2>")
        for number, entry in enumerate(group, start=1):
            said = f"seed {entry['seed']}" + (f", CLIP {entry['score']:.3f}" if "score" in entry else "")
            source = escape(base + quote(entry["file"]))
            lines.append(
                f'<figure><img src="{source}" alt="{escape(prompt)}, picture {number}" loading="lazy">'
                f"<figcaption>{said}</figcaption></figure>"
            )
    settings = ", ".join(f"{name} {value}" for name, value in facts["sampling"].items() if value is not None)
    ranked = f" Best of {facts['candidates']} by {facts['clip']}." if "candidates" in facts else ""
    lines.append(f"<p>Drawn by epoch {facts['epoch']} of {escape(facts['run_id'])}; {settings}.{escape(ranked)}</p>")
    return "\n".join([*lines, "</section>", ""])
