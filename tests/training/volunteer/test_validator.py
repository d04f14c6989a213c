"""Checks of work: honest peers pass, peers that compute nothing fail, with a real model and real shards."""

import json
import random
from dataclasses import replace

import pytest
import torch

from tests.random_shards import write_shards
from training.compute.micro_batches import MicroBatches
from training.config import load_recipe
from training.data.store.sets import open_shards
from training.data.stream.order import Place
from training.data.stream.stream import SampleStream
from training.swarm.defence.clipping import Clipping, centered_clip
from training.swarm.round.pipe import Shown
from training.swarm.work import Declared, Presence, alike, noise_of, presence, spans_of
from training.task import task_of
from training.trust.server.policy import FAILING_EVIDENCE
from training.volunteer.validator import EPOCHS_BETWEEN, UNCHECKED, Check, Record, Validator

MANY, SAMPLES, PEERS = 20_000, 24, ("ada", "alan", "grace", "mallory")
"""So many samples that no two peers have the same ones in their gradients; those of a peer in an epoch; and who."""
SMALL = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "head_dim": 16, "shared_groups": None, "image_grid": 4}
MOMENTUM = 0.9
CLIPPING = Clipping(radius=1.0, iterations=5)


def small_run():
    run = load_recipe("demo")
    model = run.model.model_copy(update=SMALL | {"image_vocab_size": 64, "attention_cycle": ("row", "column")})
    return run.model_copy(update={"model": model})


