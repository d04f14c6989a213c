"""Each reader of what others send refuses malformed inputs by the error that it documents, and takes no long time.

The inputs are drawn by hypothesis, which shrinks one that breaks a reader: bytes, valid inputs with other bytes in some
places, and valid messages, JSON and recipes of which one value is another.
`benchmarks/attacks/attacks.py malformed` tries many more, and `nox -s fuzz` lets coverage guide them.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.attacks.message_readers import READERS, Reader
from training.swarm.engine import engine

engine.prepare()

HANG_SECONDS = 30
"""Seconds of computing, so that other programs on the machine do not count."""
FEW, MANY = 25, 60
SLOW = ("recipes", "manifests of shards", "rows of shards", "weights of checkpoints", "facts of checkpoints")
"""Readers that take milliseconds for an input; the others take less."""
ACCEPTING = {
    "records of the DHT": 14,
    "accusations": 2,
    "requests for parts": 2,
    "shown parts": 2,
    "words of leaders": 1,
}
ACCEPTING |= {"facts of states": 1}
"""Readers that say whether they have taken an input, and how many of their first valid inputs they take."""
JSON_READERS = ("manifests of shards", "facts of checkpoints", "indexes of checkpoints", "reports of validators")
TEXTS = st.text(max_size=12) | st.sampled_from(["", "../x", "\x00", "\u202e", "[/]", "nan", "1e999", "9" * 30])
NUMBERS = st.integers() | st.floats() | st.sampled_from([-1, 2**31, 2**63, 2**64, 10**30, True])
VALUES = st.recursive(
    st.none() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
LITERALS = ["-1", "0", "1e400", "nan", '""', '"\\u202e"', "[]", "[[[]]]", "{}", "true", "9" * 30, "9" * 5000, "x", "'"]
TOML = st.sampled_from(LITERALS)


@pytest.fixture(scope="module")
def made() -> dict[str, Reader]:
    """Readers that were made, by name: making some writes shards or a checkpoint."""
    return {}


def spliced(data: st.DataObject, seed: bytes) -> bytes:
    """A valid input with other bytes in some places."""
    raw = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw)))
        raw[place : place + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    return bytes(raw)


def with_another_value(data: st.DataObject, whole: object, values: st.SearchStrategy) -> object:
    """A copy of lists and dictionaries in each other, of which one part is another value, or is missing."""
    places = [whole] if isinstance(whole, list | dict) and whole else []
    if not places or data.draw(st.integers(0, 5)) == 0:
        return data.draw(values)
    key = data.draw(st.sampled_from(range(len(whole)) if isinstance(whole, list) else sorted(whole, key=str)))
    if isinstance(whole, list):
        return [*whole[:key], with_another_value(data, whole[key], values), *whole[key + 1 :]]
    if data.draw(st.integers(0, 5)) == 0:
        return {name: value for name, value in whole.items() if name != key}
    return {**whole, key: with_another_value(data, whole[key], values)}


def shaped(data: st.DataObject, name: str, seed: bytes) -> bytes | None:
    """An input in the form that the reader expects, with another value; None if the form is another one."""
    if name in JSON_READERS:
        return json.dumps(with_another_value(data, json.loads(seed), VALUES)).encode()
    if name == "recipes":
        lines = seed.decode().splitlines()
        place = data.draw(st.sampled_from([n for n, line in enumerate(lines) if re.match(r"\w+ = ", line)]))
        lines[place] = f"{lines[place].split(' = ')[0]} = {data.draw(TOML)}"
        return "\n".join(lines).encode()
    try:
        whole = msgpack.unpackb(seed, strict_map_key=False)
        return msgpack.packb(with_another_value(data, whole, VALUES), use_bin_type=True)
    except Exception:  # it is no msgpack, or an object that msgpack has no form for
        return None


@pytest.mark.parametrize("name", READERS)
def test_no_input_breaks_a_reader(made, name):
    reader = made.setdefault(name, READERS[name][0]())

    @settings(max_examples=FEW if name in SLOW else MANY, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def feed(data):
        seed = data.draw(st.sampled_from(list(reader.seeds)))
        kind = data.draw(st.integers(0, 2 if reader.make is None else 3))
        raw = shaped(data, name, seed) if kind == 0 else None
        if kind == 3:
            raw = reader.make(data.draw(st.randoms(use_true_random=False)))
        if raw is None:
            raw = data.draw(st.binary(max_size=200)) if kind == 1 else spliced(data, seed)
        began = time.process_time()
        with suppress(*reader.refuses):
            reader.read(raw)
        assert time.process_time() - began < HANG_SECONDS

    feed()


@pytest.mark.parametrize("name", READERS)
def test_each_reader_takes_its_valid_inputs(made, name):
    """Otherwise the test above would only try the first lines of a reader."""
    reader = made.setdefault(name, READERS[name][0]())
    found = [reader.read(seed) for seed in reader.seeds]
    assert name not in ACCEPTING or all(found[: ACCEPTING[name]])


def test_each_key_of_a_run_has_its_schema(made):
    """A record under a key that no schema knows is taken whatever it holds."""
    name = "records of the DHT"
    reader = made.setdefault(name, READERS[name][0]())
    assert {seed[0] for seed in reader.seeds} == set(range(6))
    for seed in reader.seeds[::2]:
        end = 4 + int.from_bytes(seed[2:4], "little")
        assert seed[1] and not reader.read(seed[:end] + msgpack.packb(7))
