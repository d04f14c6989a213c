"""A peer computes or pauses as its volunteer wants, by the hours, and by what the system measures."""

import time
from types import SimpleNamespace

import psutil
import pytest

from training.errors import BadInput
from training.volunteer.manners import sensors
from training.volunteer.manners.hours import Hours
from training.volunteer.manners.manners import LOOK_SECONDS, SNOOZE_SECONDS, Manners
from training.volunteer.manners.sensors import COOL_DEGREES, NEAR_DEGREES, RULES, is_in_use, rules_for


class Clock:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_pause_lasts_until_the_volunteer_ends_it(clock):
    manners = Manners(clock=clock)
    assert manners.rest() is None
    manners.switch()
    clock.now += 10 * SNOOZE_SECONDS
    assert manners.rest().startswith("as you wish")
    manners.switch()
    assert manners.rest() is None


def test_a_snooze_ends_by_itself_or_by_the_key_that_pauses(clock):
    manners = Manners(clock=clock)
    manners.snooze()
    ends = time.strftime("%H:%M", time.localtime(clock.now + SNOOZE_SECONDS))
    assert manners.rest() == f"snoozing until {ends}"
    clock.now += SNOOZE_SECONDS
    assert manners.rest() is None
    manners.snooze()
    manners.switch()
    assert manners.rest() is None


def test_rules_hold_while_the_volunteer_wants_to_go_on(clock):
    why = ["on battery"]
    manners = Manners([lambda: None, lambda: why[0]], clock=clock)
    manners.pause()
    assert manners.rest().startswith("as you wish")
    manners.resume()
    assert manners.rest() == "on battery"
    why[0] = None
    clock.now += LOOK_SECONDS
    assert manners.rest() is None


def test_rules_are_looked_at_every_few_seconds_only(clock):
    looks = []
    manners = Manners([lambda: looks.append(clock.now)], clock=clock)
    for _ in range(10 * int(LOOK_SECONDS)):
        manners.rest()
        clock.now += 0.1
    assert len(looks) == 1
    clock.now -= 3600  # the clock was set back
    manners.rest()
    assert len(looks) == 2


@pytest.mark.parametrize(
    "text, begin, end", [("22-8", 22 * 60, 8 * 60), ("9:30 - 17", 9 * 60 + 30, 17 * 60), ("18-24", 18 * 60, 0)]
)
def test_hours_are_read(text, begin, end):
    assert Hours.read(text) == Hours(begin=begin, end=end)


@pytest.mark.parametrize("text", ["", "22", "22-", "25-8", "8-9:60", "8-8", "0-24", "-8-9", "22-8-9", "ten-eleven"])
def test_hours_that_are_none_are_refused(text):
    with pytest.raises(BadInput, match="--hours"):
        Hours.read(text)


@pytest.mark.parametrize("hours, computing", [("22-8", {22, 23, *range(8)}), ("9-17", set(range(9, 17)))])
def test_a_peer_computes_within_its_hours(hours, computing):
    for hour in range(24):
        now = time.struct_time((2026, 7, 1, hour, 15, 0, 2, 182, 1))
        why = Hours.read(hours).rule(lambda now=now: now)()
        assert (why is None) == (hour in computing)
        assert why is None or why.endswith(f"until {int(hours.split('-')[0]):02}:00")


@pytest.mark.parametrize("plugged_in, rests", [(True, False), (None, False), (False, True)])
def test_a_peer_rests_on_battery(plugged_in, rests):
    assert bool(sensors.on_battery(lambda: plugged_in)()) == rests


def test_a_hot_machine_cools_down_before_the_peer_goes_on():
    left = [NEAR_DEGREES + 1]
    rule = sensors.when_hot(lambda: left[0])
    assert rule() is None
    left[0] = NEAR_DEGREES - 1
    assert rule() == "hot (4 degrees below the limit), until it has cooled down"
    left[0] = COOL_DEGREES - 1
    assert rule() is not None
    left[0] = COOL_DEGREES
    assert rule() is None
    left[0] = COOL_DEGREES - 1
    assert rule() is None
    left[0] = None
    assert rule() is None


def test_sensors_are_read_as_the_system_gives_them(monkeypatch):
    def sensor(current, high, critical):
        return SimpleNamespace(label="", current=current, high=high, critical=critical)

    found = {
        "coretemp": [sensor(88.0, 80.0, 100.0), sensor(91.0, 80.0, 100.0)],
        "nvme": [sensor(60.0, 65261.85, 65261.85)],
        "acpitz": [sensor(40.0, None, None)],
    }
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: found, raising=False)
    assert sensors.degrees_left() == 9.0
    found.pop("coretemp")
    assert sensors.degrees_left() is None
    monkeypatch.setattr(psutil, "sensors_battery", lambda: SimpleNamespace(power_plugged=False), raising=False)
    assert sensors.is_plugged_in() is False
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    assert sensors.is_plugged_in() is None


def test_a_system_without_sensors_stops_no_peer(monkeypatch):
    monkeypatch.delattr(psutil, "sensors_temperatures", raising=False)
    monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    assert [rule() for rule in rules_for("battery,heat")] == [None, None]


@pytest.mark.parametrize(
    "platform, printed, found",
    [
        ("linux", "IdleHint=no\n", True),
        ("linux", "IdleHint=yes\n", False),
        ("linux", "", None),
        ("darwin", '    | |   "HIDIdleTime" = 2000000000\n', True),
        ("darwin", '    | |   "HIDIdleTime" = 400000000000\n', False),
        ("darwin", "", None),
    ],
)
def test_the_system_tells_whether_the_computer_is_in_use(platform, printed, found):
    assert is_in_use(platform, lambda command: printed) is found


def test_a_peer_rests_while_the_computer_is_in_use():
    used = [True]
    rule = sensors.while_in_use(lambda: used[0])
    assert rule().startswith("this computer is in use")
    used[0] = False
    assert rule() is None
    with pytest.raises(BadInput, match="does not tell"):
        sensors.while_in_use(lambda: None)


def test_what_a_peer_pauses_for_is_chosen(monkeypatch):
    monkeypatch.setattr(sensors, "is_in_use", lambda: True)
    assert rules_for("never") == [] and len(rules_for("heat, battery")) == 2
    for wrong in ("", "rain", "never,heat"):
        with pytest.raises(BadInput, match=f"give some of {', '.join(RULES)}, or never"):
            rules_for(wrong)
