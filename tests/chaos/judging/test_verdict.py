"""Each check of a run finds what it is there for, in the evidence of a good run in which one thing is changed."""

from dataclasses import replace

import pytest

from tests.chaos.judging import verdict
from tests.chaos.judging.evidence import Accident, Epoch, Evidence, Life, Weights, _gave_up

NAMES = ("ada", "grace", "alan")
BEGAN, CALM_UNTIL, ENDED = 1000.0, 1100.0, 1400.0


def epoch_of(number, time, **facts):
    return Epoch(**{"time": time, "epoch": number, "samples": 50, "senders": 3, "update_samples": 150.0, **facts})


@pytest.fixture
def good():
    """400 seconds in which three volunteers end an epoch together every five seconds."""
    evidence = Evidence(began=BEGAN, calm_until=CALM_UNTIL, ended=ENDED)
    evidence.accidents = [Accident(kind="bootstrap", began=1150.0, ended=1160.0)]
    for shift, name in enumerate(NAMES):
        state = {"state": "fresh weights", "lineage": "a" * 16}
        evidence.lives[name] = [Life(began=900.0, joined=920.0, ended=ENDED, epoch=0, **state)]
        evidence.epochs[name] = [epoch_of(n, 920 + 5 * n + 0.1 * shift) for n in range(1, 96)]
        evidence.weights[name] = [
            Weights(time=epoch.time, updates=epoch.epoch, drifted=False, values=(1.0, 2.0, epoch.epoch))
            for epoch in evidence.epochs[name]
        ]
    evidence.history = {n: 150 for n in range(1, 96)}
    evidence.totals = {name: 95 * 50 for name in NAMES}
    evidence.checkpoints = [(1000.0, 15), (1100.0, 35)]
    return evidence


def wrong(evidence):
    """Names of the checks that find something."""
    return {finding.check for finding in verdict.judge(evidence) if not finding.good}


def cut_out(evidence, name, began, ended):
    evidence.epochs[name] = [epoch for epoch in evidence.epochs[name] if not began < epoch.time < ended]


def test_a_good_run_is_good(good):
    assert wrong(good) == set()
    assert verdict.rate(good, (BEGAN, CALM_UNTIL)) == pytest.approx(10.0)


def test_fewer_samples_of_survivors_are_less_throughput(good):
    for name in NAMES:
        late = [replace(e, samples=40, update_samples=120.0) if e.epoch > 36 else e for e in good.epochs[name]]
        good.epochs[name] = late
    good.history = {n: 120 if n > 36 else 150 for n in good.history}
    good.totals = {}
    assert wrong(good) == {"throughput of the survivors"}


def test_what_a_fault_costs_its_own_volunteer_is_not_the_survivors_loss(good):
    good.accidents.append(Accident(kind="stop", began=1200.0, ended=1230.0, volunteers=("ada",)))
    cut_out(good, "ada", 1200.0, 1235.0)
    for name in ("grace", "alan"):
        for number, epoch in enumerate(good.epochs[name]):
            if 1200 < epoch.time < 1235:
                good.epochs[name][number] = replace(epoch, senders=2, update_samples=100.0)
    good.history |= {n: 100 for n in range(57, 63)}
    good.totals["ada"] -= 6 * 50
    assert wrong(good) == set()


def test_an_epoch_that_its_volunteers_own_fault_cuts_short_is_not_the_survivors_loss(good):
    """Ten times it is killed 4 s after an epoch's end, and trains again 1 s later: 40 s of which no sample is left."""
    for number in range(10):
        hit = 1209.0 + 10 * number
        good.accidents.append(Accident(kind="kill", began=hit, ended=hit + 0.5, volunteers=("ada",)))
        cut_out(good, "ada", hit, hit + 2.0)
    assert verdict.throughput(good).good
    assert sum(ended - began for began, ended in good.present("ada")) == pytest.approx(400.0 - 10 * 10.0 - 5.0)


def test_a_volunteer_that_hangs_before_a_fault_hits_it_has_hung(good):
    good.accidents.append(Accident(kind="stop", began=1250.0, ended=1255.0, volunteers=("ada",)))
    cut_out(good, "ada", 1200.0, 1256.0)
    assert len(verdict.hangs(good)) == 1


