"""The real models of setups, as transformers, diffusers, peft, bitsandbytes and torchao make them, and what they read.

`build` and `inputs` make them on any device, with values; `memory_on_gpu.py` trains them. The tracer also uses what
pictures need, for its tensors without values.
"""

from __future__ import annotations

import importlib.util
import tempfile
from typing import TYPE_CHECKING

from calculator.choose.training_code import LOSS_OF_LIGER
from calculator.models.diffusion_models import LATENT_SCALE
from calculator.parts.adapters import ALL_LINEAR, modules_of
from calculator.step.resolve import lora_of, resolve
from calculator.step.setups import Setup

if TYPE_CHECKING:
    import torch

OF_2021 = ("bert", "gpt2", "gptj", "t5")
"""Families whose layers may share weights, and whose dropout a setup gives."""
PACKAGES = {"liger": "liger_kernel", "fp8": "torchao"}
"""What needs packages that the project does not install, and which."""


def build(setup: Setup, device: str) -> torch.nn.Module:
    """The real model of a setup, on a device, in training mode."""
    kind = setup.config.get("model_type")
    if kind == "vit":
        return _vit(setup, device)
    if kind is None:
        return _diffuser(setup, device)
    return (_of_2021 if kind in OF_2021 else _decoder)(setup, device)


def inputs(setup: Setup, device: str) -> dict[str, torch.Tensor]:
    """What a step of a setup reads, drawn at random."""
    import torch

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
    import torch

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
    import torch

    if "target" not in given:
        return model(**given).loss
    given = dict(given)
    target = given.pop("target")
    return torch.nn.functional.mse_loss(model(**given).sample.float(), target.float())


def half_of(setup: Setup) -> torch.dtype:
    """The type of 16 bits in which a setup computes."""
    import torch

    return torch.float16 if setup.precision.removeprefix("amp-") == "fp16" else torch.bfloat16


def dtype_of(setup: Setup) -> torch.dtype:
    """The type of a model's weights, without its adapters."""
    import torch

    in_16_bits = setup.precision in ("bf16", "fp16") if setup.base_bits is None else setup.base_bits == 16
    return half_of(setup) if in_16_bits else torch.float32


def adapters_of(setup: Setup, **given: object) -> object:
    """peft's configuration of a setup's adapters; `given` are further arguments."""
    from peft import LoraConfig

    targets = setup.lora_targets if setup.lora_targets == ALL_LINEAR else setup.lora_targets.split(",")
    if targets == ALL_LINEAR and (model := resolve(setup)).num_experts:
        targets = list(modules_of(model))  # by "all-linear", peft also means the experts, which are not counted
    rank = setup.lora_rank
    return LoraConfig(r=rank, lora_alpha=rank, target_modules=targets, lora_dropout=setup.lora_dropout, **given)


def train_adapters(model: torch.nn.Module, setup: Setup) -> None:
    """Gives a model's adapters the type that a setup names, and trains them, but not the frozen A's."""
    import torch

    dtype = torch.float32 if lora_of(setup, resolve(setup)).adapter_itemsize == 4 else half_of(setup)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = parameter.data.to(dtype)
            parameter.requires_grad_(not (setup.lora_freeze_a and ".lora_A." in name))


def can_run(setup: Setup, *, on_gpu: bool) -> bool:
    """Whether the device and the installed packages are enough: Liger's kernels and FP8's run on a GPU only."""
    needed = [package for need, package in PACKAGES.items() if setup.loss == need or getattr(setup, need, False)]
    return all(on_gpu and importlib.util.find_spec(package) is not None for package in needed)


