"""The gallery's pages name every picture and nothing else, whatever the prompt says."""

import json
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from training.errors import BadInput
from training.generate.gallery import gallery_html, write_gallery
from training.generate.pictures import safe_name

STRANGE = [
    '<script>alert("1")</script>',
    "../../etc/passwd",
    "/absolute",
    "..\\..\\windows",
    "con",
    "\x00\n\t control",
    "日本語のプロンプト",
    "🦀" * 200,
    "long " * 5000,
    "",
    "a red circle",
    "a red circle",
    ".hidden",
    "-rf *",
    "100% & \"quoted\" 'prompt'",
]


class Page(HTMLParser):
    """Tags, sources and alternative texts as a browser reads them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.sources, self.alternatives = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "img":
            self.sources.append(unquote(dict(attributes)["src"]))
            self.alternatives.append(dict(attributes)["alt"])


def facts():
    pictures = [
        {"file": f"{at:03d}-{safe_name(prompt)}.png", "prompt": prompt, "seed": at, "score": 0.25}
        for at, prompt in enumerate(STRANGE)
    ]
    return {
        "run_id": "demo",
        "epoch": 3,
        "sampling": {"top_k": 256, "top_p": None},
        "clip": "<b>folder</b>",
        "candidates": 128,
        "pictures": pictures,
    }


@pytest.mark.parametrize("prompt", STRANGE)
def test_names_are_safe_for_any_prompt(prompt):
    name = safe_name(prompt)
    assert 1 <= len(name) <= 60
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") and not name.startswith("-")


def test_every_picture_is_shown_once_and_prompts_stay_text(tmp_path):
    (tmp_path / "pictures.json").write_text(json.dumps(facts()))
    page = Page(write_gallery(tmp_path).read_text(encoding="utf-8"))
    assert page.sources == [entry["file"] for entry in facts()["pictures"]]
    assert len(set(page.sources)) == len(STRANGE) and not any("/" in source for source in page.sources)
    for prompt, alternative in zip(STRANGE, page.alternatives, strict=True):
        assert alternative.startswith(prompt) or "\x00" in prompt
    assert not {"script", "b"} & set(page.tags)
    fragment = (tmp_path / "gallery.html").read_text(encoding="utf-8")
    assert fragment == gallery_html(facts()) and "<html" not in fragment
    assert "seed 3, CLIP 0.250" in fragment and "Best of 128" in fragment


def test_a_base_leads_to_the_folder():
    assert Page(gallery_html(facts(), base="pictures/")).sources[0].startswith("pictures/000-")


def test_a_folder_without_pictures_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no pictures to show"):
        write_gallery(tmp_path)
