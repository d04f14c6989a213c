"""GaLore and APOLLO: the bytes of their packages' own state, what is refused, and the code that trains so.

Whole steps, with the update that finds new projections, are in `benchmarks/memory/steps/optimizers.json`, which
test_reference_steps.py compares: galore-torch 1.0 and apollo-torch 1.0.3 on models of transformers. Here the packages
run on real tensors where they are installed; apollo-torch, whose licence forbids commercial use, is in no list of
requirements.
"""

import pytest

from calculator.choose.devices import device_named
from calculator.choose.techniques import choices
from calculator.errors import BadSetup
from calculator.models.architecture import ParameterTensor
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.parts.optimizers import chosen
from calculator.step.estimate import estimate
from calculator.step.setups import Setup

LLAMA = "llama-3.1-8b"
TALL, WIDE, NARROW = (48, 20), (20, 48), (8, 300)
TENSORS = {
    "attention.query.weight": TALL,
    "attention.key.weight": WIDE,
    "feed_forward.out.weight": NARROW,
    "embedding.tokens": (50, 20),
    "norm": (20,),
    "head.weight": (50, 20),
}
PACKAGES = {
    "galore": ("galore_torch", "GaLoreAdamW", {"scale": 0.25}),
    "apollo": ("apollo_torch", "APOLLOAdamW", {"proj": "random", "scale_type": "channel", "scale": 1.0}),
    "apollo-mini": ("apollo_torch", "APOLLOAdamW", {"proj": "random", "scale_type": "tensor", "scale": 128.0}),
}


def blocks(tensors):
    """Bytes of the storages of tensors, each once and rounded up to 512."""
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(-(-size // 512) * 512 for size in sizes.values())


def projects(name):
    """True if the module is one of attention or feed-forward, to which the packages' examples apply a projection."""
    return name.startswith(("attention", "feed_forward"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rank", [None, 1, 5, 33])
@pytest.mark.parametrize("name", PACKAGES)
def test_state_is_that_of_the_package(name, rank, precision):
    torch = pytest.importorskip("torch")
    package, kind, settings = PACKAGES[name]
    make = getattr(pytest.importorskip(package), kind)
    dtype = getattr(torch, precision)
    parameters = {key: torch.nn.Parameter(torch.randn(shape).to(dtype)) for key, shape in TENSORS.items()}
    settings = {"rank": rank or DEFAULT_RANKS[name], "update_proj_gap": 2, "proj_type": "std", **settings}
    groups = [
        {"params": [p for key, p in parameters.items() if not projects(key)]},
        {"params": [p for key, p in parameters.items() if projects(key)], **settings},
    ]
    optimizer = make(groups, lr=1e-3)
    for _ in range(4):
        for parameter in parameters.values():
            parameter.grad = torch.randn(parameter.shape).to(dtype)
        optimizer.step()
    rule = chosen(name, rank=rank)
    for key, parameter in parameters.items():
        kept = [getattr(value, "ortho_matrix", value) for value in optimizer.state[parameter].values()]
        kept = [value for value in kept if isinstance(value, torch.Tensor)]
        tensor = ParameterTensor(key, "", TENSORS[key], 1)
        assert rule.state_bytes(tensor, dtype.itemsize) == blocks(kept), key


def test_a_rank_of_the_whole_matrix_saves_nothing():
    for name in DEFAULT_RANKS:
        whole = estimate(Setup(model=LLAMA, precision="bf16", optimizer=name, optimizer_rank=4096))
        plain = Setup(model=LLAMA, precision="bf16", optimizer="adamw8bit" if name == "galore8bit" else "adamw")
        assert whole.optimizer_state_bytes > estimate(plain).optimizer_state_bytes


def test_galore_keeps_whole_singular_vectors_of_32_bit_gradients():
    """A square matrix of width D in 32 bits keeps D x D values; in 16 bits, rank x D."""
    width, rank = 4096, 128
    tensor = ParameterTensor("attention.query.weight", "attention", (width, width), 1)
    moments = 2 * width * rank
    rule = chosen("galore", rank=rank)
    assert rule.state_bytes(tensor, 4) == 4 * (moments + width * width)
    assert rule.state_bytes(tensor, 2) == 2 * (moments + width * rank)
    said = [" ".join(estimate(Setup(model=LLAMA, optimizer="galore", precision=p)).notes) for p in ("amp-bf16", "bf16")]
    assert ["keeps all singular vectors" in notes for notes in said] == [True, False]
    assert all("cuSOLVER" in notes for notes in said)


def test_one_decomposition_takes_what_torch_makes_for_it():
    """A single square matrix of width D in 32 bits: U, singular values and V, PyTorch's copy, and one number."""
    width = 1024
    rule = chosen("galore", rank=4)
    tensor = ParameterTensor("attention.query.weight", "attention", (width, width), 1)
    assert rule.all_step_bytes((tensor,), 4) == 3 * 4 * width**2 + 4 * width + 512


REFUSED = {
    "optimizer_rank is for galore, galore8bit, apollo, apollo-mini; adamw has none": {
        "optimizer": "adamw",
        "optimizer_rank": 8,
    },
    "optimizer_rank is a whole number from 1": {"optimizer_rank": 0},
    "GaLore is counted for Gemma, Llama": {"model": "gpt2"},
    "which LoRA freezes; omit lora_rank": {"lora_rank": 8},
    "GaLore is counted on the GPU only": {"offload_optimizer": True},
    "sharding zero-1 is not counted with it": {"gpus": 2, "sharding": "zero-1"},
    "sharding zero-3 is not counted with it": {"gpus": 2, "sharding": "zero-3"},
    "layers that share weights": {"shared_groups": 4},
    "another family, so choose the optimizer adafactor": {"model": "mixtral-8x7b"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_counted_is_refused(message):
    with pytest.raises(BadSetup, match=message):
        estimate(Setup(**{"model": LLAMA, "optimizer": "galore", **REFUSED[message]}))


@pytest.mark.parametrize(
    "changes, offered",
    [
        ({}, True),
        ({"model": "gpt2"}, False),
        ({"lora_rank": 8}, False),
        ({"offload_optimizer": True}, False),
        ({"optimizer": "galore"}, False),
    ],
)
def test_it_is_advised_where_it_is_counted(changes, offered):
    setup = Setup(**{"model": LLAMA, **changes})
    techniques = [t for choice in choices(setup, device_named("rtx-4090")) for t in choice if t]
    assert any(t.changes.get("optimizer") == "apollo-mini" for t in techniques) == offered
