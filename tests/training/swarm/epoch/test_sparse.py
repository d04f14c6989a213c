"""Sparse means: what a message costs and says, what a peer keeps for later, and what all peers of a group agree on."""

import math
import struct
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from calculator.swarm.exchange import SPARSE_BLOCK, sparse_bytes
from calculator.swarm.sparse import coded, exchanged, kept_of
from tests.training.swarm.played import averaged
from training.swarm.config import SwarmConfig
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.epoch.sparse import WEIGHT, SparseMean
from training.swarm.epoch.sparse_code import LARGE, LARGEST_SCALE, SMALL, BlockCode, SparseCode
from training.swarm.round.reducer import WeightedMean

SHAPES = [torch.Size(shape) for shape in ((300, 70), (4096,), (101,), (3, 2), ())]
KEPT = range(8, 1025)


def tensors_of(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def encoded(code, tensors):
    return code.encode(lambda piece: piece.of(tensors))


def decoded(code, encoded, shapes=SHAPES):
    """The tensors that a code stands for, with zeros where it has no values."""
    tensors = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    for piece, places, values in code.decode(encoded):
        piece.of(tensors)[places] = values.double()
    return tensors


# -- the code ----------------------------------------------------------------------------------------------------------


def bfloat16(number):
    """Rounded to the nearest, ties to even, as IEEE 754 has it."""
    bits = struct.unpack("<I", struct.pack("<f", number))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16))[0]


def slow_block(values, kept):
    """The values of a block as others see them, by the definition: place -> value."""
    chosen = sorted(range(len(values)), key=lambda place: -abs(values[place]))[:kept]
    scale = bfloat16(math.fsum(abs(values[place]) for place in chosen) / kept)
    level = {place: LARGE if abs(values[place]) >= scale * (SMALL + LARGE) / 2 else SMALL for place in chosen}
    return {place: math.copysign(level[place] * scale, values[place]) for place in chosen}


