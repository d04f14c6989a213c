"""`join`: whom it shows a token."""

from types import SimpleNamespace

import pytest

from training.commands import join
from training.errors import BadInput
from training.recipe import RECIPES, parse_recipe
from training.trust.keys import MembershipKey

TABLE = f'[membership]\nkey = "{MembershipKey.begin().public}"\nurl = "https://members.example"\n'
RUN = parse_recipe((RECIPES / "demo.toml").read_text() + TABLE)


def answered(monkeypatch, answer, *, is_there=True):
    """Answers the question; returns the questions."""
    asked = []
    monkeypatch.setattr(join.sys, "stdin", SimpleNamespace(isatty=lambda: is_there))
    monkeypatch.setattr(join.typer, "confirm", lambda question: asked.append(question) or answer)
    return asked


def test_a_token_is_shown_to_an_address_only_after_a_yes(monkeypatch):
    """The address stands in the recipe, which a stranger may have written."""
    asked = answered(monkeypatch, True)
    join._ask_for_token(RUN)
    assert len(asked) == 1 and "https://members.example" in asked[0]
    answered(monkeypatch, False)
    with pytest.raises(BadInput, match="No token is sent"):
        join._ask_for_token(RUN)


def test_without_somebody_to_ask_the_flag_is_named(monkeypatch):
    asked = answered(monkeypatch, True, is_there=False)
    with pytest.raises(BadInput, match=r"token to https://members\.example") as refused:
        join._ask_for_token(RUN)
    assert "--yes" in refused.value.cure and asked == []


def test_an_open_run_asks_nothing(monkeypatch):
    asked = answered(monkeypatch, False, is_there=False)
    join._ask_for_token(parse_recipe((RECIPES / "demo.toml").read_text()))
    assert asked == []
