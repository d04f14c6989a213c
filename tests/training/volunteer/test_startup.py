"""Settings that do not suit each other, or this machine, are one sentence."""

from __future__ import annotations

import resource
import tomllib
from pathlib import Path

import pytest

from training.compute.machine import usable_cores
from training.errors import BadInput
from training.recipe import RECIPES, load_recipe, parse_recipe, read_recipe, recipe_names
from training.swarm.config import SwarmConfig
from training.volunteer.startup import (
    Link,
    check_files,
    check_flags,
    link_in_use,
    link_warning,
)

DEMO = load_recipe("demo")


def with_swarm(run=DEMO, **changes):
    return run.model_copy(update={"swarm": run.swarm.model_copy(update=changes)})


def flags(**changes):
    return {"micro_batch_size": None, "threads": None, "client_mode": False, "announce_maddrs": (), **changes}


@pytest.mark.parametrize("name", recipe_names())
def test_the_recipes_that_come_with_the_project_make_sense(name):
    run = load_recipe(name)
    check_flags(run.swarm, **flags())


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"micro_batch_size": 257}, "--micro-batch-size 257 is more than an epoch of this run, which is 256"),
        ({"threads": usable_cores() + 1}, f"more than the {usable_cores()} processor cores"),
        (
            {"client_mode": True, "announce_maddrs": ("/ip4/203.0.113.7/tcp/1",)},
            "--announce-maddrs has no address to announce",
        ),
        ({"name": "x" * 41}, "has 41 characters: a name has 1 to 40"),
        ({"name": ""}, "has 0 characters"),
        ({"name": "a\x1b[2J"}, "without control characters"),
    ],
)
def test_flags_that_cannot_be_are_refused(changes, words):
    with pytest.raises(BadInput, match=words):
        check_flags(DEMO.swarm, **flags(**changes))
    check_flags(DEMO.swarm, **flags(micro_batch_size=256, threads=usable_cores(), name="[/] ada \u00e9"))


@pytest.fixture
def file_limit():
    """Sets how many files may be open; the limit of before comes back."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda files: resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_too_few_open_files_are_refused_or_warned_of(file_limit):
    file_limit(100)
    with pytest.raises(BadInput, match="ulimit -n"):
        check_files(DEMO.swarm)
    file_limit(500)
    assert "a full group of 256 peers may need 768" in check_files(DEMO.swarm)
    file_limit(1000)
    assert check_files(DEMO.swarm) is None


def test_the_link_says_what_was_measured_and_what_was_not():
    unknown = link_in_use(Link())
    assert "not known" in unknown.value and "not measured" in unknown.reason
    known = Link(answer_seconds=(0.2, 0.012), download_bytes=1_000_000, download_seconds=0.8)
    assert "12 ms" in link_in_use(known).value and "10 Mbit/s" in link_in_use(known).reason
    assert unknown.reason.endswith("; you average as large a part as the others")
    slow = Link(download_bytes=10_000_000, download_seconds=8.0)
    assert (Link().mbits, known.mbits, slow.mbits) == (None, None, 10.0)  # a megabyte does not tell what a link carries
    assert link_in_use(slow).reason.endswith("; you average a part that suits 10 Mbit/s")
    told = Link(download_bytes=10_000_000, download_seconds=8.0, told_mbits=50.0)
    assert link_in_use(told).reason.endswith("suits 50 Mbit/s, as you said")
    swarm = with_swarm(allreduce_timeout_seconds=60.0).swarm
    assert link_warning(swarm, Link(), 10**9) is None
    assert link_warning(swarm, known, 21_400_000) is None
    assert "among 8 peers takes 60 s" in link_warning(swarm, known, 21_500_000)  # 2 bytes of each, 7/4 times


def test_a_limit_of_the_upload_under_which_no_exchange_ends_is_warned_of():
    """Measured in a run of the demo: with 2 Mbit/s, four peers took 16.4 s for an average of the parameters."""
    parameters = 1_364_560
    assert link_warning(DEMO.swarm, Link(told_mbits=4.0), parameters) is None
    fast = Link(download_bytes=10**7, download_seconds=0.1, told_mbits=2.0)
    assert link_warning(DEMO.swarm, fast, parameters) == (
        "At --max-upload 2 (Mbit/s), an exchange of 4.6 MiB among 8 peers takes 19 s, and the run gives up after 15 s, "
        "so you and the others may train apart. Use --max-upload 4, or omit it."
    )
    slow = Link(download_bytes=10**7, download_seconds=40.0, told_mbits=4.0)
    assert "At the speed of your download, " in link_warning(DEMO.swarm, slow, parameters)


@pytest.mark.parametrize("name", recipe_names())
def test_every_setting_of_the_swarm_is_set_and_explained_in_the_recipe(name):
    text = (RECIPES / f"{name}.toml").read_text()
    section = text[text.index("[swarm]") : text.index("[monitor]")]
    of_local_updates = {"inner_batch_size", "sparse_kept", "delay_outer_step"}
    matter = SwarmConfig.model_fields.keys() - of_local_updates
    assert tomllib.loads(section)["swarm"].keys() >= matter
    lines = section.splitlines()
    for number, line in enumerate(lines):
        if "=" in line and not line.startswith((" ", "#")):
            assert "#" in line or lines[number - 1].startswith(" "), f"{line} is not explained"


@pytest.mark.parametrize("name", recipe_names())
def test_the_digest_of_a_recipe_is_that_of_its_settings_not_of_its_text(name):
    text = read_recipe(name)
    bare = "\n".join(line.split("  #")[0] for line in text.splitlines())
    assert parse_recipe(bare).digest == load_recipe(name).digest


def test_cores_are_those_that_a_container_allows(tmp_path):
    assert usable_cores(tmp_path) >= 1
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == usable_cores(Path(tmp_path / "none"))
