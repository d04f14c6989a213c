"""Credit: no more than other volunteers' averages show, for a volunteer's account or key, in each period."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.publish.history.test_history import Clock, Report, open_history
from training.publish.history.credit import credit_of
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import MissedEpoch, RecentEpoch, Seen, Voucher
from training.trust.proof import voucher_statement

NAMES = {"ada": "Qm" + "a" * 10, "alan": "Qm" + "b" * 10, "grace": "Qm" + "c" * 10, "eve": "Qm" + "e" * 10}


class Swarm:
    """A history, and what the records of its volunteers say: in each epoch, what each claims and what it has seen."""

    def __init__(self, folder, **settings):
        self.clock, self.number, self.said = Clock(), 0, {}
        self.history = open_history(folder, self.clock, **{"expiration_seconds": 1e9, **settings})
        self.accounts = {}

    def say(self, name, epoch, samples=0, *, seen=(), missed=None, seconds=60.0, **facts):
        """Adds an epoch to the record of a volunteer; `seen` maps others to their samples."""
        peer_id = facts.get("peer_id", NAMES.get(name))
        before = self.said.get(peer_id) or Report(name=name, peer_id=peer_id)
        self.number += 1
        ended = [RecentEpoch(epoch, 2.0, samples, self.clock.now, seconds)] if samples else []
        self.said[peer_id] = before.copy(
            update={
                "epoch": epoch,
                "samples": before.samples + samples,
                "time": self.clock.now + self.number / 1000,
                "recent": [*before.recent, *ended][-64:],
                "seen": [*before.seen, *(Seen(epoch, NAMES[other][-8:], had) for other, had in dict(seen).items())],
                "missed": [*before.missed, *([MissedEpoch(epoch, missed)] if missed else [])],
                "name": name,
                **facts,
            }
        )

    def observe(self, *names):
        peers = [NAMES[name] for name in names] or self.said
        self.history.observe([self.said[peer] for peer in peers], accounts=self.accounts)

    def begin(self, *names):
        for name in names:
            self.say(name, 0)
        self.observe()

    def average(self, epoch, *, minutes=1, **samples):
        """An epoch in which all these average together; each tells the truth."""
        self.clock.now += 60 * minutes
        for name, own in samples.items():
            seen = {other: had for other, had in samples.items() if other != name}
            self.say(name, epoch, own, seen=seen, seconds=60.0 * minutes)
        self.observe()

    @property
    def credit(self):
        return {one["name"]: one["samples"] for one in self.history.leaderboard()}

    def of(self, name, **period):
        (row,) = [one for one in self.history.leaderboard(**period) if one["name"] == name]
        return self.history.contribution(row["page"])


@pytest.fixture
def swarm(tmp_path):
    swarm = Swarm(tmp_path)
    yield swarm
    swarm.history.close()


# -- what averages show ------------------------------------------------------------------------------------------------


def test_samples_count_as_far_as_others_have_seen_them(swarm):
    swarm.begin("ada", "alan", "eve")
    swarm.clock.now += 60
    swarm.say("eve", 1, 10**9, seen={"ada": 30, "alan": 20})
    swarm.say("ada", 1, 30, seen={"alan": 20, "eve": 5})
    swarm.say("alan", 1, 20, seen={"ada": 30, "eve": 5})
    swarm.observe()
    assert swarm.credit == {"ada": 30, "alan": 20, "eve": 5}


def test_who_is_in_no_average_of_others_gets_nothing_and_the_reason(swarm):
    swarm.begin("ada", "alan", "eve")
    swarm.clock.now += 60
    swarm.say("eve", 1, 10**9)
    swarm.observe("eve")
    assert swarm.credit["eve"] == 10**9  # nobody else has said anything of the epoch yet
    swarm.say("ada", 1, 30, seen={"alan": 20})
    swarm.say("alan", 1, 20, seen={"ada": 30})
    swarm.observe()
    assert swarm.credit == {"ada": 30, "alan": 20, "eve": 0}
    assert swarm.of("eve")["missed"] == {"unreachable": 1}
    assert swarm.history.total_samples() == 50


def test_who_averages_no_part_sees_that_others_were_there_only(swarm):
    """Behind a router each sends to one reducer, whose own samples nobody sees."""
    swarm.begin("ada", "alan")
    swarm.clock.now += 60
    swarm.say("ada", 1, 30, seen={"alan": 20})
    swarm.say("alan", 1, 21, seen={"ada": None})
    swarm.observe()
    assert swarm.credit == {"ada": 30, "alan": 20}


def test_no_two_peers_of_one_volunteer_vouch_for_each_other(swarm):
    swarm.accounts = dict.fromkeys((NAMES["eve"], NAMES["grace"]), "hf:eve")
    swarm.begin("ada", "alan", "grace", "eve")
    swarm.clock.now += 60
    for name, other in (("eve", "grace"), ("grace", "eve")):
        swarm.say(name, 1, 10**6, seen={other: 10**6})
    for name, other in (("ada", "alan"), ("alan", "ada")):
        swarm.say(name, 1, 30, seen={other: 30})
    swarm.observe()
    assert sum(swarm.credit.values()) == 60


def test_who_trains_alone_is_believed(swarm):
    swarm.begin("ada")
    swarm.clock.now += 60
    swarm.say("ada", 1, 64)
    swarm.observe()
    assert swarm.credit == {"ada": 64} and swarm.of("ada")["missed"] == {}


def test_credit_comes_when_others_tell_and_stays_when_they_leave(swarm):
    swarm.begin("ada", "alan", "grace")
    swarm.clock.now += 60
    swarm.say("ada", 1, 30, seen={"alan": 20, "grace": 10})
    swarm.say("alan", 1, 20, seen={"ada": 30, "grace": 10})
    swarm.say("grace", 1, 10, seen={"ada": 3, "alan": 2})
    swarm.observe("ada")
    swarm.observe("ada", "alan", "grace")
    assert swarm.credit == {"ada": 3, "alan": 2, "grace": 10}  # the lower median of two
    swarm.observe("ada", "alan")
    swarm.observe("grace", "ada")
    assert swarm.credit == {"ada": 3, "alan": 2, "grace": 10}


def test_a_restarted_monitor_changes_no_credit(swarm, tmp_path):
    swarm.begin("ada", "alan")
    swarm.average(1, ada=30, alan=20)
    for _ in range(2):
        swarm.history.close()
        swarm.history = open_history(tmp_path, swarm.clock, expiration_seconds=1e9)
        swarm.observe("ada")
        assert swarm.credit == {"ada": 30, "alan": 20}


@pytest.mark.parametrize("samples, said", [(0, "refused"), (40, "late"), (40, None)])
def test_an_own_reason_counts_unless_an_average_shows_the_samples(samples, said):
    assert credit_of(40, said, {"ada": samples}, others_averaged=True).missed == (said if not samples else None)
    assert credit_of(40, said, {}, others_averaged=True).missed == (said or "unreachable")
    assert credit_of(40, said, {}, others_averaged=False).samples == (0 if said else 40)


REASONS = ["late", "unreachable", "refused", "paused", "catching up"]


@settings(deadline=None, max_examples=40)
@given(epochs=st.lists(st.sampled_from(["done", "cut off", *REASONS]), min_size=1, max_size=30))
def test_each_epoch_of_a_volunteer_has_credit_or_one_of_five_reasons(tmp_path_factory, epochs):
    swarm = Swarm(tmp_path_factory.mktemp("history"))
    swarm.begin("ada", "alan", "grace")
    for epoch, what in enumerate(epochs, 1):
        swarm.clock.now += 60
        joined = {"ada": 20, "grace": 5} if what == "done" else {"grace": 5}
        swarm.say("alan", epoch, 10, seen=joined)
        swarm.say("grace", epoch, 5, seen={"alan": 10} | ({"ada": 20} if what == "done" else {}))
        if what in ("done", "cut off"):
            swarm.say("ada", epoch, 20, seen={"alan": 10, "grace": 5} if what == "done" else {})
        else:
            swarm.say("ada", epoch, 20 if what == "unreachable" else 0, missed=what)
        swarm.observe()
    told = swarm.of("ada")
    counted = Counter("unreachable" if what == "cut off" else what for what in epochs)
    assert swarm.credit["ada"] == 20 * counted.pop("done", 0)
    assert told["missed"] == dict(counted)
    assert {one["epoch"]: (one["samples"], one["missed"]) for one in told["recent"]} == {
        epoch: (20, None) if what == "done" else (0, "unreachable" if what == "cut off" else what)
        for epoch, what in enumerate(epochs, 1)
    }
    swarm.history.close()


def test_a_restart_that_the_monitor_has_not_seen_loses_no_epoch(swarm):
    """The totals begin again at 0; an epoch without samples comes last."""
    swarm.begin("ada", "alan")
    swarm.average(1, ada=1000, alan=20)
    swarm.said[NAMES["ada"]] = swarm.said[NAMES["ada"]].copy(update={"samples": 0, "recent": [], "seen": []})
    swarm.clock.now += 60
    swarm.say("ada", 2, 30, seen={"alan": 20})
    swarm.say("ada", 3, missed="refused")
    swarm.say("alan", 2, 20, seen={"ada": 30})
    swarm.say("alan", 3, 20)
    swarm.observe()
    assert swarm.credit == {"ada": 1030, "alan": 60} and swarm.of("ada")["missed"] == {"refused": 1}


# -- whose it is -------------------------------------------------------------------------------------------------------


def test_machines_of_one_account_add_up_and_a_new_one_keeps_the_credit(swarm):
    swarm.accounts = {NAMES["ada"]: "invited:ada", NAMES["alan"]: "invited:alan", NAMES["grace"]: "invited:ada"}
    swarm.begin("ada", "alan")
    swarm.average(1, ada=30, alan=20)
    swarm.say("ada", 1, peer_id=NAMES["grace"])
    swarm.average(2, alan=20, grace=7)
    assert swarm.credit == {"grace": 37, "alan": 40}  # the name that was given last
    assert swarm.of("grace")["machines"] == 2


def test_a_ticket_that_comes_later_takes_the_credit_along(swarm):
    swarm.begin("ada", "alan")
    swarm.average(1, ada=30, alan=20)
    page = swarm.of("ada")["page"]
    swarm.accounts = {NAMES["ada"]: "hf:ada"}
    swarm.average(2, ada=30, alan=20)
    assert swarm.credit == {"ada": 60, "alan": 40} and swarm.of("ada")["page"] != page
    assert [one["name"] for one in swarm.history.events() if one["kind"] == "joined"] == ["ada", "alan"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return [Identity(tmp_path_factory.mktemp("key")) for _ in range(2)]


@pytest.mark.parametrize("run_id, is_believed", [("demo", True), ("another", False)])
def test_the_first_key_of_a_copied_folder_vouches_for_the_copy(swarm, keys, run_id, is_believed):
    """A voucher counts in its own run only."""
    first, second = (str(key.peer_id) for key in keys)
    signature = keys[0].sign(voucher_statement(run_id, second)).decode()
    voucher = Voucher(keys[0].public_key.decode(), signature)
    for peer_id, own in ((first, None), (second, voucher)):
        swarm.say("ada", 0, peer_id=peer_id, voucher=own)
    swarm.observe()
    swarm.clock.now += 60
    swarm.say("ada", 1, 30, peer_id=first)
    swarm.say("ada", 1, 20, peer_id=second)
    swarm.observe()
    assert swarm.credit == ({"ada": 50} if is_believed else {"ada": 30, "ada 2": 20})


def test_nobody_else_counts_under_a_name_that_is_taken(swarm):
    swarm.begin("ada", "alan")
    swarm.average(1, ada=30, alan=20)
    for name in ("grace", "eve"):
        swarm.say("ada", 1, peer_id=NAMES[name])
    swarm.observe()
    assert swarm.credit == {"ada": 30, "alan": 20, "ada 2": 0, "ada 3": 0}
    assert swarm.history.losses().keys() == {"ada", "alan"}
    assert swarm.history.names_of_peers()[NAMES["eve"]] == "ada 3"


def test_anonymous_on_request_also_for_what_was_contributed_before(swarm):
    """Nothing that is published names the volunteer any more, and the old address of its page shows nothing."""
    swarm.begin("ada", "alan")
    swarm.average(1, ada=30, alan=20)
    page = swarm.of("ada")["page"]
    swarm.say("anonymous", 1, peer_id=NAMES["ada"])
    swarm.observe()
    assert swarm.credit == {"anonymous": 30, "alan": 20}
    history = swarm.history
    told = [history.leaderboard(), history.events(), history.losses(), swarm.of("anonymous"), history.first_names(9)]
    assert "'ada'" not in str(told) and NAMES["ada"] not in str(told)
    assert history.contribution(page) is None and swarm.of("anonymous")["page"] != page
    swarm.say("anonymous", 1, peer_id=NAMES["alan"])
    swarm.observe()
    assert swarm.credit == {"anonymous": 30, "anonymous 2": 20}


# -- periods -----------------------------------------------------------------------------------------------------------


def test_leaderboards_of_a_day_of_thirty_days_and_of_all_time(swarm):
    swarm.begin("ada", "alan", "grace")
    swarm.average(1, ada=500, alan=1, minutes=11)
    swarm.clock.now += 40 * 86400
    swarm.average(2, alan=100, grace=10, minutes=11)
    swarm.clock.now += 2 * 86400
    swarm.average(3, grace=50, alan=20, minutes=11)
    boards = {
        hours: [(one["name"], one["samples"], one["epochs"]) for one in swarm.history.leaderboard(hours=hours)]
        for hours in (24, 720, None)
    }
    assert boards == {
        24: [("grace", 50, 1), ("alan", 20, 1)],
        720: [("alan", 120, 2), ("grace", 60, 2)],
        None: [("ada", 500, 1), ("alan", 121, 3), ("grace", 60, 2)],
    }
    assert [one["rank"] for one in swarm.of("alan")["periods"]] == [2, 1, 2]
    assert [one["rank"] for one in swarm.of("ada")["periods"]] == [None, None, 1]
    assert [one["samples"] for one in swarm.of("grace")["periods"]] == [50, 60, 60]
    swarm.average(4, ada=10**6, alan=20, minutes=1)
    ranks = {name: [one["rank"] for one in swarm.of(name)["periods"]] for name in ("ada", "alan", "grace")}
    assert ranks == {"ada": [None, None, 1], "alan": [2, 1, 2], "grace": [1, 2, 3]}, "ada has no ten minutes this month"
    assert [one["name"] for one in swarm.history.leaderboard(hours=720, most=1, offset=1)] == ["alan"]
    assert sum(one["share"] for one in swarm.history.leaderboard(hours=24)) == pytest.approx(1.0)


def test_ten_minutes_of_computing_make_a_contributor(swarm):
    """No peer gets more seconds than the epoch lasted by the run's clock, whatever it reports."""
    swarm.begin("ada", "alan", "eve")
    for epoch in range(1, 11):
        swarm.clock.now += 61
        swarm.say("ada", epoch, 30, seen={"alan": 20, "eve": 1}, seconds=60.0)
        swarm.say("alan", epoch, 20, seen={"ada": 30, "eve": 1}, seconds=59.0)
        swarm.say("eve", epoch, 1, seen={"ada": 30, "alan": 20}, seconds=1e9 if epoch < 10 else 0.0)
        swarm.observe()
    seconds = {one["name"]: one["seconds"] for one in swarm.history.leaderboard()}
    assert seconds == {"ada": 600.0, "alan": 590.0, "eve": pytest.approx(9 * 61, abs=1)}
    assert swarm.history.count_contributors() == {"total": 3, "contributors": 1, "least_seconds": 600}
