"""The real models of setups, as transformers, diffusers, peft, bitsandbytes and torchao make them, and what they read.

`build` and `inputs` make them on any device, with values, for `memory_on_gpu.py`; the tracer makes them of tensors
without values.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import MethodType
from unittest.mock import patch

import torch

from calculator.models.diffusion_models import LATENT_SCALE
from calculator.parts.adapters import ALL_LINEAR, modules_of
from calculator.step.resolve import lora_of, resolve
from calculator.step.setups import Setup

PACKAGES = {"liger": "liger_kernel", "fp8": "torchao"}
"""What needs packages that the project does not install, and which."""
DROPOUTS = (
    "resid_pdrop", "attn_pdrop", "embd_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob",
    "attention_dropout", "residual_dropout", "embedding_dropout", "dropout_rate",
)  # fmt: skip
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
MODULES_OF_LIGER = {"gemma3_text": ("gemma3", "causal_forward")}
"""Liger's module and function for a model type, where they are not named like it and `lce_forward`."""


@contextmanager
def made_on(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Within `with`, tensors are made on a device, in a type if none is named."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(usual)


def build(setup: Setup) -> torch.nn.Module:
    """Makes the model of a setup in training mode, within `made_on`; pictures' models are of the default type."""
    if "_class_name" in setup.config:
        return _of_diffusers(setup).train()
    if setup.config["model_type"] == "vit":
        return _vit(setup).train()
    model = _language_model(setup)
    if setup.base_bits == 4:
        model = _in_4_bits(model, setup)
    _checkpoint_layers(model, setup)
    if setup.shared_groups:
        _share(model, setup.shared_groups)
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
    maker = makers.get(kind, transformers.AutoModelForCausalLM)
    return maker.from_config(made, dtype=half_of(setup) if setup.base_bits == 4 else dtype_of(setup))


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
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    # PyTorch cannot move a module of fake tensors, and peft makes each where it belongs, unless weights have 4 bits.
    moves = patch.object(torch.nn.Module, "to", lambda module, *args, **kwargs: module)
    with nullcontext() if setup.base_bits == 4 else moves:
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


def _share(model: torch.nn.Module, groups: int) -> None:
    """Gives layer i the parameters of layer i mod `groups`.

    The first layer of a T5 stack has a table of positions that others lack; it keeps it.
    """
    stacks = [model.encoder.block, model.decoder.block] if hasattr(model, "decoder") else [layers_of(model)]
    for layers in stacks:
        for index, layer in enumerate(layers):
            owner = layers[index % groups]
            if owner is layer:
                continue
            modules = dict(owner.named_modules())
            for name, module in layer.named_modules():
                for parameter in list(module._parameters):
                    if module._parameters[parameter] is not None:
                        module._parameters[parameter] = modules[name]._parameters[parameter]


def _in_4_bits(model: torch.nn.Module, setup: Setup) -> torch.nn.Module:
    """The model as QLoRA loads it from a checkpoint: linear layers in NF4, with quantized constants."""
    import transformers

    quantization = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=half_of(setup),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=quantization, dtype=half_of(setup), device_map={"": torch.get_default_device()},
            attn_implementation=setup.attention,
        )  # fmt: skip
    for parameter in loaded.parameters():
        parameter.requires_grad_(False)
        if setup.rest_32bit and parameter.dtype == half_of(setup):
            parameter.data = parameter.data.to(torch.float32)
    return loaded


def inputs(setup: Setup, device: str) -> dict[str, torch.Tensor]:
    """What a step of a setup reads, drawn at random."""
    a = resolve(setup)
    if a.family not in ("vit", "sd3", "flux"):
        shape = (setup.micro_batch_size, setup.sequence_length)
        target = (setup.micro_batch_size, setup.target_length or setup.sequence_length)
        given = {"input_ids": torch.randint(a.vocab_size, shape), "labels": torch.randint(a.vocab_size, target)}
        return {name: tensor.to(device) for name, tensor in given.items()}
    given = {}
    for name, tensor in of_pictures(setup).items():
        given[name] = tensor if name == "labels" else torch.rand(tensor.shape)
    dtype = dtype_of(setup)
    return {
        name: tensor.to(device, None if name in ("labels", "pixel_values") else dtype) for name, tensor in given.items()
    }