def test_an_update_alone_beside_others_counts_for_nothing(good):
    epochs = good.epochs["ada"]
    alone = {"senders": 1, "others": 2, "update_samples": 50.0, "fault": "no group"}
    good.epochs["ada"] = [replace(e, **alone) if 1100 < e.time < 1250 else e for e in epochs]
    assert "throughput of the survivors" in wrong(good)


def test_a_volunteer_without_an_epoch_hangs(good):
    cut_out(good, "alan", 1200.0, 1260.0)
    assert any("alan ended no epoch for 65 s from 3:15" in hang for hang in verdict.hangs(good))


def test_a_newcomer_that_never_trains_hangs(good):
    good.lives["ada"].append(Life(began=1300.0, ended=ENDED))
    (hang,) = verdict.hangs(good)
    assert "ada" in hang and "100 s" in hang


@pytest.mark.parametrize("kind", ["stop", "cut"])
def test_a_newcomer_that_sleeps_or_has_no_link_meanwhile_has_as_much_more_time(good, kind):
    good.lives["ada"].append(Life(began=1200.0, ended=ENDED, joined=1275.0))
    assert len(verdict.hangs(good)) == 1
    good.accidents.append(Accident(kind=kind, began=1210.0, ended=1240.0, volunteers=("ada",)))
    assert verdict.hangs(good) == []


def test_volunteers_that_come_back_have_as_much_more_time_as_nobody_had_the_weights(good):
    for name in good.lives:
        good.lives[name] = [replace(good.lives[name][0], ended=1200.0), Life(began=1205.0, ended=ENDED, joined=1275.0)]
        cut_out(good, name, 1200.0, 1280.0)
    assert len([hang for hang in verdict.hangs(good) if "was started" in hang]) == 3
    good.accidents.append(Accident(kind="reboot", began=1190.0, ended=1220.0))
    assert not [hang for hang in verdict.hangs(good) if "was started" in hang]


def test_a_server_that_is_down_keeps_no_newcomer_from_a_run_that_others_train(good):
    good.lives["ada"].append(Life(began=1205.0, ended=ENDED, joined=1275.0))
    good.accidents.append(Accident(kind="reboot", began=1190.0, ended=1220.0))
    assert len(verdict.hangs(good)) == 1


def test_a_volunteer_that_is_left_alone_does_not_hang(good):
    for name in ("ada", "grace"):
        good.lives[name] = [replace(good.lives[name][0], ended=1200.0)]
        cut_out(good, name, 1200.0, ENDED)
    cut_out(good, "alan", 1200.0, ENDED)
    assert verdict.hangs(good) == []


@pytest.mark.parametrize("fault", [None, "a peer was lost"])
def test_a_sum_that_is_not_that_of_its_senders_is_wrong_unless_it_is_said_to_be_torn(good, fault):
    good.epochs["ada"][40] = replace(good.epochs["ada"][40], update_samples=149.0, fault=fault)
    assert len(verdict.wrong_sums(good)) == (fault is None)
    assert ("rounds that were wrong in silence" in wrong(good)) == (fault is None)


def test_a_sender_that_reported_nothing_may_have_had_any_number_of_samples(good):
    del good.epochs["alan"][40]
    good.epochs["ada"][40] = replace(good.epochs["ada"][40], update_samples=123.0)
    assert verdict.wrong_sums(good) == []
    good.epochs["ada"][40] = replace(good.epochs["ada"][40], update_samples=100.0)  # the third had none
    assert len(verdict.wrong_sums(good)) == 1


def test_weights_that_differ_in_silence_are_wrong(good):
    weights = good.weights["alan"]
    good.weights["alan"] = [replace(w, values=(1.0, 2.0, 1.1 * w.updates)) if w.updates > 50 else w for w in weights]
    assert len(verdict.weights_apart(good)) == 2  # with each of the others
    good.weights["alan"] = [replace(w, drifted=True) for w in good.weights["alan"]]
    assert verdict.weights_apart(good) == []


def test_a_second_beginning_is_a_split(good):
    good.lives["ada"].append(Life(began=1300.0, joined=1320.0, ended=ENDED, epoch=0, state="fresh weights"))
    assert any("ada began with fresh weights at 5:20" in split for split in verdict.splits(good))


