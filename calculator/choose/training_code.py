"""Python code that trains as a setup says: transformers' `Trainer`, or a loop of PyTorch with FSDP2 if the GPUs divide
the model.

`Trainer` can divide a model too, but accelerate gathers embeddings and output head on their own, which takes other
memory than what is counted (calculator/step/gpus/sharding.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from calculator.families.family import CAUSAL_LM
from calculator.families.registry import family_of
from calculator.models.architecture import Architecture
from calculator.models.architectures import quantization_of
from calculator.parts.adapters import ALL_LINEAR, modules_of
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.step.resolve import resolve
from calculator.step.setups import DEEPSPEED, DIVIDED, Setup, sees_pictures

OPTIMIZERS_OF_TRAINER = {
    "adamw8bit": "adamw_8bit",
    "paged-adamw": "paged_adamw_32bit",
    "paged-adamw8bit": "paged_adamw_8bit",
    "lion": "lion_32bit",
    "lion8bit": "lion_8bit",
    "paged-lion": "paged_lion_32bit",
    "paged-lion8bit": "paged_lion_8bit",
    "adafactor": "adafactor",
    "galore": "galore_adamw",
    "galore8bit": "galore_adamw_8bit",
    "apollo": "apollo_adamw",
    "apollo-mini": "apollo_adamw",
    "sgd": "sgd",
}
"""The optimizers of a setup, as `transformers.TrainingArguments(optim=...)` names them."""
ADAMW_OF_TRAINER = {"foreach": "adamw_torch", "fused": "adamw_torch_fused"}
LOSS_OF_LIGER = dict.fromkeys(("rope", "rms_norm", "layer_norm", "swiglu", "geglu"), False)
"""Switches for Liger that leave only its loss, whose memory is counted; its other kernels stay off."""
SGD_MOMENTUM = 0.9
"""The usual momentum of SGD, whose state is counted."""
TEXT_OF_PICTURES = {
    "gemma3": (CAUSAL_LM, "Gemma3ForCausalLM"),
    "mistral3": ("AutoModelForImageTextToText", "MistralForCausalLM"),
    "llava": ("AutoModelForImageTextToText", "LlamaForCausalLM"),
}
"""Models that also read pictures: the class that loads the model, and the class of its text model."""
GPUS_OF_A_NODE = 8


def training_code(setup: Setup, source: str) -> str:
    """Writes Python code that trains as a setup says; `train_dataset` is the reader's.

    Args:
        setup: As `calculator.reports.fit_report.best` returns it.
        source: Hub id or folder of the model.
    """
    lines = _fsdp2(setup, source) if setup.sharding in DIVIDED else _trainer(setup, source)
    if setup.gpus > 1:
        lines = [f"# Save this as train.py, and run: {_command(setup.gpus)}", *lines]
    return "\n".join([*lines, ""])


def _command(gpus: int) -> str:
    """The command that starts a process for each GPU."""
    if gpus <= GPUS_OF_A_NODE or gpus % GPUS_OF_A_NODE:
        return f"torchrun --nproc-per-node {gpus} train.py"
    nodes = f"--nnodes {gpus // GPUS_OF_A_NODE} --nproc-per-node {GPUS_OF_A_NODE}"
    return f"torchrun {nodes} --rdzv-backend c10d --rdzv-endpoint FIRST_NODE:29500 train.py (on each node)"


@dataclass(frozen=True, slots=True)
class _Model:
    """Lines of code that load a model."""

    imports: tuple[str, ...]
    """Names that the code imports from transformers."""
    loaded: tuple[str, ...]
    adapters: tuple[str, ...]
    """Lines that add adapters, if any are trained."""


def _model(setup: Setup, architecture: Architecture, source: str) -> _Model:
    name = family_of(architecture).auto_class
    text_class = TEXT_OF_PICTURES["gemma3"][1]
    if setup.config is not None and sees_pictures(setup):
        name, text_class = TEXT_OF_PICTURES[setup.config["model_type"]]
    with_adapters = setup.lora_rank is not None
    half = setup.precision in ("bf16", "fp16") or (with_adapters and setup.base_bits in (4, 16))
    dtype = _half(setup) if half else "float32"
    settings = [json.dumps(source), f"dtype=torch.{dtype}", f'attn_implementation="{setup.attention}"']
    imports, loaded = [name], []
    if with_adapters and setup.base_bits == 4:
        imports.append("BitsAndBytesConfig")
        loaded += [
            "quantization = BitsAndBytesConfig(",
            f'    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, '
            f"bnb_4bit_compute_dtype=torch.{dtype}",
            ")",
        ]
        settings.append("quantization_config=quantization")
        if setup.gpus > 1:  # it is quantized on a GPU, which would be the first one for every process
            settings.append('device_map={"": int(os.environ["LOCAL_RANK"])}')
    published = setup.config is None or quantization_of(setup.config) == "mxfp4"
    if architecture.mxfp4 and published:  # experts in 4 bits are not trained
        imports.append("Mxfp4Config")
        settings.append("quantization_config=Mxfp4Config(dequantize=True)")
    loaded += [f"model = {name}.from_pretrained(", *(f"    {one}," for one in settings), ")"]
    if sees_pictures(setup):
        imports.append(text_class)
        loaded += [
            "# It is loaded with what reads pictures, which is not counted; only the text model is kept.",
            'with torch.device("meta"):',
            f"    text = {text_class}(model.config.text_config)",
            "text.model, text.lm_head = model.model.language_model, model.lm_head",
            "model = text",
        ]
    if family_of(architecture).auto_class == CAUSAL_LM:
        loaded.append("model.config.use_cache = False")
    return _Model(tuple(imports), tuple(loaded), _adapters(setup, architecture) if with_adapters else ())


def _half(setup: Setup) -> str:
    """Name of the 16-bit type in which a setup computes."""
    return {"bf16": "bfloat16", "fp16": "float16"}[setup.precision.removeprefix("amp-")]


def _adapters(setup: Setup, architecture: Architecture) -> tuple[str, ...]:
    # peft has no task of BERT's masked words, and its class for T5 needs what transformers 5 no longer has.
    task = "CAUSAL_LM" if family_of(architecture).auto_class == CAUSAL_LM else None
    targets = setup.lora_targets
    named = list(modules_of(architecture)) if targets == ALL_LINEAR else targets.split(",")
    return (
        "adapters = LoraConfig(",
        f"    r={setup.lora_rank}, lora_alpha={2 * setup.lora_rank}, task_type={_literal(task)},",
        f"    target_modules={json.dumps(named)},",
        ")",
        "model = get_peft_model(model, adapters)",
        *(["model.enable_input_require_grads()"] if setup.checkpointing else []),
    )


def _trainer(setup: Setup, source: str) -> list[str]:
    """The code for transformers' `Trainer`."""
    model = _model(setup, resolve(setup), source)
    return [
        *(["import os", ""] if any("os.environ" in line for line in model.loaded) else []),
        "import torch",
        *(["from peft import LoraConfig, get_peft_model"] if model.adapters else []),
        f"from transformers import {', '.join(sorted([*model.imports, 'Trainer', 'TrainingArguments']))}",
        "",
        *model.loaded,
        *model.adapters,
        "",
        *_arguments(setup),
    ]


