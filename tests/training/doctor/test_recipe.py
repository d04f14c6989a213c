"""Recipes that cannot be read, and the membership servers that they name."""

from __future__ import annotations

import threading

import pytest

from tests.training.doctor.places import closed_port, file_of, serving
from training.doctor import facts as facts_module
from training.doctor.checks.recipe import check_membership, check_recipe
from training.doctor.facts import Asked, Facts
from training.recipe import RECIPES, read_recipe
from training.trust.bans import BanList
from training.trust.keys import MembershipKey

KEY = MembershipKey.begin()


@pytest.fixture
def examine(tmp_path):
    """What is found for a recipe with these lines, or for none."""

    def examine(lines):
        recipe = tmp_path / "recipe.toml"
        recipe.write_text((RECIPES / "demo.toml").read_text() + lines)
        return check_membership(Facts(Asked(recipe=str(recipe))))

    return examine


def members(url):
    return f'[membership]\nkey = "{KEY.public}"\nurl = "{url}/"\n'


def test_a_server_of_the_recipe_is_fine_and_an_open_run_needs_none(examine):
    assert examine("").level == "ok" and "open to all" in examine("").found
    with serving(file_of(BanList(run_id="demo", version=3, issued=5).signed(KEY))) as url:
        found = examine(members(url))
    assert found.level == "ok" and f"answers at {url}." in found.found


def test_without_a_recipe_nothing_is_checked():
    assert check_recipe(Facts(Asked())).level == check_membership(Facts(Asked())).level == "skipped"


def test_a_server_that_is_away(examine):
    found = examine(members(f"http://127.0.0.1:{closed_port()}"))
    assert (found.level, found.name) == ("fault", "membership-away") and "refused" in found.found


@pytest.mark.parametrize("run_id, key", [("other", KEY), ("demo", MembershipKey.begin())])
def test_a_server_of_another_run(examine, run_id, key):
    with serving(file_of(BanList(run_id=run_id, version=3, issued=5).signed(key))) as url:
        assert examine(members(url)).name == "membership-of-another-run"


@pytest.mark.parametrize(
    "answer, name",
    [
        (file_of(read_recipe("demo")), ""),
        (file_of("<html>Log in to this network</html>", Content_Type="text/html"), "recipe-unreadable"),
        (file_of(b"\xff\xfe"), "recipe-unreadable"),
        (file_of("", status=404), "recipe-unreadable"),
    ],
    ids=["recipe", "page", "no text", "not there"],
)
def test_recipes_from_a_site(answer, name):
    with serving(answer) as url:
        facts = Facts(Asked(recipe=f"{url}/recipe.toml"))
        assert check_recipe(facts).name == check_recipe(facts).name == name
        assert (facts.run_or_none() is None) == bool(name)


def test_a_site_that_is_silent_holds_up_no_check_that_needs_its_recipe(monkeypatch):
    monkeypatch.setattr(facts_module, "RECIPE_SECONDS", 0.3)
    with serving(lambda request: threading.Event().wait(2)) as url:
        facts = Facts(Asked(recipe=f"{url}/recipe.toml"))
        found = check_recipe(facts)
        assert found.name == "recipe-unreadable" and "within 0.3 s" in found.found
        assert check_membership(facts).level == "skipped"
