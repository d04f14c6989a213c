"""What a newcomer makes of what it sees of a run; its optimizer, the records and the run's site are given."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from training.checkpoints.keep import MAY_DIFFER
from training.processes.events import EventLog
from training.processes.notices import Notices
from training.recipe import load_recipe
from training.swarm.run.lineage import Lineage
from training.swarm.state.alignment import AlignmentState
from training.volunteer import arrival
from training.volunteer.stored import Stored

OWN, FOREIGN = Lineage(id="a" * 16), Lineage(id="b" * 16)
ADA, GRACE = "QmAda", "QmGrace"
NOTHING, UNREACHABLE = Stored(is_nothing=True), Stored()


def record(epoch, status="training", lineage=OWN, time=0.0, name="ada", peer_id=ADA):
    facts = {"epoch": epoch, "samples": 8, "status": status, "lineage": lineage.id, "time": time}
    return SimpleNamespace(peer_id=peer_id, name=name, **facts)


class Newcomer:
    """One that comes to a run; what it prints, what it loads, and how long it waits."""

    def __init__(
        self,
        monkeypatch,
        tmp_path,
        *looks,
        gives=(),
        known_epoch=0,
        stored=UNREACHABLE,
        lineage=OWN,
        silent=(),
        kept_epoch=0,
        may_differ=False,
    ):
        self.looks, self.gives, self.stored, self.tmp_path = list(looks), list(gives), stored, tmp_path
        self.known_epoch = known_epoch
        self.now, self.wanted, self.loaded, self.silent = 0.0, [], [], silent
        self.console = Console(record=True, quiet=False, file=(tmp_path / "printed").open("w"), width=1000)
        self.may_differ = may_differ
        kept = (Path(f"epoch-{kept_epoch:06d}") if kept_epoch else None, kept_epoch)
        self.kept = SimpleNamespace(newest=lambda lineage: kept, may_differ=lambda path: may_differ)
        self.belonging = SimpleNamespace(
            lineage=lineage, newest_epoch=lambda: known_epoch, sites=lambda: ["https://run.example"]
        )
        self.optimizer = SimpleNamespace(
            dht=SimpleNamespace(peer_id="own", is_alive=lambda: True),
            progress=SimpleNamespace(reported_epoch=0),
            local_epoch=0,
            alignment=AlignmentState(),
            load_state_from_peers=self.load_state,
            load_checkpoint=self.load_checkpoint,
        )
        self.stop = SimpleNamespace(asked=False, wait=self.wait)
        monkeypatch.setattr(arrival, "read_records", self.read_records)
        monkeypatch.setattr(arrival, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(arrival, "time_of_day", lambda: self.now)
        monkeypatch.setattr(arrival, "any_answers", lambda dht, peers, seconds: self.hears_any(peers))
        monkeypatch.setattr(arrival, "fetch_stored", lambda belonging, run, **_: self.stored)
        monkeypatch.setattr(arrival, "load_checkpoint", self.read_checkpoint)

    def read_records(self, dht, run_id):
        records = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(records, Exception):
            raise records
        return records

    def hears_any(self, peers):
        if isinstance(self.silent, Exception):
            raise self.silent
        return bool(set(peers) - set(self.silent))

    def load_state(self, *, oldest_epoch):
        """Gives the state of an epoch, or (True) the newest one that is known of."""
        self.wanted.append(oldest_epoch)
        assert not self.optimizer.alignment.is_witness
        given = self.gives.pop(0) if self.gives else False
        if given:
            self.optimizer.local_epoch = self.known_epoch if given is True else given
        return bool(given)

    def read_checkpoint(self, path, *, recipe, computes):
        facts = {"epoch": int(path.name.rpartition("-")[2]), "metrics": {MAY_DIFFER: self.may_differ}}
        return SimpleNamespace(path=path, codec_digest=None, model=None, extra_tensors={}, lineage=OWN.id, **facts)

    def load_checkpoint(self, model, moments, epoch, *, may_differ):
        self.loaded.append(epoch)
        self.loaded_may_differ = may_differ
        self.optimizer.local_epoch = epoch

    def wait(self, seconds):
        self.now += seconds
        self.stop.asked = self.now > 1000

    def come(self, **flags):
        settings = {"resume": None, "stop": self.stop, "kept": self.kept}
        settings["notices"] = Notices(events=EventLog(None), console=self.console)
        settings |= flags
        return arrival.arrive(self.optimizer, load_recipe("demo"), belonging=self.belonging, **settings)

    @property
    def printed(self):
        return self.console.export_text(clear=False)


@pytest.fixture
def newcomer(monkeypatch, tmp_path):
    return lambda *looks, **facts: Newcomer(monkeypatch, tmp_path, *looks, **facts)


def test_who_is_first_begins_with_fresh_weights(newcomer):
    first = newcomer([])
    assert first.come() == "fresh weights" and first.now == 0


def test_who_comes_before_the_first_update_downloads_nothing(newcomer):
    """All peers draw the same weights from the recipe, and others are still on their way to the first update."""
    one = newcomer([record(0), record(0, "joining", name="grace", peer_id=GRACE)], gives=[True])
    assert one.come() == "fresh weights" and one.now == 0 and one.wanted == []


def test_epochs_of_another_lineage_are_not_waited_for(newcomer):
    assert newcomer([record(50, lineage=FOREIGN)]).come() == "fresh weights"


@pytest.mark.parametrize(
    "looks", [([record(5)], [record(6)]), (TimeoutError(), TimeoutError(), [record(5)], [record(6)])]
)
def test_a_newcomer_waits_for_the_runs_weights_also_if_the_network_is_slow_to_answer(newcomer, looks):
    one = newcomer(*looks, gives=(False, True))
    assert one.come() == "the state of another peer"
    assert one.wanted == [1, 1]  # the state of another newcomer, which is at epoch 0, is not wanted
    assert "waiting for ada to send its weights" in one.printed


@pytest.mark.parametrize("name", ["[/]", "[bold]ada[/bold]"])
def test_a_name_that_looks_like_markup_is_shown_as_it_is(newcomer, name):
    one = newcomer([record(5, name=name)], gives=(False, True))
    assert one.come() == "the state of another peer"
    assert f"waiting for {name} to send its weights" in one.printed


@pytest.mark.parametrize("looks", [[], [record(7, status="leaving")], [record(0, status="joining")]])
def test_a_word_of_an_update_is_enough_to_wait_for_ever(newcomer, looks):
    one = newcomer(looks, known_epoch=7)
    assert one.come() is None and one.now > 1000
    assert "The run is at epoch 7, and nobody who has its weights is here" in one.printed
    assert "for a checkpoint at https://run.example" in one.printed


@pytest.mark.parametrize(
    ("kept_epoch", "known_epoch", "stored_epoch", "taken"),
    [
        (7, 7, None, 7),
        (7, 0, None, 7),
        (7, 7, 7, 7),
        (7, 8, None, 7),
        (7, 8, 6, 7),
        (7, 8, 8, 8),
        (7, 30, 20, 20),
        (25, 30, 20, 25),
    ],
)
def test_if_nobody_is_there_a_peer_goes_on_with_what_it_has_kept_unless_the_site_has_something_newer(
    newcomer, kept_epoch, known_epoch, stored_epoch, taken
):
    stored = UNREACHABLE if stored_epoch is None else Stored(path=Path(f"epoch-{stored_epoch:06d}"))
    one = newcomer([], kept_epoch=kept_epoch, known_epoch=known_epoch, stored=stored)
    source = one.come()
    has_newest = kept_epoch >= known_epoch
    assert one.loaded[-1] == taken and one.now == (arrival.KEPT_SECONDS if has_newest else arrival.NOBODY_SECONDS)
    assert not (has_newest and one.wanted[1:])  # it asks nobody again who is not there
    assert one.optimizer.alignment.is_witness
    assert source == (
        f"the weights of epoch {taken} that it had kept" if taken == kept_epoch else f"the checkpoint epoch-{taken:06d}"
    )


@pytest.mark.parametrize(("may_differ", "seconds"), [(False, arrival.KEPT_SECONDS), (True, arrival.DIFFERING_SECONDS)])
def test_weights_that_may_differ_from_those_that_others_have_kept_go_last_and_are_marked(newcomer, may_differ, seconds):
    one = newcomer([], kept_epoch=7, known_epoch=7, may_differ=may_differ)
    assert one.come() == "the weights of epoch 7 that it had kept"
    assert (one.now, one.loaded_may_differ) == (seconds, may_differ)


def test_before_a_run_begins_anew_a_peer_goes_on_with_whatever_it_has_kept(newcomer):
    one = newcomer([], kept_epoch=7, known_epoch=50, stored=NOTHING)
    assert one.come() == "the weights of epoch 7 that it had kept" and one.now >= arrival.FORGOTTEN_SECONDS


def test_who_has_kept_the_last_weights_of_a_run_that_has_ended_is_told_so(newcomer):
    last = load_recipe("demo").schedule.total_epochs
    one = newcomer([], kept_epoch=last, known_epoch=last)
    assert one.come() is None and "has reached its end" in one.printed and not one.loaded


def test_the_servers_memory_of_a_newer_epoch_bars_no_state_that_exists(newcomer):
    """All have lost power: this peer waits for those that may have kept newer weights, and goes on with its own."""
    one = newcomer([], kept_epoch=7, known_epoch=30)
    assert one.come() == "the weights of epoch 7 that it had kept" and one.loaded == [7]
    assert one.now == arrival.FORGOTTEN_SECONDS
    assert "The run is at epoch 30 as the run's servers remember it" in one.printed
    assert "has the weights of epoch 7; it waits up to 60 s for a volunteer who has newer ones" in one.printed


@pytest.mark.parametrize("kept_epoch", [0, 7])
def test_the_newest_state_that_comes_back_within_the_wait_is_taken(newcomer, kept_epoch):
    """Two others return one after the other, and hold their states as this peer does."""
    one = newcomer([], kept_epoch=kept_epoch, known_epoch=30, gives=[False, False, False, 12, False, 20])
    assert one.come() == "the state of another peer" and one.optimizer.local_epoch == 20
    assert one.now == arrival.FORGOTTEN_SECONDS
    held = [7] if kept_epoch else []
    assert one.loaded == held and one.wanted[-1] == 21 and {13, *(epoch + 1 for epoch in held)} < set(one.wanted)


def test_the_newest_state_of_all_is_taken_at_once(newcomer):
    one = newcomer([], kept_epoch=7, known_epoch=30, gives=[False, False, 30])
    assert one.come() == "the state of another peer" and one.now < arrival.NOBODY_SECONDS


def test_a_peer_without_weights_is_told_how_a_run_begins_anew(newcomer):
    one = newcomer([], known_epoch=7)
    assert one.come() is None
    assert "delete lineage.json in the state folder of each (runs/demo/bootstrap" in one.printed


@pytest.mark.parametrize("comes", [{"stored": NOTHING}, {"gives": [False] * 30 + [7]}], ids=["fresh", "volunteer"])
def test_a_run_that_goes_on_by_itself_within_a_minute_asks_its_maintainer_for_nothing(newcomer, comes):
    one = newcomer([], known_epoch=7, **comes)
    assert one.come() is not None
    assert "waiting for a volunteer who comes back" in one.printed and "delete" not in one.printed


def test_a_peer_that_has_kept_weights_takes_those_of_others_if_they_are_there(newcomer):
    assert newcomer([record(8)], kept_epoch=7, gives=(True,)).come() == "the state of another peer"


def test_a_peer_that_waits_says_so_once_a_minute(newcomer):
    one = newcomer([], known_epoch=7)
    one.come()
    assert 10 <= one.printed.count("nobody who has its weights is here") <= 18


def test_if_nobody_is_there_the_checkpoint_of_the_site_is_taken_after_a_while(newcomer):
    one = newcomer([], known_epoch=7, stored=Stored(path=Path("epoch-000004")))
    assert one.come() == "the checkpoint epoch-000004" and one.loaded == [4]
    assert one.now == arrival.NOBODY_SECONDS


def test_a_peer_that_comes_back_is_better_than_a_checkpoint(newcomer):
    one = newcomer([], known_epoch=7, gives=[False, False, True], stored=Stored(path=Path("epoch-000004")))
    assert one.come() == "the state of another peer" and not one.loaded


@pytest.mark.parametrize("has, said", [(["IPv6"], "This machine has no IPv4"), (["IPv4"], "")])
def test_a_peer_that_reaches_nobody_who_has_the_weights_is_told_why(newcomer, monkeypatch, has, said):
    """Its servers have addresses of both protocols, so it is in the run; the others have IPv4 alone."""
    monkeypatch.setattr(arrival, "protocols", lambda: has)
    one = newcomer([record(7)], known_epoch=7, silent={ADA})
    assert one.come() is None
    assert "its weights are with ada, but" in one.printed and "`doctor`" in one.printed
    assert said in one.printed and (said or "This machine" not in one.printed)


@pytest.mark.parametrize("silent", [(), {GRACE}, TimeoutError()], ids=["all answer", "one answers", "nobody knows"])
def test_a_peer_that_answers_is_waited_for_although_the_site_has_a_checkpoint(newcomer, silent):
    records = [record(7), record(7, name="grace", peer_id=GRACE)]
    one = newcomer(records, known_epoch=7, stored=Stored(path=Path("epoch-000004")), silent=silent)
    assert one.come() is None and not one.loaded


def test_a_peer_that_does_not_answer_is_not_waited_for_if_the_site_has_a_checkpoint(newcomer):
    """Its machine sleeps, or it has died, and its record has not expired yet."""
    one = newcomer([record(7)], known_epoch=7, stored=Stored(path=Path("epoch-000004")), silent={ADA})
    assert one.come() == "the checkpoint epoch-000004" and one.now == arrival.NOBODY_SECONDS


def test_while_a_record_says_that_somebody_is_there_no_run_begins_anew(newcomer):
    one = newcomer([record(7)], known_epoch=7, stored=NOTHING, silent={ADA})
    assert one.come() is None and one.now > arrival.FORGOTTEN_SECONDS


def test_a_record_of_a_clock_that_is_ahead_is_not_waited_for(newcomer):
    """It stays for as long as the clock was ahead, although its peer may have died."""
    one = newcomer([record(7, time=300.0)], known_epoch=7, stored=Stored(path=Path("epoch-000004")))
    assert one.come() == "the checkpoint epoch-000004" and one.now == arrival.NOBODY_SECONDS


def test_a_run_that_nobody_has_any_weights_of_begins_anew_but_not_at_once(newcomer):
    one = newcomer([], known_epoch=7, stored=NOTHING)
    assert one.come().startswith("fresh weights")
    assert one.now == arrival.FORGOTTEN_SECONDS


def test_a_branch_never_begins_with_fresh_weights(newcomer):
    """Its monitor may not have got around to offering the checkpoint that it goes on from."""
    assert newcomer([], known_epoch=40, stored=NOTHING, lineage=FOREIGN.branch(40)).come() is None


def test_reports_that_the_run_has_ended_end_it_for_no_newcomer(newcomer):
    """The checkpoint of its end does, which the training loop finds that it has."""
    last = load_recipe("demo").schedule.total_epochs
    leaving = [record(last, status="leaving")]
    one = newcomer(leaving)
    assert one.come() is None and one.now > 1000 and "has reached its end" not in one.printed
    ended = newcomer(leaving, stored=Stored(path=Path(f"epoch-{last:06d}")))
    assert ended.come() == f"the checkpoint epoch-{last:06d}" and ended.optimizer.local_epoch == last


def test_one_peer_among_others_cannot_end_the_run_for_newcomers(newcomer):
    last = load_recipe("demo").schedule.total_epochs
    one = newcomer([record(7), record(7), record(last, status="leaving")], gives=[True])
    assert one.come() == "the state of another peer"


@pytest.mark.parametrize(
    "lineage, known_epoch, is_used",
    [(OWN, 9, True), (FOREIGN, 9, False), (FOREIGN, 0, True), (OWN.branch(12), 13, True), (OWN.branch(11), 13, False)],
    ids=["its own", "another one", "another one that has no update", "a later branch", "an earlier branch"],
)
def test_a_checkpoint_to_resume_from_must_be_of_the_lineage(
    newcomer, monkeypatch, tmp_path, lineage, known_epoch, is_used
):
    monkeypatch.setattr(arrival, "list_checkpoints", lambda folder: [folder / "epoch-000012"])
    monkeypatch.setattr(arrival, "damage_of", lambda path: None)
    one = newcomer([], known_epoch=known_epoch, lineage=lineage, gives=[True])
    source = one.come(resume=tmp_path)
    assert source == ("the checkpoint epoch-000012" if is_used else "the state of another peer")
    assert ("belongs to the lineage" in one.printed) != is_used


@pytest.mark.parametrize(("damaged", "source"), [(1, "the checkpoint epoch-000012"), (2, "fresh weights")])
def test_a_damaged_checkpoint_is_named_and_the_newest_sound_one_is_taken(
    newcomer, monkeypatch, tmp_path, damaged, source
):
    paths = [tmp_path / f"epoch-{epoch:06d}" for epoch in (12, 13)]
    faults = dict.fromkeys(paths[-damaged:], "its model.safetensors has 7 bytes, and 8 were written")
    monkeypatch.setattr(arrival, "list_checkpoints", lambda folder: paths)
    monkeypatch.setattr(arrival, "damage_of", faults.get)
    one = newcomer([])
    assert one.come(resume=tmp_path) == source
    for path in faults:
        assert f"{path} is not used: its model.safetensors has 7 bytes, and 8 were written." in one.printed
