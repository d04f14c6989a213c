"""Local updates: two real peers train by themselves, exchange how far they came, and agree on where to go on."""

from types import SimpleNamespace

import pytest
import torch

from tests.training.swarm.real_peers import scenarios
from tests.training.swarm.real_peers.scenarios import SIZES, run_with
from tests.training.swarm.real_peers.started_peers import meet, relative_error
from training.errors import BadInput
from training.recipe import parse_recipe, read_recipe
from training.swarm.epoch.strategies import strategy_of
from training.swarm.epoch.strategies.local_updates import LocalUpdates
from training.swarm.epoch.strategies.sparse import SparseUpdates


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """The exchanges that both peers took part in: for each peer its notes and its report."""
    (met,) = meet(tmp_path_factory.mktemp("peers"), [scenarios.train_locally])
    peers = [
        {entry["epoch"]: (entry, report) for entry in entries for report in epochs if report.epoch == entry["epoch"]}
        for entries, epochs in met.values()
    ]
    common = sorted(peers[0].keys() & peers[1].keys())
    assert len(common) >= 2, peers
    return [(peers[0][epoch], peers[1][epoch]) for epoch in common]


@pytest.mark.swarm
def test_common_weights_follow_nesterov_on_the_mean_of_both_peers_ways(rounds):
    """Recomputed in float64 from what each peer offered, weighted by its samples."""
    for both in rounds:
        weights = [report.samples for _, report in both]
        assert weights[0] > weights[1] > 0  # the slower one is not waited for
        for kind in range(len(SIZES)):
            ways = [notes["offered"][kind].double() for notes, _ in both]
            assert relative_error(ways[0], ways[1]) > 0.1
            mean = sum(weight * way for weight, way in zip(weights, ways, strict=True)) / sum(weights)
            for notes, _ in both:
                momentum = 0.9 * notes["momentum"][kind].double() + mean  # the paper's settings
                expected = 0.7 * (mean + 0.9 * momentum)
                step = notes["before"][kind].double() - notes["after"][kind].double()
                assert relative_error(step, expected) < 0.02, kind
                assert torch.equal(notes["model"][kind], notes["after"][kind])  # from here all go on
    assert float(rounds[-1][0][0]["momentum"][0].norm()) > 0


@pytest.mark.swarm
def test_peers_agree_on_the_common_weights(rounds):
    """But for what 8 bit may be off by: each exchange leaves both within 2 % of its step, as the test before this one
    has it, to either side; weights that were never averaged would be as far apart as the peers have gone."""
    for kind in range(len(SIZES)):
        begun = [notes["before"][kind].double() for notes, _ in rounds[0]]
        ended = [notes["after"][kind].double() for notes, _ in rounds[-1]]
        steps = sum(float((notes["after"][kind] - notes["before"][kind]).norm()) for (notes, _), _ in rounds)
        apart = float(((ended[0] - ended[1]) - (begun[0] - begun[1])).norm())
        assert apart < 2 * 0.02 * steps, kind


@pytest.mark.swarm
def test_an_exchange_takes_as_many_bytes_as_a_synchronous_epoch(rounds):
    """One byte a value both ways; two more each if a round of parameters came with it, which peers ask for that have
    not met in an exchange before."""
    values = 256 * 256 + 2 * 101
    sent = [ours.bytes_sent + theirs.bytes_sent for (_, ours), (_, theirs) in rounds]
    assert values < min(sent) <= 2 * 1.01 * values
    assert all(values < one <= 2 * 1.01 * values or 5 * values < one <= 6 * 1.01 * values for one in sent)


@pytest.mark.parametrize(
    "exchanges, rate, momentum",
    [(10, 1, 0), (100, 1, 0), (200, 5 / 6, 1 / 2), (500, 11 / 15, 4 / 5), (1000, 0.7, 0.9), (10**4, 0.7, 0.9)],
)
def test_the_outer_momentum_lasts_for_a_hundredth_of_the_run(exchanges, rate, momentum):
    run = run_with(mode="diloco")
    run = run.model_copy(update={"schedule": run.schedule.model_copy(update={"total_epochs": exchanges})})
    assert LocalUpdates.outer_settings(run) == pytest.approx((rate, momentum))
    assert SparseUpdates.outer_settings(run) == (1.0, 0.0)
    (group,) = LocalUpdates.make_optimizer([torch.nn.Parameter(torch.zeros(3))], run).param_groups
    assert (group["lr"], group["momentum"], group["nesterov"]) == pytest.approx((rate, momentum, momentum > 0))


class TwoLayers(torch.nn.Module):
    """A hidden matrix, which Muon moves, and an output layer, which AdamW moves."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.output = torch.nn.Linear(48, 32, bias=False), torch.nn.Linear(32, 16, bias=False)

    def get_output_embeddings(self):
        return self.output


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("mode", ["diloco", "sparse"])
def test_muon_moves_a_peers_own_weights_as_torchs_own_optimizers_do(mode, delayed):
    """Each local update is of the mean gradient of two micro-batches, weighted by their samples."""
    run = run_with(mode=mode, inner_batch_size=8, delay_outer_step=delayed)
    settings = {"name": "muon", "betas": (0.9, 0.95), "max_grad_norm": 1e9, "weight_decay": 0.1}
    schedule = run.schedule.model_copy(update={"warmup_epochs": 0, "peak_learning_rate": 1e-2})
    run = run.model_copy(update={"optimizer": run.optimizer.model_copy(update=settings), "schedule": schedule})
    model, theirs = TwoLayers(), TwoLayers()
    kind = strategy_of(run.swarm)
    averager = SimpleNamespace(add_gradients=lambda samples, epoch: None)
    parts = {"run": run, "model": model, "master": kind.make_master(model, run)}
    strategy = kind(SimpleNamespace(**parts, exchange=SimpleNamespace(averager=averager)))
    hidden = torch.optim.Muon([theirs.hidden.weight], lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    rows = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": run.optimizer.eps, "weight_decay": 0.1}
    output = torch.optim.AdamW([theirs.output.weight], **rows)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for copy, own in zip(theirs.parameters(), before, strict=True):
            copy.data.copy_(own)
            copy.grad = torch.zeros_like(own)
        for samples in (2, 6):
            for own, copy in zip(model.parameters(), theirs.parameters(), strict=True):
                own.grad = torch.randn(own.shape, generator=generator)
                copy.grad += own.grad * samples / 8
            strategy.add_gradients(samples, 0)
        hidden.step(), output.step()
        for own, copy, old in zip(model.parameters(), theirs.parameters(), before, strict=True):
            assert relative_error(own.detach() - old, copy.detach() - old) < 0.03  # torch's Muon computes in bfloat16


@pytest.mark.parametrize("wrong", ["inner_batch_size = 100000", "powersgd_rank = 4"])
def test_settings_that_cannot_be_are_refused(wrong):
    names = (wrong.split(" ")[0], "mode")
    lines = [line for line in read_recipe("demo").splitlines() if not line.startswith(names)]
    text = "\n".join(lines).replace("[swarm]", f'[swarm]\nmode = "diloco"\n{wrong}')
    with pytest.raises(BadInput, match="diloco"):
        parse_recipe(text)
