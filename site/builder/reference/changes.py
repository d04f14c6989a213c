"""The changelog as a page, and as an RSS feed that also announces the recorded run."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from xml.etree import ElementTree

import markdown

from builder.folders import ROOT

DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def changelog() -> str:
    """The text of CHANGELOG.md without its title."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return text.removeprefix("# Changelog").lstrip()


def releases() -> dict[str, str]:
    """Heading -> text of each release, the newest first."""
    parts = re.split(r"^## (.+)$", changelog(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))


def feed(site_url: str, live: Path) -> str:
    """RSS 2.0: one item for each release, and one for the recorded run.

    Args:
        site_url: Address of the site, with a slash at its end.
        live: Folder of the recorded run; it may be empty or missing.
    """
    ElementTree.register_namespace("atom", "http://www.w3.org/2005/Atom")
    rss = ElementTree.Element("rss", version="2.0")
    channel = ElementTree.SubElement(rss, "channel")
    _add(channel, title="Training Transformers Together", link=site_url, language="en")
    _add(channel, description="Changes of the project, and recorded runs.")
    self_link = {"href": f"{site_url}feed.xml", "rel": "self", "type": "application/rss+xml"}
    ElementTree.SubElement(channel, "{http://www.w3.org/2005/Atom}link", self_link)
    for title, text in releases().items():
        # The generators make the same anchor from the heading.
        page = f"{site_url}changelog/#{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}"
        dated = DATE.search(title)
        at = datetime.fromisoformat(dated[0]).replace(tzinfo=UTC) if dated else None
        _item(channel, title=title, link=page, text=markdown.markdown(text), at=at)
    if (live / "run.json").is_file():
        run, state = (json.loads((live / f"{name}.json").read_text(encoding="utf-8")) for name in ("run", "state"))
        at = datetime.fromtimestamp(state["last_epoch_at"], UTC)
        text = f"{run['description']} It ended after epoch {state['epoch']}, with a loss of {state['loss']:.3g}."
        _item(channel, title=f"A run was recorded: {run['title']}", link=f"{site_url}dashboard/", text=text, at=at)
    ElementTree.indent(rss)
    return ElementTree.tostring(rss, encoding="unicode", xml_declaration=True) + "\n"


def _item(channel: ElementTree.Element, *, title: str, link: str, text: str, at: datetime | None) -> None:
    item = ElementTree.SubElement(channel, "item")
    _add(item, title=title, link=link, guid=link, description=text)
    if at is not None:
        _add(item, pubDate=format_datetime(at))


def _add(parent: ElementTree.Element, **texts: str) -> None:
    for name, text in texts.items():
        ElementTree.SubElement(parent, name).text = text
