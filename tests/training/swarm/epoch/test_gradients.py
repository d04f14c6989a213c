"""What a peer sends of its gradients: the mean over an epoch's samples, with momentum over those of earlier epochs."""

import pytest
import torch

from training.recipe import load_recipe
from training.swarm.epoch.gradients import GradientAverager
from training.swarm.epoch.strategies import Awaited
from training.swarm.round.pipe import AveragerSettings

MOMENTUM = 0.8
SHAPES = ((4, 3), (5,))


class Peer:
    """An averager without its process, and the parameters whose gradients it averages."""

    def __init__(self, momentum=MOMENTUM):
        self.parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        settings = AveragerSettings(prefix="test")
        self.averager = GradientAverager(self.parameters, dht=None, settings=settings, momentum=momentum, start=False)

    def compute(self, epoch, samples, *, spoil=False):
        """Micro-batches of an epoch; the sum of the gradients of all samples, as one vector."""
        total = torch.zeros(17)
        for number, size in enumerate(samples):
            gradient = torch.randn(17, generator=torch.Generator().manual_seed(100 * epoch + number))
            total += size * gradient
            if spoil:
                gradient[3] = torch.nan
            for parameter, values in zip(self.parameters, gradient.split([12, 5]), strict=True):
                parameter.grad = values.view(parameter.shape).clone()
            self.averager.add_gradients(size, epoch)
        return total

    def send(self):
        """What it sends, as one vector, and the samples that count."""
        samples = self.averager.load_mean()
        with self.averager.get_tensors() as tensors:
            return torch.cat([tensor.view(-1) for tensor in tensors]).clone(), samples


def test_without_momentum_a_peer_sends_the_mean_of_the_epoch_alone():
    peer = Peer(momentum=0.0)
    for epoch, samples in enumerate([[8], [4, 2], [1, 1, 1]]):
        total = peer.compute(epoch, samples)
        sent, count = peer.send()
        torch.testing.assert_close(sent, total / sum(samples))
        assert count == sum(samples)
        peer.averager.forget()  # as at the beginning of each epoch


def test_momentum_is_the_mean_over_all_samples_that_count_less_with_each_epoch():
    """Also of the first epoch, which is not shrunk as if there had been zeros before it."""
    peer, totals, counts = Peer(), [], []
    for epoch, samples in enumerate([[8], [4, 2], [1, 1, 1], [16]]):
        totals.append(peer.compute(epoch, samples))
        counts.append(sum(samples))
        sent, count = peer.send()
        decays = [MOMENTUM ** (epoch - earlier) for earlier in range(epoch + 1)]
        expected = sum(decay * total for decay, total in zip(decays, totals, strict=True))
        torch.testing.assert_close(sent, expected / sum(d * n for d, n in zip(decays, counts, strict=True)))
        assert count == counts[-1]  # its weight: the samples of this epoch
        peer.averager.forget()


def test_a_recipe_with_centered_clip_moves_momentum_from_the_optimizer_to_the_peers(monkeypatch):
    """Otherwise both would have it, or none."""
    monkeypatch.setattr(GradientAverager, "start", lambda self: None)
    model = torch.nn.Linear(3, 4)
    run = load_recipe("demo")
    for aggregation, betas, momentum in (("mean", (0.9, 0.96), 0.0), ("centered-clip", (0.0, 0.96), 0.9)):
        run = run.model_copy(update={"swarm": run.swarm.model_copy(update={"aggregation": aggregation})})
        master = Awaited.make_master(model, run)
        assert [group["betas"] for group in master.optimizer.param_groups] == [betas, betas]
        averager = Awaited.make_averager(master, run, dht=None, settings=AveragerSettings(prefix="test"))
        assert averager.momentum == momentum


def test_gradients_of_before_a_long_absence_hardly_count():
    peer = Peer()
    before = peer.compute(0, [8])
    peer.send()
    after = peer.compute(10, [8])
    sent, _ = peer.send()
    left = MOMENTUM**10
    torch.testing.assert_close(sent, (left * before + after) / (8 * left + 8))


@pytest.mark.parametrize("reason", ["weights of others", "not finite", "an earlier epoch"])
def test_momentum_begins_anew(reason):
    """When the peer goes on with other weights in mid-epoch, when a gradient spoils the sum, and after `restore`."""
    peer = Peer()
    peer.compute(5, [8])
    peer.send()
    peer.compute(6, [8], spoil=reason == "not finite")
    if reason == "weights of others":
        peer.averager.forget()
    else:
        sent, count = peer.send()
        assert (count == 0 and not sent.any()) == (reason == "not finite")
    epoch = 3 if reason == "an earlier epoch" else 7
    total = peer.compute(epoch, [4])
    sent, count = peer.send()
    torch.testing.assert_close(sent, total / 4)
    assert count == 4


def test_means_of_peers_with_momentum_differ_less():
    """That is what leaves less room to hide; with momentum b, the variance falls by (1 - b) / (1 + b)."""

    def spread(momentum):
        sent = []
        for number in range(8):
            peer = Peer(momentum)
            for epoch in range(20):
                peer.compute(1000 * number + epoch, [8])
                vector, _ = peer.send()
                peer.averager.forget()
            sent.append(vector)
        return float(torch.stack(sent).var(0).mean())

    assert spread(MOMENTUM) / spread(0.0) == pytest.approx((1 - MOMENTUM) / (1 + MOMENTUM), rel=0.5)