def _of_2021(setup: Setup, device: str) -> torch.nn.Module:
    import torch
    import transformers

    classes = {
        "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "gptj": (transformers.GPTJConfig, transformers.GPTJForCausalLM),
        "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration),
    }
    values = {key: value for key, value in setup.config.items() if key != "model_type"}
    family = setup.config["model_type"]
    config_class, model_class = classes[family]
    dropouts = {
        "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        "t5": ("dropout_rate",),
    }.get(family, ("resid_pdrop", "attn_pdrop", "embd_pdrop"))
    more = {"gptj": {"tie_word_embeddings": False}, "t5": {"decoder_start_token_id": 0, "feed_forward_proj": "relu"}}
    config = config_class(**values, **dict.fromkeys(dropouts, setup.dropout), **more.get(family, {}), use_cache=False)
    config._attn_implementation = "eager" if family == "gptj" else setup.attention
    with torch.device(device):
        model = model_class(config).to(torch.bfloat16 if setup.precision == "bf16" else torch.float32)
    if setup.shared_groups:
        _share(model, family, setup.shared_groups)
    if setup.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def _share(model: torch.nn.Module, family: str, groups: int) -> None:
    """Gives layer i the parameters of layer i mod `groups`.

    The first layer of a T5 stack has a table of positions that others lack; it keeps it.
    """
    stacks = {
        "bert": lambda: [model.bert.encoder.layer],
        "gpt2": lambda: [model.transformer.h],
        "gptj": lambda: [model.transformer.h],
        "t5": lambda: [model.encoder.block, model.decoder.block],
    }[family]()
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


def _decoder(setup: Setup, device: str) -> torch.nn.Module:
    """A decoder of today, with what the setup changes: 4 bits, products in FP8, Liger's loss, adapters."""
    import torch
    import transformers

    # The padding of published models is no token of a small vocabulary.
    values = {"pad_token_id": None, **setup.config, "attention_dropout": 0.0, "use_cache": False}
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    config._attn_implementation = setup.attention
    four = setup.base_bits == 4
    with torch.device("cpu" if four else device):
        dtype = torch.bfloat16 if four else dtype_of(setup)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    if four:
        model = _in_4_bits(model, setup, device)
    if setup.fp8:
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(model, module_filter_fn=lambda module, name: name != "lm_head")
    if setup.loss == "liger":
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=model, **LOSS_OF_LIGER)
    if setup.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if setup.lora_rank is not None:
        from peft import get_peft_model

        if setup.checkpointing:
            model.enable_input_require_grads()
        model = get_peft_model(model, adapters_of(setup, task_type="CAUSAL_LM"))
        train_adapters(model, setup)
    return model.train()


def _in_4_bits(model: torch.nn.Module, setup: Setup, device: str) -> torch.nn.Module:
    """The model as QLoRA loads it from a checkpoint: linear layers in NF4, with quantized constants."""
    import torch
    import transformers

    quantization = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=half_of(setup),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=quantization, dtype=half_of(setup), device_map={"": device},
            attn_implementation=setup.attention,
        )  # fmt: skip
    for parameter in loaded.parameters():
        parameter.requires_grad_(False)
        if setup.rest_32bit and parameter.dtype == half_of(setup):
            parameter.data = parameter.data.to(torch.float32)
    return loaded


def _vit(setup: Setup, device: str) -> torch.nn.Module:
    import torch
    import transformers

    values = {key: value for key, value in setup.config.items() if key != "model_type"}
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), setup.dropout)
    config = transformers.ViTConfig(**values, **dropouts)
    config._attn_implementation = setup.attention
    with torch.device(device):
        model = transformers.ViTForImageClassification(config).to(dtype_of(setup))
    if setup.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if setup.lora_rank is not None:
        from peft import get_peft_model

        model = get_peft_model(model, adapters_of(setup))
        train_adapters(model, setup)
    return model.train()


def _diffuser(setup: Setup, device: str) -> torch.nn.Module:
    import diffusers
    import torch

    config = {name: value for name, value in setup.config.items() if name != "image_size"}
    with torch.device(device):
        model = getattr(diffusers, config.pop("_class_name"))(**config)
    # diffusers' own `to` warns of modules that stay in 32 bits, though these models have none.
    torch.nn.Module.to(model, dtype_of(setup))
    if setup.checkpointing:
        model.enable_gradient_checkpointing()
    if setup.lora_rank is not None:
        model.requires_grad_(False)
        model.add_adapter(adapters_of(setup))
        train_adapters(model, setup)
    return model.train()
