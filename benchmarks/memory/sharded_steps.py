"""Traces training steps on one of several GPUs, as PyTorch's FSDP2 and DDP run them, and counts what the device holds.

    python benchmarks/memory/sharded_steps.py --cases 40 --seed 1 --json steps/sharded_steps.json
    python benchmarks/memory/sharded_steps.py --two-stacks --cases 26 --seed 12 --json steps/divided_t5_steps.json

Real code of transformers and of `torch.distributed` runs on fake tensors, which have a size but no content, with a fake
process group, whose collectives return at once. The program follows every storage, rounded up to 512 bytes as CUDA's
allocator does, through the second step, so that the optimizer's state exists. The device is the first of its group,
whose shards are the largest.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from calculator.step.setups import Setup, resolve, setup_from
from calculator.tape.autograd import rounded
from calculator.tape.tensor_parallel import TENSOR_SHARDINGS

DROPOUTS = (
    "resid_pdrop", "attn_pdrop", "embd_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob",
    "attention_dropout", "dropout_rate",
)  # fmt: skip
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Held(TorchDispatchMode):
    """Within `with`, follows every storage; `peak` is the most that existed after an operation.

    Args:
        steps_on_device: Whether the optimizer's counts of steps are on the GPU, as those of a fused one are.
    """

    def __init__(self, *, steps_on_device: bool) -> None:
        super().__init__()
        self.steps_on_device = steps_on_device
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0
        self.phase = self.peak_phase = ""
        self.peaks: dict[str, int] = {}  # of each phase
        self.paused = False

    def follow(self, tensor: torch.Tensor) -> None:
        """Counts a tensor's storage at its present size from now on."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self.sizes:
            # PyTorch keeps a storage's Python object as long as the storage itself.
            weakref.finalize(storage, self._forget, address)
        size = 0 if self._is_on_host(tensor) else rounded(storage.nbytes())
        self.now += size - self.sizes.get(address, 0)
        self.sizes[address] = size

    def _forget(self, address: int) -> None:
        self.now -= self.sizes.pop(address)

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        """Whether it is a count of steps or a number that Python has made, which an optimizer keeps on the host."""
        return self.phase == "optimizer" and not tensor.dim() and not self.steps_on_device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        from torch.distributed._functional_collectives import AsyncCollectiveTensor
        from torch.distributed.tensor import DTensor

        if DTensor in types or AsyncCollectiveTensor in types:
            return NotImplemented  # its own dispatch calls the operation on the local tensors, which comes here again
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # as on a GPU; for fake tensors, PyTorch makes another one
        if self.paused:
            return func(*args, **(kwargs or {}))
        in_place = self._would_be_in_place(func, args)
        returned = func(*args, **(kwargs or {}))
        for tensor in returned if isinstance(returned, tuple | list) else (returned,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.sizes:
                self.follow(tensor)
        now = self.now + self.workspace_bytes(func, args)
        now -= rounded(returned.untyped_storage().nbytes()) if in_place else 0
        self.peaks[self.phase] = max(now, self.peaks.get(self.phase, 0))
        if now > self.peak:
            self.peak, self.peak_phase = now, self.phase
        return returned

    def workspace_bytes(self, func, args: tuple) -> int:
        """Memory that the operation's kernel takes only while it runs on a GPU, as in `fake_cuda.workspace_bytes`: the
        product of a softmax's gradient and its result."""
        return rounded(args[0].nbytes) if func is torch.ops.aten._softmax_backward_data.default else 0

    def _would_be_in_place(self, func, args: tuple) -> bool:
        """Whether the engine adds two gradients in place, which it never does with fake tensors (input_buffer.cpp).

        It does so if nothing else holds one of the two, neither the tensor nor, through another tensor, its memory.
        With those of this call, such a tensor has four references and its memory two.
        """
        if func is not torch.ops.aten.add.Tensor or self.phase != "backward" or torch.is_grad_enabled():
            return False
        tensors = [tensor for tensor in args if isinstance(tensor, torch.Tensor)]
        return any(
            tensor._use_count() == 4 and torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == 2
            for tensor in tensors
        )


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


def build(setup: Setup) -> torch.nn.Module:
    """The model of transformers for a setup, in training mode."""
    import transformers

    config = dict(setup.config)
    kind = config.pop("model_type")
    made = transformers.AutoConfig.for_model(kind, **config, use_cache=False)
    for name in DROPOUTS:
        if hasattr(made, name):
            setattr(made, name, setup.dropout or 0.0)
    made._attn_implementation = setup.attention
    makers = {"bert": transformers.AutoModelForMaskedLM, "t5": transformers.AutoModelForSeq2SeqLM}
    model = makers.get(kind, transformers.AutoModelForCausalLM).from_config(
        made, dtype=HALF.get(setup.precision, torch.float32)
    )
    if setup.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for index, layer in enumerate(layers_of(model)):
            layer.gradient_checkpointing = index % int(setup.checkpointing) == 0
    return model.train()


def layers_of(model: torch.nn.Module) -> Sequence[torch.nn.Module]:
    """The layers of a model of transformers."""
    if hasattr(model, "decoder"):
        return [*model.encoder.block, *model.decoder.block]
    if hasattr(model, "bert"):
        return model.bert.encoder.layer
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


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


def make_optimizer(setup: Setup, parameters: Iterable[torch.nn.Parameter]):
    """The optimizer of a setup."""
    kind, flags = torch.optim.SGD, {"lr": 1e-4, "momentum": 0.9, "foreach": True}
    if setup.optimizer == "adamw":
        kind, implementation = torch.optim.AdamW, setup.optimizer_impl
        flags = {"lr": 1e-4, "foreach": implementation == "foreach", "fused": implementation == "fused"}
    if setup.sharding != "zero-1":
        return kind(parameters, **flags)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **flags)


