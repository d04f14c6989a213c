"""Traces a training step on one of several GPUs, as PyTorch's FSDP2, DDP and tensor parallelism run it.

Real code of `torch.distributed` runs with a fake process group, whose collectives return at once. The second step
counts, so that the optimizer's state exists. The device is the member of the group whose part is the largest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.memory.models import HALF, build, layers_of
from benchmarks.memory.optimizers import kind_of
from benchmarks.memory.tracing.held import Held
from benchmarks.memory.tracing.liger import take_cpu_for_gpu, without_kernels
from calculator.step.resolve import resolve
from calculator.step.setups import Setup
from calculator.tape.autograd import rounded
from calculator.tape.tensor_parallel import TENSOR_SHARDINGS


@contextmanager
def seen_by(held: Held) -> Iterator[None]:
    """Tells of the storages that FSDP2 resizes, and hides what DTensor makes only to find the shapes of its results."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    def resizing(change):
        def changed(tensor: torch.Tensor) -> None:
            change(tensor)
            held.follow(tensor)

        return changed

    find = ShardingPropagator._propagate_tensor_meta_non_cached

    def found(*args):
        held.paused = True
        try:
            return find(*args)
        finally:
            held.paused = False

    with ExitStack() as changed:
        for name in ("alloc_storage", "free_storage"):
            changed.enter_context(patch.object(_fsdp_param, name, resizing(getattr(_fsdp_param, name))))
        changed.enter_context(patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", found))
        yield


def shard(model: torch.nn.Module, setup: Setup, mesh) -> None:
    """FSDP2 as PyTorch's tutorial applies it: every layer, then the whole model; mixed precision without autocast."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if setup.precision.startswith("amp-"):
        policy = MixedPrecisionPolicy(
            param_dtype=HALF[setup.precision.removeprefix("amp-")], reduce_dtype=torch.float32
        )
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=setup.sharding == "zero-3")
    fully_shard(model, mesh=mesh, mp_policy=policy)


def divide(model: torch.nn.Module, setup: Setup, mesh) -> None:
    """Tensor parallelism as torchtitan applies it to Llama; with "tensor-sequence", also by tokens."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )  # fmt: skip

    by_tokens = setup.sharding == "tensor-sequence"
    between = Shard(1) if by_tokens else Replicate()
    by_inputs = RowwiseParallel(output_layouts=between)
    plan = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "model.layers.*.self_attn.o_proj": by_inputs,
        "model.layers.*.mlp.down_proj": by_inputs,
        "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
    }
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        plan[f"model.layers.*.{name}"] = ColwiseParallel()
    if by_tokens:
        for name in ("norm", "layers.*.input_layernorm", "layers.*.post_attention_layernorm"):
            plan[f"model.{name}"] = SequenceParallel()
        whole = {"hidden_states": Replicate()}
        plan["model.layers.*.self_attn"] = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts=whole
        )
        plan["model.layers.*.mlp"] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    parallelize_module(model, mesh, plan)
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight


