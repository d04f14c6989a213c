"""The address that a volunteer gives leads to the run's recipe and to its site."""

from __future__ import annotations

import pytest

from tests.training.doctor.places import file_of, serving
from training.doctor.facts import Asked, Facts
from training.errors import BadInput, TrainingError
from training.recipe import RECIPES
from training.volunteer.address import find_run

DEMO = (RECIPES / "demo.toml").read_text()


def site_with_a_recipe(request):
    """Answers like a monitor whose site has a page `join`, and nothing else of its own."""
    here = request.path.partition("?")[0] == "/run/recipe.toml"
    (file_of(DEMO) if here else file_of("", status=404))(request)


@pytest.mark.parametrize("page", ["/run", "/run/", "/run/join/", "/run/recipe.toml", "/run/dashboard/?points=3#loss"])
def test_each_page_of_the_site_leads_to_its_run(page):
    with serving(site_with_a_recipe) as url:
        found = find_run(f"{url}{page}")
        assert (found.run.run_id, found.recipe_toml) == ("demo", DEMO)
        assert found.given_site == found.site == f"{url}/run"
        assert find_run(f"https://pages.example/join/?run={url}/run").site == f"{url}/run"


def test_an_address_without_a_run_is_one_sentence():
    with serving(file_of("", status=404)) as url, pytest.raises(BadInput, match=f"No run is served at {url}/join/"):
        find_run(f"{url}/join/")


def test_a_monitor_that_starts_is_no_wrong_address():
    with serving(file_of("", status=503)) as url, pytest.raises(TrainingError, match="probably starting"):
        find_run(url)


def test_a_recipe_without_a_site_names_the_one_that_has_its_shards(tmp_path):
    recipe = tmp_path / "run.toml"
    recipe.write_text(DEMO.replace("runs/demo/shards", "https://run.example/shards"))
    found = find_run(str(recipe))
    assert (found.given_site, found.site) == (None, "https://run.example")
    assert find_run("demo").site is None


def test_the_doctor_finds_the_servers_by_the_same_address():
    with serving(site_with_a_recipe) as url:
        assert Facts(Asked(recipe=f"{url}/run/join/")).initial_peers() == (f"{url}/run",)
        peer = "/ip4/192.0.2.1/tcp/9/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
        assert Facts(Asked(recipe=f"{url}/run", initial_peers=(peer,))).initial_peers() == (peer,)
    assert Facts(Asked(recipe="demo")).initial_peers() == Facts(Asked()).initial_peers() == ()
