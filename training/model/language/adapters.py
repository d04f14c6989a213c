"""LoRA: trained low-rank matrices beside the frozen linear layers of a language model (Hu et al. 2021).

The library peft adds them: y = W x + (alpha / r) B A x, with A (r, in) and B (out, r). B is zero at first, so that
training begins with the frozen model's function. A is drawn by this module, from the run's seed, so that it is equal on
all machines, whatever the version of peft. With `freeze_a`, A is not trained either, and so is never sent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from training.errors import BadInput
from training.model.kernels.linear import multiplies
from training.model.language.config import AdapterConfig

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FROZEN_DTYPES = {32: torch.float32, 16: torch.bfloat16, 4: torch.bfloat16}
"""Type of frozen weights by `AdapterConfig.frozen_bits`; for 4, the type of those outside the layers' linear
modules."""


def frozen_dtype(adapter: AdapterConfig | None) -> torch.dtype:
    """Type in which weights are read: float32 if they are trained."""
    return torch.float32 if adapter is None else FROZEN_DTYPES[adapter.frozen_bits]


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of weights by name; it does not depend on how they are divided into files."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def check_digest(adapter: AdapterConfig, found: str, *, named: str) -> None:
    """Compares the digest of the weights with the recipe's.

    Raises:
        BadInput: If the digests differ, or the recipe has none.
    """
    if adapter.base_digest is None:
        raise BadInput(
            f"The recipe does not fix the weights beside which adapters are trained. Those of {named} have the digest "
            f'{found}: write base_digest = "{found}" into its [adapter].'
        )
    if adapter.base_digest != found:
        raise BadInput(
            f"The weights of {named} have the digest {found}, and the recipe's adapter.base_digest is "
            f"{adapter.base_digest}: they are not those beside which this run trains its adapters.",
            cure="Get the weights again from where the recipe's author has them, or ask which revision is meant.",
        )


def add_adapters(network: PreTrainedModel, adapter: AdapterConfig, seed: int) -> PeftModel:
    """Freezes a model, in place, and puts adapters into it; those are float32.

    Args:
        network: Model whose weights have the type of `frozen_dtype`. On the meta device, adapters have shapes only.
        adapter: Adapters to add.
        seed: Seed of the adapters' first values.

    Returns:
        peft's view of the network, which saves and merges adapters. `network` computes with them.

    Raises:
        BadInput: If a target is not a linear layer of the model.
    """
    # On import, bitsandbytes reports missing kernels for processors that are not installed; they would only be faster.
    logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)
    from peft import LoraConfig, get_peft_model

    layers = linear_layers(network)
    names = sorted({name.rpartition(".")[2] for name in layers})
    targets = names if adapter.targets == "all-linear" else list(adapter.targets)
    if unknown := [target for target in targets if target not in names]:
        raise BadInput(
            f"adapter.targets names {unknown[0]!r}, and the linear layers of {network.config.model_type} are "
            f"{', '.join(names)}; choose among these, or all-linear."
        )
    _check_rank(adapter, {name: layer for name, layer in layers.items() if name.rpartition(".")[2] in targets})
    if adapter.frozen_bits == 4:
        _check_quantizable(network, layers)
        if network.device.type != "meta":
            _prepare_quantization(network, layers)
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=targets,
        task_type="CAUSAL_LM",
        # GPT-2's layers keep a transposed matrix.
        fan_in_fan_out=any(not isinstance(layer, nn.Linear) for layer in layers.values()),
    )
    # peft draws first values, which `draw_adapters` replaces, and reads names that transformers is going to change.
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        adapted = get_peft_model(network, config)
    draw_adapters(network, seed)
    for first, _ in _matrices(network):
        first.requires_grad_(not adapter.freeze_a)
    return adapted


def draw_adapters(network: nn.Module, seed: int) -> None:
    """Sets adapters to their first values, which depend on the seed only: A as `nn.Linear` draws a weight, B zero."""
    generator = torch.Generator().manual_seed(seed)
    for first, second in _matrices(network):
        if first.device.type == "meta":
            continue
        drawn = torch.empty(first.shape)
        nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
        with torch.no_grad():
            first.copy_(drawn)
            second.zero_()


def allocate_adapters(network: nn.Module) -> None:
    """Allocates the adapters of a model on the meta device, a frozen A too; the model's other weights stay without
    memory."""
    of_adapters = {id(matrix) for matrices in _matrices(network) for matrix in matrices}
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in of_adapters:
                values = torch.zeros(parameter.shape, device="cpu")
                module.register_parameter(name, nn.Parameter(values, requires_grad=parameter.requires_grad))


def quantize(network: nn.Module) -> None:
    """Quantizes 4-bit weights that are not yet: `to` does so when it moves a model, but not within the CPU."""
    for module in network.modules():
        weight = getattr(module, "weight", None)
        if getattr(weight, "bnb_quantized", None) is False:
            module.to(weight.device)


def linear_layers(network: PreTrainedModel) -> dict[str, nn.Module]:
    """Finds the linear layers of a decoder without its output layer, by their names."""
    output = network.get_output_embeddings()
    return {name: module for name, module in network.named_modules() if multiplies(module) and module is not output}


def _matrices(network: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields A and B of each adapter, in the model's order."""
    from peft.tuners.lora import LoraLayer

    for module in network.modules():
        if isinstance(module, LoraLayer):
            for name in module.active_adapters:
                yield module.lora_A[name].weight, module.lora_B[name].weight