def trained_by(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that get a gradient."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def in_groups(parameters: Iterable[torch.nn.Parameter]) -> list[dict]:
    """Parameters that are DTensors and others apart, since `foreach` refuses a mixture."""
    from torch.distributed.tensor import DTensor

    groups: dict[bool, list] = {}
    for parameter in parameters:
        groups.setdefault(isinstance(parameter, DTensor), []).append(parameter)
    return [{"params": group} for group in groups.values()]


@contextmanager
def group_of(size: int, rank: int = 0) -> Iterator:
    """A process group whose collectives do nothing, as one of its members sees it: the mesh of its devices."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield init_device_mesh("cpu", (size,))
    finally:
        dist.destroy_process_group()


def replicated(model: torch.nn.Module) -> torch.nn.Module:
    """The model under DistributedDataParallel."""

    def at_once(_state, bucket):  # DDP refuses annotations that are strings
        # The fake group's own reduction returns nothing, where DDP expects the bucket.
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    wrapped = torch.nn.parallel.DistributedDataParallel(model, init_sync=False)
    wrapped.register_comm_hook(None, at_once)
    return wrapped


def optimizer_of(setup: Setup, parameters: Iterable[torch.nn.Parameter]):
    """Makes the optimizer of a setup, divided if it says so."""
    kind, given = kind_of(setup)
    if setup.sharding != "zero-1":
        return kind(parameters, **given)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **given)


def most_loaded(setup: Setup) -> int:
    """The member whose part of ZeroRedundancyOptimizer's state takes the most bytes; the first, if it is not used."""
    if setup.sharding != "zero-1":
        return 0
    with group_of(setup.gpus):
        parts = optimizer_of(setup, trained_by(build(setup)))._partition_parameters()
    # Parts with as many values take different numbers of blocks, and fused AdamW counts each tensor's steps on the GPU.
    moments = 2 if setup.optimizer == "adamw" else 1
    counted = rounded(4) if setup.optimizer == "adamw" and setup.optimizer_impl == "fused" else 0
    sizes = [
        sum(moments * rounded(p.numel() * p.itemsize) + counted for group in part for p in group["params"])
        for part in parts
    ]
    return sizes.index(max(sizes))


def trace(setup: Setup) -> dict:
    """Counts what the device holds in a step of a setup on several GPUs.

    FSDP2 runs on fake tensors. DDP, which is written in C++, needs tensors that have a content.
    """
    if setup.loss == "liger":
        take_cpu_for_gpu()
    with without_kernels() if setup.loss == "liger" else nullcontext():
        return _traced(setup)


def _traced(setup: Setup) -> dict:
    architecture = resolve(setup)
    divided, together = setup.sharding in ("zero-2", "zero-3"), setup.sharding in TENSOR_SHARDINGS
    faked = divided or together
    fake = FakeTensorMode(allow_non_fake_inputs=True) if faked else nullcontext()
    held = Held(steps_on_device=setup.optimizer_impl == "fused")
    with group_of(setup.gpus, most_loaded(setup)) as mesh, fake, held, seen_by(held):
        model = build(setup)
        parameters = sum(p.numel() for p in model.parameters())
        run = model
        if divided:
            shard(model, setup, mesh)
        elif together:
            divide(model, setup, mesh)
        else:
            run = replicated(model)
        trained = trained_by(model)
        optimizer = optimizer_of(setup, in_groups(trained) if together else trained)
        length = setup.sequence_length or architecture.sequence_length
        held.phase = "before"
        for last in (False, True):
            optimizer.zero_grad(set_to_none=True)
            held.peak = 0 if last else held.peak
            _step(setup, held, run, optimizer, length)
        optimizer = getattr(optimizer, "optim", optimizer)
        state = [value for one in optimizer.state.values() for value in one.values()]
        gradients = {id(g.untyped_storage()): g for g in (_local(p.grad) for p in trained)}
        return {
            "parameters": parameters,
            "gradient_bytes": sum(rounded(g.untyped_storage().nbytes()) for g in gradients.values()),
            "optimizer_state_bytes": sum(_bytes(t) for t in state if held.steps_on_device or t.dim()),
            "peak": held.peak,
            "peak_phase": held.peak_phase,
        }


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _bytes(tensor: torch.Tensor) -> int:
    return rounded(_local(tensor).untyped_storage().nbytes())


def _step(setup: Setup, held: Held, model, optimizer, length: int) -> None:
    half = HALF.get(setup.precision.removeprefix("amp-"))
    autocast = setup.precision.startswith("amp-") and setup.sharding not in ("zero-2", "zero-3")
    ids = torch.zeros((setup.micro_batch_size, length), dtype=torch.long)
    labels = torch.zeros((setup.micro_batch_size, setup.target_length or length), dtype=torch.long)
    for _ in range(setup.accumulation_steps):
        loss = None
        held.phase = "forward"
        with _parallel_loss(setup):
            with torch.autocast("cpu", dtype=half or torch.bfloat16, enabled=autocast):
                loss = model(input_ids=ids, labels=labels, **_given(setup, length)).loss
            held.phase = "backward"
            loss.backward()
    held.phase = "optimizer"
    optimizer.step()


def _parallel_loss(setup: Setup):
    from torch.distributed.tensor.parallel import loss_parallel

    return loss_parallel() if setup.sharding in TENSOR_SHARDINGS else nullcontext()


def _given(setup: Setup, length: int) -> dict[str, torch.Tensor]:
    """What a model would otherwise make by the length of its hidden states, which is a part of the tokens here."""
    if setup.sharding != "tensor-sequence":
        return {}
    mask = torch.zeros((setup.micro_batch_size, 1, length, length), dtype=HALF.get(setup.precision))
    return {"position_ids": torch.arange(length)[None], "attention_mask": mask}
