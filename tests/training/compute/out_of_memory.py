"""A peer's accumulated gradient where memory runs out on the way, beside that of all samples at once; prints JSON.

`test_gradients.py` starts it as a process, for the limit on the address space holds for the whole of it.
"""

import json
import resource
import sys
from pathlib import Path

import torch

from calculator.choose.advice import KEPT_ACTIVATION_BYTES
from training.compute.micro_batches import MicroBatches
from training.data.stream.stream import Batch
from training.model.transformer import build_model
from training.processes.environment import prepare_environment
from training.processes.role import run_role
from training.recipe import load_recipe

SAMPLES, AT_ONCE = 96, 64
SPARE_BYTES = 60 << 20
"""Less than what 64 samples at once take, more than what 8 do."""
SETTINGS = {"activation_budget_bytes": KEPT_ACTIVATION_BYTES, "precision": "float32"}


def main(folder: Path, stop) -> None:
    from training.swarm.epoch.gradients import GradientAverager
    from training.swarm.node.dht import start_dht
    from training.swarm.node.identity import Identity
    from training.swarm.optimizer import SwarmOptimizer
    from training.swarm.round.pipe import AveragerSettings

    torch.set_num_threads(1)
    run = load_recipe("demo")
    identity = Identity(folder)
    dht = start_dht(run, identity, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    model = build_model(run.model, seed=0)
    averager = GradientAverager(list(model.parameters()), dht=dht, settings=AveragerSettings(prefix="none"))
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(1, run.model.text_vocab_size, (SAMPLES, run.model.text_seq_len), generator=generator)
    codes = torch.randint(0, run.model.image_vocab_size, (SAMPLES, run.model.image_seq_len), generator=generator)
    first, rest = (
        Batch(text=text[p], codes=codes[p], captions=[""] * len(text[p])) for p in (slice(24), slice(24, None))
    )
    for part in range(0, SAMPLES, 8):  # all at once would leave memory enough for them
        (model(text[part : part + 8], codes[part : part + 8]).loss * 8 / SAMPLES).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()

    told, pieces = [], []
    micro_batches = MicroBatches(model, **SETTINGS, micro_batch_size=AT_ONCE, tell=told.append)

    def accumulate(batch):
        for piece in micro_batches.gradients_of(batch):
            averager.add_gradients(piece.samples)
            model.zero_grad()
            pieces.append(piece.samples)

    accumulate(first)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    accumulate(rest)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    counted = averager.load_mean()
    with averager.get_tensors() as averaged:
        gradient = torch.cat([tensor.flatten() for tensor in averaged])
    facts = {"pieces": pieces, "told": told, "counted": counted}
    facts["error"] = float((gradient - expected).norm() / expected.norm())

    settings = {"mode": "diloco", "target_batch_size": 10_000, "inner_batch_size": 9_000}
    run = run.model_copy(update={"swarm": run.swarm.model_copy(update=settings)})
    optimizer = SwarmOptimizer(model, run, dht=dht, identity=identity, micro_batch_size=AT_ONCE)
    for size, batch in ((24, first), (32, rest)):
        for piece in MicroBatches(model, **SETTINGS, micro_batch_size=size).gradients_of(batch):
            optimizer.step(batch_size=piece.samples)
            optimizer.zero_grad()
    local = optimizer.strategy
    own = {id(p): total for p, total in zip(optimizer.master.model_parameters, local.sums, strict=True)}
    inner = torch.cat([own[id(parameter)].flatten() for parameter in model.parameters()]) / local.inner_samples
    facts["inner_counted"] = local.inner_samples
    facts["inner_error"] = float((inner - expected).norm() / expected.norm())
    print(json.dumps(facts))


if __name__ == "__main__":
    prepare_environment()
    run_role(lambda stop: main(Path(sys.argv[1]), stop))