def _fsdp2(setup: Setup, source: str) -> list[str]:
    """The code for PyTorch's FSDP2: every layer is divided, then the whole model, as PyTorch's tutorial does it.

    See https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html.
    """
    architecture = resolve(setup)
    model = _model(setup, architecture, source)
    policy, scaled = "MixedPrecisionPolicy()", setup.precision == "amp-fp16"
    if setup.precision.startswith("amp-"):
        policy = f"MixedPrecisionPolicy(param_dtype=torch.{_half(setup)}, reduce_dtype=torch.float32)"
    made = [
        *model.loaded,
        *([f"apply_liger_kernel(model, {_literal(LOSS_OF_LIGER)})"] if setup.loss == "liger" else []),
        f"layers = {family_of(architecture).layers}",
        *model.adapters,
        *(['model.gradient_checkpointing_enable({"use_reentrant": False})'] if setup.checkpointing else []),
        f"policy = {policy}",
        "for layer in layers:",
        f"    fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward={setup.sharding == 'zero-3'})",
        "return fully_shard(model, mesh=mesh, mp_policy=policy).train()",
    ]
    return [
        *_imports_of_fsdp2(setup, model),
        "",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        'init_process_group("nccl")',
        'mesh = init_device_mesh("cuda", (get_world_size(),))',
        "",
        "",
        "def divided():",
        *_indented(made),
        "",
        "",
        "# One process after another, since each has the whole model in the computer's own memory for a while.",
        'for turn in range(int(os.environ["LOCAL_WORLD_SIZE"])):',
        '    if turn == int(os.environ["LOCAL_RANK"]):',
        "        model = divided()",
        "    barrier()",
        "trained = [one for one in model.parameters() if one.requires_grad]",
        f"optimizer = torch.optim.{_torch_optimizer(setup)}",
        *(['scaler = torch.amp.GradScaler("cuda")'] if scaled else []),
        *_loop(setup, scaled=scaled),
        "options = StateDictOptions(",
        f"    full_state_dict=True, cpu_offload=True, ignore_frozen_params={bool(model.adapters)}",
        ")",
        "whole = get_model_state_dict(model, options=options)",
        "if get_rank() == 0:",
        '    model.save_pretrained("trained", state_dict=whole)',
        "destroy_process_group()",
    ]


def _imports_of_fsdp2(setup: Setup, model: _Model) -> list[str]:
    liger = setup.loss == "liger"
    return [
        *(["# The loss is that of a package: pip install liger-kernel"] if liger else []),
        "import os",
        "",
        "import torch",
        *(["from peft import LoraConfig, get_peft_model"] if model.adapters else []),
        "from torch.distributed import barrier, destroy_process_group, get_rank, get_world_size, init_process_group",
        "from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict",
        "from torch.distributed.device_mesh import init_device_mesh",
        "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard",
        "from torch.utils.data import DataLoader, DistributedSampler",
        f"from transformers import {', '.join([*sorted(model.imports), 'default_data_collator'])}",
        *(["from transformers.integrations.liger import apply_liger_kernel"] if liger else []),
    ]