class Swarm:
    """Peers of one process that compute the gradients of their samples; ada is a validator.

    The data is random, so there is nothing to learn and the gradients of samples are mostly noise, as later in a run.
    """

    def __init__(self, folder, *, momentum=0.0, share=0.5):
        run = small_run()
        task = task_of(run)
        torch.manual_seed(0)
        self.model, self.momentum = task.build_model(), momentum
        samples = task.samples(open_shards(write_shards(folder / "shards", run, MANY), "train", kind=task.kind))
        self.streams = {
            name: SampleStream(samples, place=Place(seed=seed), micro_batch_size=SAMPLES, tell=print)
            for seed, name in enumerate(PEERS)
        }
        self.order = samples.order.digest
        self.groupmates = PEERS[1:]
        self.inspected, self.suspended, self.reports, self.told, self.checked = "", [], [], [], []
        self.parameters = list(self.model.parameters())
        self.micro_batches = MicroBatches(
            self.model, micro_batch_size=SAMPLES, activation_budget_bytes=None, precision="float32", tell=print
        )
        self.validator = Validator(
            self,
            parameters=self.parameters,
            micro_batches=self.micro_batches,
            read=self.streams["ada"].one,
            order=self.order,
            set_samples=MANY,
            own_seed=0,
            momentum=momentum,
            share=share,
            is_delayed=False,
            folder=folder / "evidence",
            report=lambda peer, told: self.reports.append((peer, told)),
            tell=self.told.append,
            log=lambda event, **facts: self.checked.append(facts["peer"]),
            chance=random.Random(0),
        )
        self.sums = {name: [torch.zeros(self.size), 0.0] for name in PEERS}
        self.epoch = 0

    @property
    def size(self):
        return sum(parameter.numel() for parameter in self.parameters)

    def inspect(self, peer):
        self.inspected = peer

    def suspend(self, peer, deed):
        self.suspended.append(peer)
        self.groupmates = tuple(name for name in self.groupmates if name != peer)

    def close(self):
        for stream in self.streams.values():
            stream.close()

    def gradient_of(self, name):
        """What a peer sends, and what it declares."""
        batch = next(self.streams[name])
        if name == "ada":
            self.validator.note_batch(batch)
        list(self.micro_batches.gradients_of(batch))
        mean = torch.cat([parameter.grad.flatten() for parameter in self.parameters])
        self.model.zero_grad()
        total, mass = self.sums[name]
        total, mass = self.momentum * total + SAMPLES * mean, self.momentum * mass + SAMPLES
        self.sums[name] = [total, mass]
        seed = self.streams[name].place.seed
        spans = spans_of(self.streams[name].numbers)
        return total / mass, Declared(order=self.order, seed=seed, spans=spans, mass=mass)

    def run_epoch(self, cheat):
        """`cheat` makes what mallory sends from what all would send."""
        sent = {name: self.gradient_of(name) for name in PEERS}
        vectors, declared = ({name: pair[number] for name, pair in sent.items()} for number in range(2))
        vectors["mallory"], declared["mallory"] = cheat(vectors, declared)
        self.validator.end_epoch(self.epoch, len(PEERS) * SAMPLES)
        if (peer := self.inspected) in self.groupmates:
            rows = list(vectors.values())
            average = centered_clip(rows, [SAMPLES] * len(rows), CLIPPING)
            copies = tuple(PEERS[number] for number in alike(rows, average, PEERS.index(peer)))
            packed = declared[peer].packed() if declared[peer] is not None else b""
            for begin in (self.size // 8, self.size // 2):  # two parts of an all-reduce
                part = slice(begin, begin + self.size // 4)
                noise = noise_of([row[part] for row in rows], [SAMPLES] * len(rows), 0, PEERS.index(peer))
                facts = {"declared": packed, "weight": SAMPLES, "begin": begin, "copies": copies, "proof": "key, words"}
                facts["noise"] = noise
                shown = {"values": vectors[peer][part], "asker": vectors["ada"][part]}
                self.validator.take(Shown(peer=peer, group_id=b"group", **shown, **facts))
        self.inspected = ""
        with torch.no_grad():
            update = torch.stack([vectors[name] for name in PEERS[:3]]).mean(0)
            torch.nn.utils.vector_to_parameters(
                torch.nn.utils.parameters_to_vector(self.parameters) - 0.05 * update, self.parameters
            )
        self.epoch += 1


def honest(vectors, declared):
    return vectors["mallory"], declared["mallory"]


def noise(vectors, declared):
    """As long as a real one."""
    own = vectors["mallory"]
    return torch.randn(own.shape) * own.norm() / own.numel() ** 0.5, declared["mallory"]


def large_noise(vectors, declared):
    """Its share is uncertain, but no mean of so many samples is so noisy."""
    return 20 * noise(vectors, declared)[0], declared["mallory"]


def copied(vectors, declared):
    """Of another peer, with some noise and another length."""
    own = vectors["alan"]
    return 0.9 * own + 0.1 * torch.randn(own.shape) * own.norm() / own.numel() ** 0.5, declared["mallory"]


def average_of_all(vectors, declared):
    """What it gets for nothing, as a reducer or from the round before."""
    return torch.stack([vectors[name] for name in PEERS[:3]]).mean(0), declared["mallory"]


def reversed_sign(vectors, declared):
    return -vectors["mallory"], declared["mallory"]


def huge(vectors, declared):
    return 1000 * vectors["mallory"], declared["mallory"]


def boasting(vectors, declared):
    """What it has sent is nothing, and it says that it was little of very much."""
    return noise(vectors, declared)[0], replace(declared["mallory"], mass=1e6)


def silent(vectors, declared):
    """It declares nothing."""
    return vectors["mallory"], None


def only_some(vectors, declared):
    """It names fewer samples than it claims."""
    one = declared["mallory"]
    (begin, _), *_ = one.spans
    return vectors["mallory"], replace(one, spans=((begin, begin + SAMPLES // 3),))


def endless(vectors, declared):
    """It names more samples than fit into any memory."""
    return noise(vectors, declared)[0], replace(declared["mallory"], spans=((0, 1 << 59),))


def of_other_shards(vectors, declared):
    return vectors["mallory"], replace(declared["mallory"], order="0" * 16)


def again(vectors, declared):
    """What it has sent once, with what it has declared then."""
    if not KEPT:
        KEPT.extend((vectors["mallory"], declared["mallory"]))
    return tuple(KEPT)


def no_mass(vectors, declared):
    return vectors["mallory"], replace(declared["mallory"], mass=1e-200)


KEPT = []
UNCHECKABLE = [boasting, silent, only_some, endless, of_other_shards, no_mass, again]


@pytest.fixture
def swarm(tmp_path, request):
    KEPT.clear()
    found = Swarm(tmp_path, **getattr(request, "param", {}))
    yield found
    found.close()


@pytest.mark.parametrize("swarm", [{}, {"momentum": MOMENTUM}], ids=["mean", "momentum"], indirect=True)
def test_honest_peers_pass(swarm):
    for _ in range(60):
        swarm.run_epoch(honest)
    checks = [check for record in swarm.validator.records.values() for check in record.checks]
    assert len(checks) == len(swarm.checked) > 12 and all(check.samples for check in checks)
    assert not swarm.suspended and not swarm.reports
    assert min(record.evidence for record in swarm.validator.records.values()) > FAILING_EVIDENCE / 2
    assert 0.5 < sum(check.share for check in checks) / len(checks) < 1.5


@pytest.mark.parametrize("cheat", [noise, large_noise, copied, average_of_all, reversed_sign, huge, *UNCHECKABLE])
def test_who_computes_nothing_that_it_declares_fails(swarm, tmp_path, cheat):
    for _ in range(EPOCHS_BETWEEN * 60):
        swarm.run_epoch(cheat)
        if swarm.suspended:
            break
    assert swarm.suspended == ["mallory"]
    kept = json.loads((tmp_path / "evidence" / "mallory.json").read_text())
    assert len(kept["checks"]) >= 4 and kept["checks"][0]["proof"]
    if cheat in UNCHECKABLE:  # it may be that its link to the shards is down: nobody else hears of it
        assert not swarm.reports and "declares no samples that this peer can check" in swarm.told[-1]
        return
    ((peer, told),) = swarm.reports
    assert peer == "mallory" and json.loads(json.dumps(told, allow_nan=False)) == told
    assert len(told["checks"]) == len(kept["checks"])
    if cheat is copied:
        assert "alan" in told["copied_from"]


def test_who_comes_back_is_checked_on(swarm):
    for _ in range(EPOCHS_BETWEEN * 60):
        swarm.run_epoch(noise)
        if len(swarm.suspended) == 2:
            break
        swarm.groupmates = PEERS[1:]
    assert swarm.suspended == ["mallory", "mallory"]


def test_in_a_set_that_is_too_small_nobody_is_checked(swarm):
    """What the validator draws besides would be in the peer's gradient, too."""
    swarm.validator._set_samples = 4 * SAMPLES
    for _ in range(20):
        swarm.run_epoch(noise)
    assert not swarm.checked and not swarm.suspended


def test_a_weight_that_is_no_number_stops_no_checks(swarm):
    for samples in (float("nan"), -1e9, float("inf")):
        swarm.validator.end_epoch(0, samples)
    for _ in range(8):
        swarm.run_epoch(honest)
    assert swarm.checked


def test_a_member_that_claims_next_to_nothing_makes_nobody_look_noisy():
    values = torch.Generator().manual_seed(0)
    vectors = [torch.randn(1000, generator=values) for _ in range(4)]
    for claimed in (1e-6, 1.0, 64.0, 1e9):
        assert noise_of(vectors, [64.0, 64.0, 64.0, claimed], 0, 1) < 3
    assert noise_of([vectors[0], 20 * vectors[1], *vectors[2:]], [64.0] * 4, 0, 1) > 100


@pytest.mark.parametrize("swarm", [{"share": 0.02}], indirect=True)
def test_checks_take_no_more_than_their_share(swarm):
    epochs = 60
    for _ in range(epochs):
        swarm.run_epoch(honest)
    assert 0 < swarm.validator.spent <= 0.02 * epochs * len(PEERS) * SAMPLES


def test_evidence_is_that_of_two_normal_distributions():
    """Against `torch.distributions`."""
    for share, error in ((0.0, 0.5), (0.4, 0.3), (1.0, 0.8)):
        usual, nothing = (torch.distributions.Normal(mean, error) for mean in (0.8, 0.0))
        ratio = usual.log_prob(torch.tensor(share)) - nothing.log_prob(torch.tensor(share))
        assert Presence(share, error).evidence == pytest.approx(float(ratio), abs=1e-5)


def test_one_check_decides_nothing():
    for share in (-1000.0, 1000.0, float("nan")):
        assert Presence(share, 0.1).evidence == -3
    assert Presence(0.0, 0.0).evidence == Presence(1e-202, 1e-202).evidence == -3
    assert Presence(1.0, 0.01).evidence == 3
    record = Record()
    facts = {"epoch": 1, "samples": 8, "share": 0.0, "error": 0.1, "evidence": -3.0}
    assert [record.add(Check(**facts)) for _ in range(6)] == [False, False, False, True, False, True]


@pytest.mark.parametrize(
    ("possible", "impossible", "caught"),
    [
        ([-3.0, -3.0], 0, True),
        ([-3.0, -3.0], 3, True),
        ([3.0, 2.0, 3.0, 3.0, 2.0], 30, False),  # it was honest until its link to the shards broke
        ([-0.2, 1.0, -0.1, 2.0], 24, False),
    ],
)
def test_who_is_caught_by_its_work_is_told_from_whom_nobody_can_check(possible, impossible, caught):
    record, facts = Record(), {"epoch": 1, "share": 0.0, "error": 0.1}
    for evidence in possible:
        record.add(Check(samples=8, evidence=evidence, **facts))
    for _ in range(impossible):
        record.add(Check(samples=0, evidence=UNCHECKED, **facts))
    assert record.is_caught == caught and len(record.failed) == sum(evidence < 0 for evidence in possible)


def test_the_share_of_a_mixture_is_what_was_mixed():
    """Half of a mean over the declared samples, half over others: a share of one half, within its error."""
    noise = torch.Generator().manual_seed(0)
    own, other, controls = (torch.randn(64, 4000, generator=noise) for _ in range(3))
    found = presence((own.mean(0) + other.mean(0)) / 2, torch.zeros(4000), own[:16], controls[:16], mass=64)
    assert abs(found.share - 0.5) < 3 * found.error < 0.3


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"x" * 10_000,
        Declared(order="a" * 16, seed=1, spans=((5, 5),), mass=1.0).packed(),
        Declared(order="a" * 16, seed=1, spans=((5, 9), (7, 8)), mass=1.0).packed(),
        Declared(order="a" * 16, seed=1, spans=(), mass=1.0).packed(),
        Declared(order="a" * 16, seed=-1, spans=((5, 9),), mass=1.0).packed(),
        Declared(order="a" * 16, seed=1, spans=((5, 1 << 61),), mass=1.0).packed(),
        Declared(order="a" * 16, seed=1, spans=((5, 9),), mass=float("nan")).packed(),
        Declared(order="a" * 14, seed=1, spans=((5, 9),), mass=1.0).packed(),
    ],
)
def test_malformed_declarations_declare_nothing(packed):
    assert Declared.read(packed) is None


def test_a_declaration_is_read_as_it_was_made():
    declared = Declared(order="0123456789abcdef", seed=7, spans=((0, 9), (12, 13)), mass=81.5)
    assert Declared.read(declared.packed()) == declared and declared.samples == 10
