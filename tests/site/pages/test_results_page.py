"""The results page says what the recording and the README say, the wrong pictures too."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from PIL import Image

from tests.support.programs import ROOT
from training.generate.judge import judge
from training.recipe import load_recipe

pytestmark = pytest.mark.browser


def test_pictures_and_verdicts_are_the_recorded_ones(open_page):
    page = open_page("results/", scripts=False)
    document = json.loads((ROOT / "site" / "live" / "pictures.json").read_text())
    verdicts = {
        (picture["prompt"], snapshot["epoch"]): picture["shape"] and picture["colour"]
        for snapshot in document["snapshots"]
        for picture in snapshot["pictures"]
    }
    alternatives = [image.get_attribute("alt") for image in page.locator("table.gallery img").all()]
    assert len(alternatives) >= 16
    for text in alternatives:
        prompt, epoch, verdict = re.fullmatch(r"“(.+)” as drawn at epoch (\d+); (right|wrong)", text).groups()
        assert verdicts[prompt, int(epoch)] == (verdict == "right"), text
    assert {"right", "wrong"} == {text.split("; ")[1] for text in alternatives}
    right = sum(verdicts.values())
    assert f"{right} of {len(verdicts)} recorded pictures" in page.get_by_role("main").inner_text()


def test_quality_is_the_readmes_and_the_papers_prompts_stand_without_pictures(open_page):
    page = open_page("results/", scripts=False)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    cells = page.get_by_role("region", name="Quality of").get_by_role("cell").all_inner_texts()
    assert len(cells) == 6
    assert all(f"| {right} | {chance} |" in readme for right, chance in zip(cells[::2], cells[1::2], strict=True))
    text = page.get_by_role("main").inner_text()
    assert all(prompt in text for prompt in load_recipe("dalle-2021").monitor.prompts)
    assert "no pictures of our own" in text


def test_recorded_verdicts_are_those_of_the_judge():
    document = json.loads((ROOT / "site" / "live" / "pictures.json").read_text())
    for snapshot in document["snapshots"]:
        for picture in snapshot["pictures"]:
            with Image.open(ROOT / "site" / picture["file"].lstrip("/")) as drawn:
                verdict = judge(np.asarray(drawn.convert("RGB")), picture["prompt"])
            recorded = (picture["shape"], picture["colour"])
            assert recorded == (verdict.shape, verdict.colour), (snapshot["epoch"], picture["prompt"])