def _loop(setup: Setup, *, scaled: bool) -> list[str]:
    """The training loop of three epochs, which is `Trainer`'s default."""
    return [
        f"# Each sample of train_dataset has {setup.sequence_length} tokens.",
        "sampler = DistributedSampler(train_dataset)",
        "batches = DataLoader(",
        f"    train_dataset, batch_size={setup.micro_batch_size}, sampler=sampler, collate_fn=default_data_collator, "
        "drop_last=True",
        ")",
        "for epoch in range(3):",
        "    sampler.set_epoch(epoch)",
        "    for number, batch in enumerate(batches, 1):",
        '        loss = model(**{name: values.to("cuda") for name, values in batch.items()}).loss',
        *_indented(_update(setup.accumulation_steps, scaled=scaled), 8),
    ]


def _update(accumulation_steps: int, *, scaled: bool) -> list[str]:
    """Lines for backward and for the optimizer's step, which follows `accumulation_steps` micro-batches."""
    loss = f"(loss / {accumulation_steps})" if accumulation_steps > 1 else "loss"
    step = ["scaler.step(optimizer)", "scaler.update()"] if scaled else ["optimizer.step()"]
    step.append("optimizer.zero_grad()")
    if accumulation_steps > 1:
        step = [f"if number % {accumulation_steps} == 0:", *_indented(step)]
    backward = f"scaler.scale({loss}).backward()" if scaled else f"{loss}.backward()"
    return [
        backward,
        *step,
        "if number % 10 == 0 and get_rank() == 0:",
        '    print(f"epoch {epoch}, batch {number}: loss {loss.item():.3f}")',
    ]


def _torch_optimizer(setup: Setup) -> str:
    """The optimizer, with `Trainer`'s default learning rate and decay."""
    if setup.optimizer == "sgd":
        return f"SGD(trained, lr=5e-5, momentum={SGD_MOMENTUM}, foreach=True)"
    return f"AdamW(trained, lr=5e-5, weight_decay=0.0, {setup.optimizer_impl}=True)"


def deepspeed_config(setup: Setup) -> dict[str, object]:
    """DeepSpeed's configuration as transformers' Trainer completes it; buckets have DeepSpeed's own sizes."""
    config: dict[str, object] = {
        "zero_optimization": {"stage": int(setup.sharding[-1])},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    if setup.precision.startswith("amp-"):
        config[setup.precision.removeprefix("amp-")] = {"enabled": True}
    return config


def _indented(lines: Iterable[str], spaces: int = 4) -> list[str]:
    return [f"{' ' * spaces}{line}" for line in lines]


def _literal(value: object) -> str:
    """A setting as Python code; texts have double quotes."""
    return json.dumps(value) if isinstance(value, str | list) else repr(value).replace("'", '"')


def _arguments(setup: Setup) -> list[str]:
    optimizer = ADAMW_OF_TRAINER[setup.optimizer_impl] if setup.optimizer == "adamw" else None
    settings: dict[str, object] = {
        "output_dir": "trained",
        "per_device_train_batch_size": setup.micro_batch_size,
        "gradient_accumulation_steps": setup.accumulation_steps,
        "optim": optimizer or OPTIMIZERS_OF_TRAINER[setup.optimizer],
    }
    if setup.optimizer in DEFAULT_RANKS:
        settings["optim_target_modules"] = list(modules_of(resolve(setup)))
        settings["optim_args"] = f"rank={setup.optimizer_rank or DEFAULT_RANKS[setup.optimizer]}"
        if setup.optimizer_in_backward:
            settings["optim"] += "_layerwise"
        if setup.optimizer == "apollo-mini":
            settings["optim_args"] += ", scale_type=tensor, scale=128"
    if setup.optimizer == "sgd":  # by itself, `Trainer` has none
        settings["optim_args"] = f"momentum={SGD_MOMENTUM}"
    if setup.sharding in DEEPSPEED:
        settings["deepspeed"] = deepspeed_config(setup)
    if setup.precision.startswith("amp-"):
        settings[setup.precision.removeprefix("amp-")] = True
    if setup.checkpointing:
        settings["gradient_checkpointing"] = True
    if setup.loss == "liger":
        settings |= {"use_liger_kernel": True, "liger_kernel_config": LOSS_OF_LIGER}
    needed = ["# The GPUs are divided by a package: pip install deepspeed"] if setup.sharding in DEEPSPEED else []
    if setup.optimizer in DEFAULT_RANKS:
        package = "galore-torch" if setup.optimizer.startswith("galore") else "apollo-torch"
        needed.append(f"# The optimizer is that of a package: pip install {package}")
    if setup.loss == "liger":
        needed.append("# The loss is that of a package: pip install liger-kernel")
    return [
        *needed,
        "arguments = TrainingArguments(",
        *(f"    {name}={_literal(value)}," for name, value in settings.items()),
        ")",
        f"# Each sample of train_dataset has {setup.sequence_length} tokens.",
        "Trainer(model=model, args=arguments, train_dataset=train_dataset).train()",
    ]
