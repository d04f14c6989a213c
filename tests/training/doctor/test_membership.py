"""The membership server as the doctor sees it: one that is right, one of another run, and none."""

from __future__ import annotations

import pytest

from tests.training.doctor.places import closed_port, file_of, serving
from training.doctor.checks.membership import check_membership
from training.doctor.facts.shared import Asked, Shared
from training.recipe import RECIPES
from training.trust.bans import BanList
from training.trust.keys import MembershipKey

KEY = MembershipKey.begin()


@pytest.fixture
def examine(tmp_path):
    """What is found for a recipe with these lines, or for none."""

    def examine(lines):
        recipe = tmp_path / "recipe.toml"
        recipe.write_text((RECIPES / "demo.toml").read_text() + lines)
        with Shared(Asked(recipe=str(recipe))) as shared:
            return check_membership(shared)

    return examine


def members(url):
    return f'[membership]\nkey = "{KEY.public}"\nurl = "{url}/"\n'


def test_a_server_of_the_recipe_is_fine_and_an_open_run_needs_none(examine):
    assert examine("").level == "ok" and "open to all" in examine("").found
    with serving(file_of(BanList(run_id="demo", version=3, issued=5).signed(KEY))) as url:
        found = examine(members(url))
    assert found.level == "ok" and f"answers at {url}." in found.found


def test_without_a_recipe_nothing_is_checked():
    with Shared(Asked()) as shared:
        assert check_membership(shared).level == "skipped"


def test_a_server_that_is_away(examine):
    found = examine(members(f"http://127.0.0.1:{closed_port()}"))
    assert (found.level, found.name) == ("fault", "membership-away") and "Nothing accepts connections" in found.found


@pytest.mark.parametrize("run_id, key", [("other", KEY), ("demo", MembershipKey.begin())])
def test_a_server_of_another_run(examine, run_id, key):
    with serving(file_of(BanList(run_id=run_id, version=3, issued=5).signed(key))) as url:
        assert examine(members(url)).name == "membership-of-another-run"