def test_two_lineages_of_volunteers_or_in_the_history_are_a_split(good):
    good.lives["ada"] = [replace(good.lives["ada"][0], lineage="b" * 16)]
    good.lineages = 2
    assert len(verdict.splits(good)) == 2


def test_epochs_that_stay_apart_are_a_split(good):
    good.epochs["ada"] = [replace(e, epoch=e.epoch + 10 * (1150 < e.time < 1230)) for e in good.epochs["ada"]]
    assert [split for split in verdict.splits(good) if "epochs have been apart since 2:3" in split]
    good.epochs["ada"] = [replace(e, epoch=e.epoch - 10 * (1150 < e.time < 1180)) for e in good.epochs["ada"]]
    good.epochs["ada"] = [replace(e, epoch=n) for n, e in enumerate(good.epochs["ada"], 1)]
    assert verdict.splits(good) == []


def test_updates_alone_for_a_minute_are_a_split(good):
    good.epochs["ada"] = [replace(e, senders=1 if 1200 < e.time < 1280 else 3) for e in good.epochs["ada"]]
    assert len(verdict.splits(good)) == 1
    assert "updates alone" in verdict.splits(good)[0]


def test_the_history_must_have_each_epoch_once(good):
    del good.history[50]
    good.history[51] = 151
    assert wrong(good) == {"epochs that the history lacks", "epochs that it counts twice"}


def test_epochs_that_all_have_gone_back_behind_are_not_lacking(good):
    """Those that were a part of the checkpoint are; and so is one that was done after the return."""
    good.accidents.append(Accident(kind="everyone", began=1202.0, ended=1210.0, volunteers=NAMES))
    for name in NAMES:
        back = Life(began=1210.0, joined=1220.0, ended=ENDED, epoch=38, state="the checkpoint epoch-000038")
        good.lives[name] = [replace(good.lives[name][0], ended=1202.0), back]
    last = max(epoch.epoch for epoch in good.epochs["ada"] if epoch.time < 1202.0)
    for epoch in (38, last, last + 1):
        del good.history[epoch]
    assert last > 38
    assert [text.split(",")[0] for text in verdict.epochs_lost(good)] == ["epoch 38", f"epoch {last + 1}"]


def test_a_total_of_more_samples_than_were_logged_is_counted_twice(good):
    good.totals["ada"] += 1
    assert wrong(good) == {"epochs that it counts twice"}


def test_all_that_come_back_must_have_the_newest_checkpoint(good):
    good.accidents.append(Accident(kind="everyone", began=1200.0, ended=1210.0, volunteers=NAMES))
    for name in NAMES:
        back = Life(began=1210.0, joined=1220.0, ended=ENDED, epoch=35, state="the checkpoint epoch-000035")
        good.lives[name] = [replace(good.lives[name][0], ended=1200.0), back]
    assert verdict.weights_lost(good) == []
    good.lives["ada"][1] = replace(good.lives["ada"][1], epoch=34)
    assert len(verdict.weights_lost(good)) == 1


def test_programs_that_give_up_and_files_that_stay_are_wrong(good):
    good.gave_up.append("the monitor ended by itself with code 1")
    good.remains.append("/dev/shm/torch_1_2")
    assert wrong(good) == {"programs that gave up", "processes and files left behind"}


def test_a_volunteer_without_a_link_may_find_no_run_and_say_so():
    accidents = [Accident(kind="cut", began=1000.0, ended=1020.0, volunteers=("ada",))]
    ended = {"event": "ended", "name": "ada", "time": 1010.0, "code": 1}
    said = {"said": "Error: No initial peer answers (/ip4/10.0.0.1: No route to host)."}
    assert _gave_up([ended | said], accidents) == []
    assert len(_gave_up([ended | said | {"time": 1040.0}], accidents)) == 1
    assert len(_gave_up([ended | said | {"name": "grace"}], accidents)) == 1
    assert len(_gave_up([ended | {"said": "Error: the clock is 300 s ahead."}], accidents)) == 1
    assert len(_gave_up([ended | {"said": "Traceback: No initial peer answers"}], accidents)) == 1
