"""The state comes from a real peer whole and checked, and no donor can keep the one who asks waiting."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.errors import TrainingError
from training.swarm.download import TrainingState, _check

ROOT = Path(__file__).parents[3]

PROGRAM = """
import json, sys, time
import hivemind, torch
from hivemind.compression import NoCompression
from hivemind.optim.state_averager import TrainingStateAverager
from training.errors import TrainingError
from training.processes import run_role
from training.swarm.averaging import state_codec
from training.swarm.download import download_state, find_donors

def donor(dht, epoch, model=None, cls=TrainingStateAverager, codec=NoCompression()):
    averager = cls(
        dht=dht, optimizer=lambda groups: torch.optim.Adam(groups), params=(model or MODEL).parameters(),
        offload_optimizer=True, custom_gradients=True, prefix="demo_state_averager", start=True,
        state_compression=codec,
    )
    averager.local_epoch = epoch
    return averager

class Stalling(TrainingStateAverager):
    def get_current_state(self):
        time.sleep(1000)

MODEL = torch.nn.Linear(300, 200)

def role(stop):
    torch.set_num_threads(1)
    first = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    address = first.get_visible_maddrs()
    second = hivemind.DHT(start=True, initial_peers=address, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    observer = hivemind.DHT(start=True, initial_peers=address, client_mode=True)

    def attempt(**changes):
        settings = dict(
            shapes=[p.shape for p in MODEL.parameters()], chunk_seconds=3, total_seconds=10, max_bytes=10**7,
            epochs=range(5, 8),
        )
        began = time.monotonic()
        try:
            return download_state(observer, "demo", **{**settings, **changes}), time.monotonic() - began
        except TrainingError as error:
            return str(error), time.monotonic() - began

    results = {"nobody": attempt()[0]}
    averager = donor(first, epoch=5)
    while not find_donors(observer, "demo"):
        time.sleep(0.2)
    state, _ = attempt()
    results["epoch"] = state.epoch
    results["donor is the peer"] = state.donor == str(first.peer_id)
    results["parameters"] = all(torch.equal(a, b) for a, b in zip(state.tensors, MODEL.parameters()))
    results["optimizer tensors"] = len(state.tensors) - 2
    results["values"] = {"type": "value", "value": 0.999} in state.optimizer_metadata
    whole = state.received_bytes
    averager.allow_state_sharing = False
    while find_donors(observer, "demo"):
        time.sleep(0.2)
    third = hivemind.DHT(start=True, initial_peers=address, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    averager = donor(third, epoch=5, codec=state_codec(8, threshold=1000))
    while not find_donors(observer, "demo"):
        time.sleep(0.2)
    short, _ = attempt()
    results["saved bytes"] = whole - short.received_bytes
    results["rounding"] = max(
        float((a.float() - b).norm() / b.norm()) for a, b in zip(short.tensors, MODEL.parameters())
    )
    results["moments"] = all(map(torch.equal, short.tensors[2:], state.tensors[2:]))
    results["too many bytes"] = attempt(max_bytes=1000)[0]
    results["too early"] = attempt(epochs=range(6, 10))[0]
    results["too late"] = attempt(epochs=range(0, 5))[0]
    results["other model"] = attempt(shapes=[torch.Size([3])])[0]
    with torch.no_grad():
        averager.optimizer.param_groups[0]["params"][0][0, 0] = float("nan")
    results["nan"] = attempt()[0]
    averager.allow_state_sharing = False
    while find_donors(observer, "demo"):
        time.sleep(0.2)
    Stalling.__name__ = TrainingStateAverager.__name__
    stalling = donor(second, epoch=5, cls=Stalling)
    while not find_donors(observer, "demo"):
        time.sleep(0.2)
    results["stalling"], results["stalling seconds"] = attempt()
    print(json.dumps(results), flush=True)

run_role(role)
"""


@pytest.mark.swarm
def test_download():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["nobody"] == "No peer offers its state yet."
    assert results["epoch"] == 5
    assert results["donor is the peer"]
    assert results["parameters"]
    assert results["optimizer tensors"] == 6
    assert results["values"]
    weights = 300 * 200
    assert results["saved bytes"] == 4 * weights - (weights + 4 * math.ceil(weights / 512)) + 2 * 200
    assert 1e-4 < results["rounding"] < 0.02
    assert results["moments"]
    assert "more than 1000 bytes" in results["too many bytes"]
    assert "not at an epoch from 6 to 9" in results["too early"]
    assert "not at an epoch from 0 to 4" in results["too late"]
    assert "another model" in results["other model"]
    assert "not finite" in results["nan"]
    assert "No peer has sent a sound state" in results["stalling"]
    assert results["stalling seconds"] < 8


def test_a_state_that_was_cut_short_is_not_taken():
    tensors = (torch.zeros(2, 3), torch.zeros(6))
    announced = [{"type": "tensor", "index": 0}, {"type": "value", "value": 3}]
    _check(TrainingState(epoch=1, tensors=tensors, optimizer_metadata=announced, donor="Qm"), [torch.Size([2, 3])])
    short = TrainingState(epoch=1, tensors=tensors[:1], optimizer_metadata=announced, donor="Qm")
    with pytest.raises(TrainingError, match="sent 1 tensors and announced 2"):
        _check(short, [torch.Size([2, 3])])