def most_loaded(setup: Setup, build: Callable[[Setup], torch.nn.Module]) -> int:
    """The member whose part of ZeroRedundancyOptimizer's state takes the most bytes; the first, if it is not used."""
    if setup.sharding != "zero-1":
        return 0
    with group_of(setup.gpus):
        parts = make_optimizer(setup, trained_by(build(setup)))._partition_parameters()
    # Parts with as many values take different numbers of blocks, and fused AdamW counts each tensor's steps on the GPU.
    moments = 2 if setup.optimizer == "adamw" else 1
    counted = rounded(4) if setup.optimizer == "adamw" and setup.optimizer_impl == "fused" else 0
    sizes = [
        sum(moments * rounded(p.numel() * p.itemsize) + counted for group in part for p in group["params"])
        for part in parts
    ]
    return sizes.index(max(sizes))


def trace(setup: Setup, build: Callable[[Setup], torch.nn.Module] = build) -> dict:
    """What the device holds in a step of a setup.

    FSDP2 runs on fake tensors. DDP, which is written in C++, needs tensors that have a content.

    Args:
        setup: What is trained, on one of its GPUs.
        build: Makes the model.
    """
    architecture = resolve(setup)
    divided, together = setup.sharding in ("zero-2", "zero-3"), setup.sharding in TENSOR_SHARDINGS
    faked = divided or together or setup.gpus == 1
    fake = FakeTensorMode(allow_non_fake_inputs=True) if faked else nullcontext()
    held = Held(steps_on_device=setup.optimizer_impl == "fused")
    with group_of(setup.gpus, most_loaded(setup, build)) as mesh, fake, held, seen_by(held):
        model = build(setup)
        parameters = sum(p.numel() for p in model.parameters())
        run = model
        if divided:
            shard(model, setup, mesh)
        elif together:
            divide(model, setup, mesh)
        elif setup.gpus > 1:
            run = replicated(model)
        trained = trained_by(model)
        optimizer = make_optimizer(setup, in_groups(trained) if together else trained)
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


SIZES = (2, 3, 4, 8)
"""GPUs of a drawn step."""
LONGEST_IN_16_BITS = 64
"""Tokens of a drawn sequence in 16 bits; see `draw`."""


FAMILIES = (
    "llama", "llama", "qwen3", "mistral", "phi3", "gemma2", "gemma3_text", "qwen3_moe", "gpt2", "gptj", "bert",
)  # fmt: skip
"""Model types of a drawn step; the first is drawn twice as often."""