def of_pictures(setup: Setup) -> dict[str, torch.Tensor]:
    """What a model of pictures reads: zeros, on the default device and with the default type."""
    a, samples = resolve(setup), setup.micro_batch_size
    if not a.diffuses:
        pixels = torch.zeros(samples, a.channels, a.image_height, a.image_width, dtype=torch.float32)
        return {"pixel_values": pixels, "labels": torch.zeros(samples, dtype=torch.long)}
    tokens = setup.sequence_length or a.sequence_length
    given = {
        "encoder_hidden_states": torch.zeros(samples, tokens, a.text_width),
        "pooled_projections": torch.zeros(samples, a.pooled_width),
        "timestep": torch.zeros(samples),
    }
    if a.family == "sd3":
        rows, columns = a.image_height // LATENT_SCALE, a.image_width // LATENT_SCALE
        channels = a.output_channels // (a.patch_size // LATENT_SCALE) ** 2
        given["hidden_states"] = torch.zeros(samples, a.channels, rows, columns)
        return given | {"target": torch.zeros(samples, channels, rows, columns)}
    given["hidden_states"] = torch.zeros(samples, a.image_tokens, a.channels)
    given["txt_ids"], given["img_ids"] = torch.zeros(tokens, 3), torch.zeros(a.image_tokens, 3)
    if a.guided:
        given["guidance"] = torch.zeros(samples)
    return given | {"target": torch.zeros(samples, a.image_tokens, a.output_channels)}


def loss_of(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """The model's own loss, or the squared error of a diffusion model in 32 bits, as diffusers' examples compute it."""
    if "target" not in given:
        return model(**given).loss
    given = dict(given)
    target = given.pop("target")
    return torch.nn.functional.mse_loss(model(**given).sample.float(), target.float())


def half_of(setup: Setup) -> torch.dtype:
    """The type of 16 bits in which a setup computes."""
    return HALF["fp16" if setup.precision.removeprefix("amp-") == "fp16" else "bf16"]


def dtype_of(setup: Setup) -> torch.dtype:
    """The type of a model's weights, without its adapters."""
    in_16_bits = setup.precision in ("bf16", "fp16") if setup.base_bits is None else setup.base_bits == 16
    return half_of(setup) if in_16_bits else torch.float32


def adapters_of(setup: Setup) -> object:
    """peft's configuration of a setup's adapters."""
    from peft import LoraConfig

    targets = setup.lora_targets if setup.lora_targets == ALL_LINEAR else setup.lora_targets.split(",")
    if targets == ALL_LINEAR and (model := resolve(setup)).num_experts:
        targets = list(modules_of(model))  # by "all-linear", peft also means the experts, which are not counted
    rank = setup.lora_rank
    return LoraConfig(r=rank, lora_alpha=rank, target_modules=targets, lora_dropout=setup.lora_dropout)


def train_adapters(model: torch.nn.Module, setup: Setup) -> None:
    """Gives a model's adapters the type that a setup names, and trains them, but not the frozen A's."""
    dtype = torch.float32 if lora_of(setup, resolve(setup)).adapter_itemsize == 4 else half_of(setup)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(dtype)
            parameter.requires_grad_(not (setup.lora_freeze_a and ".lora_A." in name))


def can_run(setup: Setup, *, on_gpu: bool) -> bool:
    """Returns True if the device and the installed packages are enough: Liger's kernels and FP8's run on a GPU only."""
    needed = [package for need, package in PACKAGES.items() if setup.loss == need or getattr(setup, need, False)]
    return all(on_gpu and importlib.util.find_spec(package) is not None for package in needed)
