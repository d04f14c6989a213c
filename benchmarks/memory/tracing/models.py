"""The models of traced steps: those of transformers and diffusers, with adapters, FP8 or Liger's loss."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import MethodType
from unittest.mock import patch

import torch

from benchmarks.memory.real_models import adapters_of, train_adapters
from calculator.step.setups import Setup

DROPOUTS = (
    "resid_pdrop", "attn_pdrop", "embd_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob",
    "attention_dropout", "dropout_rate",
)  # fmt: skip
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
MODULES_OF_LIGER = {"gemma3_text": ("gemma3", "causal_forward")}
"""Liger's module and function for a model type, where they are not named like it and `lce_forward`."""


def build(setup: Setup) -> torch.nn.Module:
    """Makes the model of a setup in training mode, on the default device; pictures' models in the default type."""
    if "_class_name" in setup.config:
        return _of_diffusers(setup).train()
    if setup.config["model_type"] == "vit":
        return _vit(setup).train()
    model = _language_model(setup)
    if setup.fp8:
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(model, module_filter_fn=lambda module, name: name != "lm_head")
    if setup.loss == "liger":
        _use_liger(model)
    if setup.lora_rank is None:
        return model.train()
    _keep_in_32_bits(model)
    if setup.checkpointing:
        model.enable_input_require_grads()
    return _adapted(model, setup).train()


def layers_of(model: torch.nn.Module) -> Sequence[torch.nn.Module]:
    """Finds the layers of a model of transformers."""
    if hasattr(model, "decoder"):
        return [*model.encoder.block, *model.decoder.block]
    if hasattr(model, "bert"):
        return model.bert.encoder.layer
    if hasattr(model, "vit"):
        return model.vit.layers
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def _language_model(setup: Setup) -> torch.nn.Module:
    import transformers

    kind = setup.config["model_type"]
    # The padding of published models is no token of a small vocabulary; T5 puts it before what its decoder reads.
    config = {"pad_token_id": 0 if kind == "t5" else None, **setup.config}
    del config["model_type"]
    made = transformers.AutoConfig.for_model(kind, **config, use_cache=False)
    for name in DROPOUTS:
        if hasattr(made, name):
            setattr(made, name, setup.dropout or 0.0)
    made._attn_implementation = setup.attention
    makers = {"bert": transformers.AutoModelForMaskedLM, "t5": transformers.AutoModelForSeq2SeqLM}
    precision = setup.precision.removeprefix("amp-") if setup.base_bits == 16 else setup.precision
    dtype = HALF.get(precision, torch.float32)
    model = makers.get(kind, transformers.AutoModelForCausalLM).from_config(made, dtype=dtype)
    _checkpoint_layers(model, setup)
    return model


def _vit(setup: Setup) -> torch.nn.Module:
    import transformers
    from transformers.initialization import no_init_weights

    made = transformers.ViTConfig(**{name: value for name, value in setup.config.items() if name != "model_type"})
    if setup.dropout is not None:
        for name in DROPOUTS:
            setattr(made, name, setup.dropout)
    if setup.image_size is not None:
        made.image_size = setup.image_size
    made._attn_implementation = setup.attention
    # Its initial values would be drawn again until they are small enough, and fake tensors have none.
    with no_init_weights():
        model = transformers.ViTForImageClassification(made)
    _checkpoint_layers(model, setup)
    return model if setup.lora_rank is None else _adapted(model, setup)


def _checkpoint_layers(model: torch.nn.Module, setup: Setup) -> None:
    if setup.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for index, layer in enumerate(layers_of(model)):
            layer.gradient_checkpointing = index % int(setup.checkpointing) == 0


def _of_diffusers(setup: Setup) -> torch.nn.Module:
    import diffusers

    config = {name: value for name, value in setup.config.items() if name not in ("_class_name", "image_size")}
    model = getattr(diffusers, setup.config["_class_name"])(**config)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(torch.get_default_dtype()))
    if setup.checkpointing:
        model.enable_gradient_checkpointing()
    return model if setup.lora_rank is None else _adapted(model, setup)


def _adapted(model: torch.nn.Module, setup: Setup) -> torch.nn.Module:
    """Freezes a model and puts LoRA's adapters on it, as the examples of diffusers do."""
    model.requires_grad_(False)
    # PyTorch cannot move a module of fake tensors, and peft makes each where it belongs.
    with patch.object(torch.nn.Module, "to", lambda module, *args, **kwargs: module):
        model.add_adapter(adapters_of(setup))
    train_adapters(model, setup)
    return model


def _keep_in_32_bits(model: torch.nn.Module) -> None:
    """Turns into 32 bits what transformers would load so into a model in float16."""
    for name in getattr(model, "_keep_in_fp32_modules", None) or ():
        for path, module in model.named_modules():
            if path.rpartition(".")[2] == name and module.weight.dtype == torch.float16:
                module.weight = torch.nn.Parameter(module.weight.detach().float())


def _use_liger(model: torch.nn.Module) -> None:
    """Puts Liger's forward in place of the model's own."""
    module, name = MODULES_OF_LIGER.get(model.config.model_type, (model.config.model_type, "lce_forward"))
    module = importlib.import_module(f"liger_kernel.transformers.model.{module}")
    model.forward = MethodType(getattr(module, name), model)