def draw_together(chance: random.Random) -> Setup:
    """A random setup of tensor parallelism."""
    gpus, kind = chance.choice((2, 4)), chance.choice(("llama", "llama", "mistral", "qwen2", "qwen3"))
    heads, width = chance.choice((4, 8, 12)), chance.choice((16, 24, 40))
    config = {
        "model_type": kind,
        "vocab_size": gpus * chance.randint(30, 2000),
        "hidden_size": heads * 8 * chance.randint(1, 6),
        "intermediate_size": gpus * chance.randint(40, 400),
        "num_hidden_layers": chance.randint(1, 6),
        "num_attention_heads": heads,
        "num_key_value_heads": chance.choice((4, heads)),
        "head_dim": width,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    if kind == "qwen2":
        config["hidden_size"], config["head_dim"] = heads * width, width
    if kind == "mistral":
        config["sliding_window"] = None
    values = {
        "config": config,
        "micro_batch_size": chance.randint(1, 5),
        "sequence_length": chance.choice((16, 64, 96, 132, 248)),
        "precision": chance.choice(("fp32", "bf16")),
        "attention": "eager",
        "dropout": 0.0,
        "checkpointing": chance.choice((False, False, True)),
        "optimizer": "adamw",
        "gpus": gpus,
        "sharding": chance.choice(TENSOR_SHARDINGS),
    }
    return setup_from(values)


def draw_two_stacks(chance: random.Random) -> Setup:
    """A random setup of FSDP2 for T5. Its output head is tied, as transformers makes it where there are no weights."""
    config = {
        "model_type": "t5",
        "d_model": 8 * chance.randint(4, 30),
        "d_kv": chance.choice((8, 16, 24)),
        "d_ff": 8 * chance.randint(8, 60),
        "num_layers": chance.randint(1, 4),
        "num_decoder_layers": chance.randint(1, 4),
        "num_heads": chance.choice((2, 4, 8)),
        "vocab_size": chance.randint(60, 900),
        "decoder_start_token_id": 0,
        "feed_forward_proj": chance.choice(("relu", "gated-gelu")),
    }
    values = {
        "config": config,
        "micro_batch_size": chance.randint(1, 4),
        "sequence_length": chance.choice((16, 32, 64, 100)),
        "target_length": chance.choice((16, 24, 64)),
        "precision": chance.choice(("fp32", "bf16", "amp-bf16")),
        "attention": "eager",
        "dropout": 0.0,
        "checkpointing": chance.choice((False, True)),
        "optimizer": chance.choice(("adamw", "sgd")),
        "accumulation_steps": chance.choice((1, 1, 2)),
        "gpus": chance.choice(SIZES),
        "sharding": chance.choice(("zero-2", "zero-3")),
    }
    return short_in_16_bits(setup_from(values))


def short_in_16_bits(setup: Setup) -> Setup:
    """The same with short sequences if they are in 16 bits; see `draw`."""
    short = setup.precision == "fp32" or setup.sequence_length <= LONGEST_IN_16_BITS
    return setup if short else replace(setup, sequence_length=LONGEST_IN_16_BITS)


def draw(chance: random.Random) -> Setup:
    """A random setup: a model of any supported family with a few layers, on several GPUs.

    Attention runs in separate operations, since the fused kernels of CPUs keep other tensors than those of GPUs. The
    softmax of scores of 16 bits keeps others, too, so sequences in 16 bits are short.
    """
    family = chance.choice(FAMILIES)
    sharding = chance.choice(("none", "zero-1", "zero-2", "zero-2", "zero-3", "zero-3", "zero-3"))
    precision = chance.choice(("fp32", "bf16", "amp-bf16", "amp-fp16"))
    # Without FSDP2, this precision is autocast, which casts other operations on a CPU than on a GPU.
    if sharding in ("none", "zero-1"):
        precision = precision.removeprefix("amp-").replace("fp16", "fp32")
    # PyTorch multiplies groups of rows by their expert's weights in bfloat16 only.
    if family == "qwen3_moe" and precision != "amp-bf16":
        precision = "bf16"
    config = {"model_type": family, **random_sizes(family, chance)}
    if chance.random() < 0.4:  # the output head takes more than all layers
        config["vocab_size"] = chance.randint(9000, 40_000)
    layers = config.get("num_hidden_layers") or config["n_layer"]
    values = {
        "config": config,
        "micro_batch_size": chance.randint(2, 5),
        "sequence_length": chance.choice(
            (16, 64, 96, 130, 250) if precision == "fp32" else (16, 32, LONGEST_IN_16_BITS)
        ),
        "precision": precision,
        "attention": "eager",
        "dropout": 0.0,
        "checkpointing": chance.choice((False, False, True, chance.randint(1, layers))),
        "optimizer": chance.choice(("adamw", "adamw", "adamw", "sgd")),
        "accumulation_steps": chance.choice((1, 1, 2)),
        "gpus": chance.choice(SIZES),
        "sharding": sharding,
    }
    if values["optimizer"] == "adamw":
        values["optimizer_impl"] = chance.choice(("foreach", "for-loop", "fused"))
    return setup_from(values)


def random_sizes(family: str, chance: random.Random) -> dict:
    heads, width = chance.choice((2, 4, 6)), chance.choice((16, 24, 40, 64))
    layers, inner = chance.randint(1, 6), chance.randint(100, 1500)
    sizes = {"vocab_size": chance.randint(50, 9000)}
    if family.startswith("gpt"):
        sizes |= {"n_embd": heads * width, "n_head": heads, "n_layer": layers, "n_positions": 256, "n_inner": inner}
        return sizes | ({"rotary_dim": 8, "tie_word_embeddings": False} if family == "gptj" else {})
    sizes |= {
        "hidden_size": heads * width if family in ("bert", "phi3") else heads * 8 * chance.randint(1, 8),
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 256,
    }
    if family == "bert":
        return sizes
    sizes["num_key_value_heads"] = chance.choice([k for k in (1, 2, heads) if heads % k == 0])
    sizes["tie_word_embeddings"] = chance.random() < 0.5
    if family == "phi3":
        return sizes | {"pad_token_id": 0}
    sizes["head_dim"] = width
    if family == "qwen3_moe":
        sizes |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8 * chance.randint(2, 40)}
    return sizes | ({"sliding_window": None} if family == "mistral" else {})