def slow_decode(raw, values, kept):
    """Reads the bits of a block one after the other, as the module describes them."""
    low = int(math.log2(values / kept))
    bits = [int(bit) for byte in raw for bit in f"{byte:08b}"]
    scale = struct.unpack("<f", b"\0\0" + raw[:2])[0]
    entries = [bits[16 + n * (low + 2) :][: low + 2] for n in range(kept)]
    begin = 16 + -(-kept * (low + 2) // 8) * 8
    found, bucket = {}, 0
    for bit in bits[begin : begin + kept + (values - 1 >> low) + 1]:
        if not bit:
            bucket += 1
            continue
        *place, is_negative, is_large = entries[len(found)]
        place = (bucket << low) + sum(one << n for n, one in enumerate(place))
        found[place] = scale * (LARGE if is_large else SMALL) * (-1 if is_negative else 1)
    return found


@pytest.mark.parametrize("values, kept", [(4096, 64), (4096, 8), (4096, 100), (1000, 16), (101, 2), (7, 1), (1, 1)])
def test_a_code_has_the_largest_values_of_each_block_as_a_slow_reference_has_them(values, kept):
    code = BlockCode(values, kept)
    blocks = torch.randn((3, values), generator=torch.Generator().manual_seed(values)) * 1e-5
    raw = code.encode(blocks)
    assert raw.shape == (3, code.bytes)
    places, found = code.decode(raw)
    for block, line, at, of in zip(blocks, raw, places, found, strict=True):
        expected = slow_block(block.tolist(), kept)
        assert dict(zip(at.tolist(), of.tolist(), strict=True)) == expected == coded(block.tolist(), kept)
        assert slow_decode(bytes(line.tolist()), values, kept) == expected


def test_a_code_of_tensors_is_that_of_their_blocks():
    code, tensors = SparseCode(SHAPES, 64), tensors_of(0)
    for tensor, found in zip(tensors, decoded(code, encoded(code, tensors)), strict=True):
        values, expected = tensor.flatten().tolist(), [0.0] * tensor.numel()
        for begin in range(0, len(values), SPARSE_BLOCK):
            block = values[begin : begin + SPARSE_BLOCK]
            for place, value in slow_block(block, math.ceil(len(block) / 64)).items():
                expected[begin + place] = value
        assert found.flatten().tolist() == expected


def test_places_take_at_most_a_tenth_more_than_their_entropy():
    """This holds for the paper's number and up to three times as many; a quarter of all values takes a quarter more."""
    metadata = SwarmConfig.model_fields["sparse_kept"].metadata
    assert [one.ge for one in metadata if hasattr(one, "ge")] == [min(KEPT)]  # all that a recipe may say
    assert [one.le for one in metadata if hasattr(one, "le")] == [max(KEPT)]
    for kept in KEPT:
        code = BlockCode(SPARSE_BLOCK, kept)
        entropy, places = math.log2(math.comb(SPARSE_BLOCK, kept)), 8 * code.bytes - 16 - 2 * kept
        assert entropy < places <= (1.1 if kept <= 200 else 1.25) * entropy + 14  # two fields are filled up to bytes
        assert code.bytes == sparse_bytes(SPARSE_BLOCK, kept)


def test_a_message_takes_at_most_a_quarter_of_a_bit_a_parameter():
    shapes = [torch.Size((1000, 1000)), torch.Size((1000,)), torch.Size((4096, 250))]
    mean = SparseMean(shapes, kept=SwarmConfig.model_fields["sparse_kept"].default)
    message = mean.pack([torch.randn(shape) for shape in shapes], 8.0)
    assert 8 * len(message) / sum(shape.numel() for shape in shapes) < 0.25


@pytest.mark.parametrize("fault", ["scale", "NaN", "negative scale", "count", "order", "twice", "outside"])
def test_a_block_that_no_peer_sends_is_refused(fault):
    code = BlockCode(1000, 2)  # 8 low bits and 2; four buckets, of which the last one is not full
    raw = code.encode(torch.nn.functional.one_hot(torch.tensor([[3, 700]]), 1000).sum(dim=1).float())
    assert code.decode(raw)[0].tolist() == [[3, 700]]
    line = bytearray(raw[0].tolist())
    if "scale" in fault or fault == "NaN":
        scale = {"scale": 2 * LARGEST_SCALE, "NaN": math.nan, "negative scale": -1.0}[fault]
        line[:2] = struct.pack("<f", scale)[2:]
    elif fault == "count":
        line[5] |= 0b01000000  # a third value in the buckets
    else:
        entries, buckets = {
            "order": ((700 - 512, 3), 0b11000000),  # both in the first bucket
            "twice": ((3, 3), 0b11000000),
            "outside": ((3, 255), 0b10001000),  # 3 * 256 + 255
        }[fault]
        bits = "".join(f"{place:08b}"[::-1] + "00" for place in entries)
        line[2:5], line[5] = int(bits.ljust(24, "0"), 2).to_bytes(3, "big"), buckets
    with pytest.raises(ValueError, match="block"):
        code.decode(torch.tensor([list(line)], dtype=torch.uint8))


# -- the mean ----------------------------------------------------------------------------------------------------------


@dataclass
class Exchange:
    """A group's exchange as one of its peers sees it; `others` are the messages of all others, by their names."""

    weight: float
    others: dict = field(default_factory=dict)
    fault: Exception | None = None
    travel = SimpleNamespace(reduction=WeightedMean(most_weight=1000.0))
    all_reduces = SimpleNamespace(peer_id="own")

    @property
    def contribution(self):
        return SimpleNamespace(weight=self.weight)

    async def gather(self, message):
        if self.fault is not None:
            raise self.fault
        return {name: self.others.get(name, message) for name in sorted({"own", *self.others})}, averaged().report


def average(mean, tensors, exchange):
    return wait_for_result(mean.average(tensors, None, exchange))


def new_mean():
    return SparseMean(SHAPES, kept=64)


def relative_error(found, expected):
    return float((found - expected).norm() / expected.norm())


def test_what_was_sent_and_what_is_left_are_what_was_given():
    mean = new_mean()
    given, sent = ([torch.zeros(shape, dtype=torch.float64) for shape in SHAPES] for _ in range(2))
    for number in range(6):
        tensors = tensors_of(number)
        given = [before + tensor.double() for before, tensor in zip(given, tensors, strict=True)]
        new = decoded(mean.code, mean.read(mean.pack(tensors, 8.0))[1])
        sent = [before + one for before, one in zip(sent, new, strict=True)]
        other = new_mean()
        average(mean, tensors, Exchange(8.0, {"other": other.pack(tensors_of(100 + number), 8.0)}))
    for whole, part, unsent in zip(given, sent, mean.unsent, strict=True):
        assert relative_error(part + unsent.double(), whole) < 1e-6
    assert float(mean.unsent[0].norm()) > 1  # much is left


def test_the_sites_exchanges_send_and_keep_the_same():
    """`calculator.swarm.sparse`, which the site's figures run, on one short block."""
    mean, unsent = SparseMean([torch.Size((256,))], kept=64), [0.0] * 256
    for number in range(20):
        values = torch.randn(256, generator=torch.Generator().manual_seed(number))
        (theirs,) = decoded(mean.code, mean.read(mean.pack([values], 8.0))[1], [torch.Size((256,))])
        sent, unsent = exchanged(values.tolist(), unsent, kept=kept_of(256, 64), decay=1.0)
        assert len(sent) == 4 and theirs.nonzero().flatten().tolist() == list(sent)
        assert theirs[list(sent)].tolist() == pytest.approx(list(sent.values()), rel=0.005)
        average(mean, [values], Exchange(8.0, {"other": mean.pack([torch.randn(256)], 8.0)}))
        assert mean.unsent[0].tolist() == pytest.approx(unsent, abs=0.02)


def test_all_peers_of_a_group_have_the_same_mean_to_the_last_bit_weighted_by_samples():
    weights = {"ada": 8.0, "bob": 24.0, "eve": 0.0, "own": 5000.0}  # the last counts as 1000
    means = {name: new_mean() for name in weights}
    given = {name: tensors_of(number) for number, name in enumerate(weights)}
    messages = {name: means[name].pack(given[name], weight) for name, weight in weights.items()}
    results, reports = {}, {}
    for name in weights:
        exchange = Exchange(weights[name], messages)
        exchange.all_reduces = SimpleNamespace(peer_id=name)
        reports[name] = average(means[name], given[name], exchange)
        results[name] = given[name]
    sent = {name: decoded(means[name].code, messages[name][WEIGHT.size :]) for name in weights}
    for number in range(len(SHAPES)):
        expected = sum(min(weights[name], 1000) * sent[name][number] for name in weights) / 1032
        assert all(torch.equal(results[name][number], results["own"][number]) for name in weights)
        assert relative_error(results["own"][number].double(), expected) < 1e-6
    own = reports["bob"]
    assert (own.senders, own.weight, own.own_share, own.refused) == (3, 1032, pytest.approx(24 / 1032), ())
    assert not any(bool(unsent.any()) for unsent in means["eve"].unsent)  # it has sent nothing that counts


def test_an_exchange_that_fails_or_has_nobody_else_changes_nothing():
    mean, tensors = new_mean(), tensors_of(0)
    average(mean, tensors_of(1), Exchange(8.0, {"other": new_mean().pack(tensors_of(2), 8.0)}))
    before = [tensor.clone() for tensor in (*tensors, *mean.unsent)]
    with pytest.raises(ConnectionError):
        average(mean, tensors, Exchange(8.0, fault=ConnectionError()))
    average(mean, tensors, Exchange(8.0))
    assert all(torch.equal(*both) for both in zip((*tensors, *mean.unsent), before, strict=True))


@pytest.mark.parametrize("fault", ["zeros", "weight", "length", "type"])
def test_a_message_that_cannot_be_read_is_left_out_by_all_and_its_sender_is_named(fault):
    mean, tensors = new_mean(), tensors_of(0)
    good, bad = new_mean().pack(tensors_of(1), 8.0), new_mean().pack(tensors_of(2), 8.0)
    if fault == "zeros":
        bad[WEIGHT.size :] = 0
    elif fault == "weight":
        bad[: WEIGHT.size] = torch.tensor(list(WEIGHT.pack(math.inf)), dtype=torch.uint8)
    else:
        bad = bad[:-1] if fault == "length" else bad.float()
    report = average(mean, tensors, Exchange(8.0, {"bad": bad, "good": good}))
    assert report.refused == ("bad",) and report.senders == 2 and report.weight == 16
    alone, same = new_mean(), tensors_of(0)
    average(alone, same, Exchange(8.0, {"good": good}))
    assert all(torch.equal(*both) for both in zip(tensors, same, strict=True))


def test_all_that_is_given_arrives_in_the_end():
    """A peer gives the same tensors each time: the mean of its messages approaches them, though each has few values."""
    mean, total, rounds = new_mean(), [torch.zeros(shape) for shape in SHAPES], 200
    for _ in range(rounds):
        tensors = tensors_of(0)
        average(mean, tensors, Exchange(8.0, {"other": new_mean().pack(tensors_of(1), 0.0)}))
        total = [one + tensor for one, tensor in zip(total, tensors, strict=True)]
    for one, given in zip(total, tensors_of(0), strict=True):
        assert relative_error(one / rounds, given) < 0.3
