"""What the calculator's form says, as it is made when the site is built."""

import re

import pytest

from builder.calculator.form import page_data
from node import ROOT

UNPUBLISHED = {"GPT-3", "DALL-E", "This run's DALL-E"}
"""Families of which nobody has a config.json of Hugging Face."""


@pytest.fixture(scope="module")
def models() -> list[dict]:
    """The form's list of models, by family."""
    return next(field for field in page_data()["groups"][0]["fields"] if field["key"] == "model")["groups"]


def test_sizes_of_models_are_numbers_as_people_write_them(models):
    sizes = {option["value"]: option["label"] for family in models for option in family["options"]}
    assert sizes["gemma-3-1b"] == "1 B parameters" and sizes["qwen3-0.6b"] == "596 M parameters"
    assert all(re.fullmatch(r"\d{1,3}(\.\d+)? [BM] parameters", size) for size in sizes.values()), sizes


def test_the_label_of_a_config_names_every_published_family(models):
    page = (ROOT / "site/includes/calculator.html").read_text()
    label = re.search(r'<label for="config-text">(.*?)</label>', page)[1]
    families = {family["label"] for family in models} - UNPUBLISHED
    assert {"ViT", "Flux", "Stable Diffusion"} <= families
    assert not [family for family in families if family.rstrip(" .0123456789") not in label]