def main(arguments: list[str] | None = None) -> None:
    """Draws and traces steps; prints the calculator's difference from each, and writes them if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=40, help="steps to draw (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    parser.add_argument("--together", action="store_true", help="draw steps of tensor parallelism only")
    parser.add_argument("--two-stacks", action="store_true", help="draw steps of T5 only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the steps")
    flags = parser.parse_args(arguments)
    chance = random.Random(flags.seed)
    drawn = draw_together if flags.together else draw_two_stacks if flags.two_stacks else draw
    trace_all((drawn(chance) for _ in range(flags.cases)), trace, flags.json)


def trace_all(setups: Iterable[Setup], trace: Callable[[Setup], dict], path: Path | None) -> None:
    """Traces steps; prints the calculator's difference from each, and writes them, the whole record after each step.

    Args:
        setups: Of the steps.
        trace: What the device holds in a step of a setup.
        path: Of the record; None: none is written.
    """
    from calculator.step.estimate import estimate

    steps = []
    for setup in setups:
        step = {"setup": _written(setup), **trace(setup)}
        steps.append(step)
        difference = estimate(setup).gpu.total - step["peak"]
        shown = {key: value for key, value in step["setup"].items() if key != "config"}
        share = 100 * difference / step["peak"]
        at = f"{step['peak']:,} in {step['peak_phase']}"
        print(f"{difference:+10d} ({share:+.2f} %) of {at}: {setup.config['model_type']} {shown}", flush=True)
        if path is not None:
            lines = ",\n".join(json.dumps(step) for step in steps)
            path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _written(setup: Setup) -> dict:
    """The fields of a setup that differ from their defaults."""
    return {
        field.name: getattr(setup, field.name)
        for field in fields(Setup)
        if getattr(setup, field.name) != field.default or field.name in ("precision", "attention", "optimizer")
    }


if __name__ == "__main__":
    main()
