"""What a newcomer makes of what it sees of a run; its optimizer and the records are given."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from training.config import load_recipe
from training.volunteer import arrival


def record(epoch, status="training"):
    return SimpleNamespace(peer_id="another", epoch=epoch, samples=8, status=status)


def come(monkeypatch, *looks, gives=(), own_epoch=0):
    """Where the state came from; each look at the run sees these records, and each donor gives or does not."""
    seen, given = iter(looks), iter(gives)

    def read_records(dht, run_id):
        if isinstance(records := next(seen), Exception):
            raise records
        return records

    monkeypatch.setattr(arrival, "read_records", read_records)
    monkeypatch.setattr(arrival, "LOOK_SECONDS", 0)
    optimizer = SimpleNamespace(
        dht=SimpleNamespace(peer_id="own"),
        progress=SimpleNamespace(global_epoch=own_epoch),
        local_epoch=own_epoch,
        load_state_from_peers=lambda early: next(given),
    )
    stop = SimpleNamespace(asked=False, wait=lambda seconds: None)
    return arrival.arrive(
        optimizer, load_recipe("demo"), resume=None, shards="none", stop=stop, console=Console(quiet=True)
    )


def test_who_is_first_begins_with_fresh_weights(monkeypatch):
    assert come(monkeypatch, []) == "fresh weights"


@pytest.mark.parametrize(
    "looks", [([record(5)], [record(6)]), (TimeoutError(), TimeoutError(), [record(5)], [record(6)])]
)
def test_a_newcomer_waits_for_the_runs_weights_also_if_the_network_is_slow_to_answer(monkeypatch, looks):
    assert come(monkeypatch, *looks, gives=(False, True)) == "the state of another peer"


def test_who_comes_as_the_others_go_does_not_begin_anew(monkeypatch):
    assert come(monkeypatch, [record(5)], [record(5, status="leaving")], gives=(False, False)) is None