def _check_rank(adapter: AdapterConfig, layers: Mapping[str, nn.Module]) -> None:
    """Raises BadInput if a product of an adapter's matrices has fewer values than the two matrices."""
    for name, layer in layers.items():
        rows, columns = layer.weight.shape
        if adapter.rank > min(rows, columns):
            raise BadInput(
                f"adapter.rank is {adapter.rank}, and {name} has {rows} x {columns} weights, whose rank is at most "
                f"{min(rows, columns)}; choose that or less, usually 4 to 64."
            )


def _check_quantizable(network: PreTrainedModel, layers: Mapping[str, nn.Module]) -> None:
    for name, layer in layers.items():
        if not isinstance(layer, nn.Linear):
            raise BadInput(
                f"adapter.frozen_bits is 4, and {network.config.model_type} keeps {name} transposed, which is not "
                "quantized; use frozen_bits = 16."
            )


def _prepare_quantization(network: PreTrainedModel, layers: Mapping[str, nn.Module]) -> None:
    """Replaces linear layers by those of bitsandbytes, which quantize their weights to NF4 when the layers are
    moved."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for name, layer in layers.items():
        with torch.device("meta"):
            new = Linear4bit(
                layer.in_features, layer.out_features, layer.bias is not None, torch.bfloat16, quant_type="nf4"
            )
        new.weight = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True)
        new.weight.module = new
        new.bias = layer.bias
        # Otherwise processors with AVX512-BF16 would pack the weights anew when nothing is trained, for a product that
        # has no backward pass and takes only some widths: training after a computation of the loss alone would be
        # silently wrong.
        new.support_avx512bf16_for_cpu = False
        network.set_submodule(name, new)
    # peft adds adapters for 4-bit layers only if the network has this mark.
    network.is_loaded_in_4bit = True


def save_adapters(adapted: PeftModel, adapter: AdapterConfig, folder: Path, *, base: str) -> None:
    """Writes adapters in peft's format: adapter_config.json and adapter_model.safetensors.

    Args:
        adapted: Model with adapters; the result of `add_adapters`.
        adapter: The recipe's adapter.
        folder: Existing folder.
        base: Folder or hub id of the frozen weights.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    config = adapted.peft_config["default"]
    # peft's own `save_pretrained` would ask the hub about the base, and add a page of blanks to fill in.
    tensors = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    save_file({name: one.contiguous() for name, one in tensors.items()}, folder / ADAPTER_WEIGHTS, {"format": "pt"})
    table = config.to_dict() | {
        "base_model_name_or_path": base,
        "inference_mode": True,
        "target_modules": sorted(config.target_modules),
    }
    text = json.dumps(table, indent=2, sort_keys=True, default=str)
    (folder / ADAPTER_CONFIG).write_text(text + "\n", encoding="utf-8")
