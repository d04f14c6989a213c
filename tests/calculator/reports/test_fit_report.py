"""`python -m calculator fit`: its code is run, and the model that it builds is compared with the estimate."""

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.__main__ import main
from calculator.choose.devices import device_named
from calculator.choose.fit import suggestions, verdict
from calculator.choose.training_code import OPTIMIZERS_OF_TRAINER, training_code
from calculator.reports.fit_report import PRECISIONS_OF_TRAINER, best, can_be_written
from calculator.step.resolve import resolve
from calculator.tape.autograd import rounded
from tests.support.ports import free_port
from tests.support.programs import run_program

SIZES = {
    "llama": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64, "tie_word_embeddings": False,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 64},
    "gemma3": {  # with a vision tower, which is not trained
        "text_config": {
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 96, "max_position_embeddings": 64,
        },
        "vision_config": {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 28, "patch_size": 14,
        },
        "mm_tokens_per_image": 4,
    },
    "mistral3": {
        "text_config": {
            "model_type": "mistral", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96,
            "max_position_embeddings": 64, "sliding_window": None,
        },
        "vision_config": {
            "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
        },
    },
    "llava": {
        "text_config": {
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64,
        },
        "vision_config": {
            "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
        },
    },
    "bert": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96,
        "max_position_embeddings": 64,
    },
    "t5": {
        "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
        "vocab_size": 96, "decoder_start_token_id": 0,
    },
}  # fmt: skip
LENGTH = 16


@pytest.fixture
def folder(request, tmp_path, monkeypatch):
    """A folder with a small model of transformers; the code runs beside it."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    config = transformers.AutoConfig.for_model(request.param, **SIZES[request.param], pad_token_id=0)
    maker_of(request.param).from_config(config).save_pretrained(tmp_path / "model")
    yield tmp_path / "model"
    # `Trainer` asks bitsandbytes for embeddings in 32 bits, which it then does for each first parameter of the process.
    if (bitsandbytes := sys.modules.get("bitsandbytes")) is not None:
        bitsandbytes.optim.GlobalOptimManager.get_instance().initialize()


def maker_of(kind):
    """The class of transformers that makes and reads a model."""
    import transformers

    classes = {"bert": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM"}
    classes |= dict.fromkeys(("mistral3", "llava"), "AutoModelForImageTextToText")
    return getattr(transformers, classes.get(kind, "AutoModelForCausalLM"))


@pytest.mark.parametrize(
    "folder, changes",
    [
        ("gpt2", {}),
        ("gpt2", {"precision": "fp32", "checkpointing": True, "optimizer_impl": "fused"}),
        ("gpt2", {"precision": "bf16", "optimizer": "adafactor", "accumulation_steps": 2}),
        ("llama", {"lora_rank": 3, "base_bits": 16}),
        ("llama", {"lora_rank": 3, "base_bits": 4, "checkpointing": True}),
        ("llama", {"lora_rank": 3, "lora_targets": "q_proj,v_proj", "attention": "eager"}),
        ("gemma3", {"precision": "bf16"}),
        ("gemma3", {"lora_rank": 3, "base_bits": 16}),
        ("mistral3", {"precision": "bf16"}),
        ("llava", {"lora_rank": 3, "base_bits": 16}),
        ("bert", {}),
        ("bert", {"lora_rank": 3, "base_bits": 16}),
        ("t5", {"optimizer": "sgd"}),
        ("t5", {"lora_rank": 3, "base_bits": 16, "checkpointing": True}),
    ],
    indirect=["folder"],
)
def test_the_code_trains_what_is_estimated(folder, changes):
    torch = pytest.importorskip("torch")
    config = json.loads((folder / "config.json").read_text())
    setup = Setup(config=config, micro_batch_size=2, sequence_length=LENGTH, embeddings_32bit=True, **changes)
    sample = {"input_ids": torch.arange(LENGTH), "labels": torch.arange(LENGTH)}
    names = {"train_dataset": [sample] * 4}
    # `Trainer` computes in bf16 on a CPU only if it is told to use one.
    code = training_code(setup, str(folder)).replace("TrainingArguments(", "TrainingArguments(use_cpu=True,")
    exec(code, names)
    model, arguments, expected = names["model"], names["arguments"], estimate(setup)
    trained = [one for one in model.parameters() if one.requires_grad]
    assert sum(one.numel() for one in trained) == expected.trained_parameters
    assert sum(one.numel() * one.itemsize for one in trained) <= expected.gradient_bytes
    stored = sum(one.numel() * one.itemsize for one in model.parameters())
    # Each tensor takes whole blocks of 512 bytes; a quantized one consists of six.
    assert stored <= expected.gpu.weights <= stored + 6 * 512 * (len(list(model.parameters())) + 8)
    assert arguments.per_device_train_batch_size == 2 and arguments.bf16 == (setup.precision == "amp-bf16")
    assert arguments.gradient_checkpointing is bool(setup.checkpointing)


@pytest.mark.parametrize("optimizer", ["adamw", *OPTIMIZERS_OF_TRAINER])
@pytest.mark.parametrize("precision", ["amp-bf16", "bf16"])
@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_the_code_makes_the_optimizer_state_that_is_counted(folder, optimizer, precision, monkeypatch):
    """Each tensor of the state after a training, in blocks of 512 bytes, and the type of each trained parameter."""
    torch = pytest.importorskip("torch")
    if optimizer.startswith("apollo"):
        pytest.importorskip("apollo_torch")
    if optimizer.startswith("galore"):
        pytest.importorskip("galore_torch")
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)  # GaLore's in 8 bits waits for a GPU
    config = json.loads((folder / "config.json").read_text())
    setup = Setup(
        config=config, micro_batch_size=2, sequence_length=LENGTH, embeddings_32bit=True, optimizer=optimizer,
        precision=precision,
    )  # fmt: skip
    sample = {"input_ids": torch.arange(LENGTH), "labels": torch.arange(LENGTH)}
    names = {"train_dataset": [sample] * 4}
    code = training_code(setup, str(folder)).replace("TrainingArguments(", "TrainingArguments(use_cpu=True,")
    exec(code.replace("Trainer(model", "trainer = Trainer(model").replace(".train()", "") + "trainer.train()", names)
    made, expected = names["trainer"].optimizer, estimate(setup)
    trained = [one for group in made.param_groups for one in group["params"]]
    assert sum(one.numel() for one in trained) == expected.trained_parameters
    assert {one.dtype for one in trained} == {torch.bfloat16 if precision == "bf16" else torch.float32}
    kept = {one.untyped_storage().data_ptr(): one for one in _tensors_in(dict(made.state))}
    # On a GPU, AdamW's counts of steps are numbers on the host.
    counted = [one for one in kept.values() if not (optimizer == "adamw" and one.numel() == 1)]
    assert sum(-(-one.nbytes // 512) * 512 for one in counted) == expected.optimizer_state_bytes


def _tensors_in(state):
    """Yields all tensors of an optimizer's state, those of GaLore's projectors included."""
    import torch

    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors_in(value)
    elif hasattr(state, "ortho_matrix"):
        yield state.ortho_matrix


@pytest.mark.parametrize("folder", ["t5"], indirect=True)
def test_a_frozen_t5_in_float16_has_modules_of_32_bits(folder):
    """transformers loads them so, because their values overflow float16."""
    pytest.importorskip("peft")
    config = json.loads((folder / "config.json").read_text())
    setup = Setup(config=config, sequence_length=LENGTH, precision="amp-fp16", lora_rank=3, base_bits=16)
    code, names = training_code(setup, str(folder)), {}
    exec(code[: code.index("arguments = ")], names)
    weights = list(names["model"].parameters())
    assert estimate(setup).gpu.weights == sum(rounded(one.numel() * one.itemsize) for one in weights)


ON_CPUS = {
    'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))': "",
    '"cuda"': '"cpu"',
    # The store of torchrun meets once; here the processes meet for each setup.
    '"nccl"': '"gloo", init_method=f"file://{folder}/met", rank=int(os.environ["RANK"]), world_size=2',
    '"trained"': 'f"{folder}/trained"',
    "sampler = ": "train_dataset = [{name: torch.arange(16) for name in ('input_ids', 'labels')}] * 8\nsampler = ",
    "optimizer.zero_grad()": "held(model, optimizer); optimizer.zero_grad()",
}
"""What the code for several GPUs says -> what it says here, where two processes of the CPU train."""
IN_ONE_PROCESS = """
import json, sys
from pathlib import Path
from tests.calculator.reports.test_fit_report import on_cpus

for folder in sys.argv[1:]:
    kept = []
    exec((Path(folder) / "train.py").read_text(), {"folder": folder, "held": on_cpus(kept)})
    print(json.dumps(kept[-1]), flush=True)
"""


def on_cpus(kept):
    """A function that notes what a process holds as an update ends."""

    def blocks(tensor):
        return rounded(tensor.untyped_storage().nbytes())

    def held(model, optimizer):
        trained = [one for one in model.parameters() if one.requires_grad]
        state = [value for one in optimizer.state.values() for value in one.values()]
        # A fused optimizer has its counts of steps on the device, others on the host.
        state = [value for value in state if value.dim() or optimizer.defaults.get("fused")]
        gradients = {one.grad.to_local().untyped_storage()._cdata: one.grad.to_local() for one in trained}
        kept.append(
            {
                "trained": sum(one.numel() for one in trained),
                "gradients": sum(map(blocks, gradients.values())),
                "state": sum(blocks(getattr(one, "_local_tensor", one)) for one in state),
                "divided": sum(type(module).__name__.startswith("FSDP") for module in model.modules()),
            }
        )

    return held


SEVERAL = (
    ("llama", {"sharding": "zero-3", "checkpointing": True, "accumulation_steps": 2}),
    ("llama", {"sharding": "zero-2", "lora_rank": 3, "base_bits": 16, "checkpointing": True}),
    ("gpt2", {"sharding": "zero-3", "precision": "amp-fp16", "optimizer_impl": "fused"}),
    ("bert", {"sharding": "zero-2", "precision": "bf16", "optimizer": "sgd"}),
    ("t5", {"sharding": "zero-3", "precision": "fp32"}),
    ("t5", {"sharding": "zero-2", "lora_rank": 3, "base_bits": 16}),
    ("gemma3", {"sharding": "zero-3", "precision": "bf16"}),
)


@pytest.mark.programs
@pytest.mark.timeout(480)
def test_the_code_for_several_gpus_divides_what_is_estimated(tmp_path):
    transformers, safetensors = pytest.importorskip("transformers"), pytest.importorskip("safetensors.torch")
    setups, folders = [], []
    for number, (kind, changes) in enumerate(SEVERAL):
        folders.append(tmp_path / str(number))
        config = transformers.AutoConfig.for_model(kind, **SIZES[kind], pad_token_id=0)
        maker_of(kind).from_config(config).save_pretrained(folders[-1])
        config = json.loads((folders[-1] / "config.json").read_text())
        setups.append(Setup(config=config, micro_batch_size=2, sequence_length=LENGTH, gpus=2, **changes))
        code = training_code(setups[-1], str(folders[-1]))
        assert code.startswith("# Save this as train.py, and run: torchrun --nproc-per-node 2 train.py\n")
        for said, here in ON_CPUS.items():
            assert said in code
            code = code.replace(said, here)
        (folders[-1] / "train.py").write_text(code)
    (tmp_path / "all.py").write_text(IN_ONE_PROCESS)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    ]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    ran = run_program([*command, tmp_path / "all.py", *folders], within=450, env=env)
    assert ran.returncode == 0, ran.stderr
    printed = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    for setup, folder in zip(setups, folders, strict=True):
        expected, architecture = estimate(setup), resolve(setup)
        of_first = {
            "trained": expected.trained_parameters,
            "gradients": expected.gradient_bytes,
            "state": expected.optimizer_state_bytes,
            "divided": architecture.num_layers + (architecture.num_decoder_layers or 0) + 1,
        }
        assert of_first in printed, folder
        weights = safetensors.load_file(next((folder / "trained").glob("*.safetensors")))
        assert weights and all(bool(one.isfinite().all()) for one in weights.values())
        if setup.lora_rank is None:
            kind = setup.config["model_type"]
            _, lacking = maker_of(kind).from_pretrained(folder / "trained", output_loading_info=True)
            assert not any(lacking.values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("folder", ["llama"], indirect=True)
@pytest.mark.parametrize(
    "name, package, rank",
    [("galore", "galore_torch", 5), ("apollo", "apollo_torch", None), ("apollo-mini", "apollo_torch", 2)],
)
def test_the_code_projects_the_matrices_that_are_counted(folder, name, package, rank):
    torch = pytest.importorskip("torch")
    pytest.importorskip(package)
    config = json.loads((folder / "config.json").read_text())
    setup = Setup(config=config, sequence_length=LENGTH, precision="bf16", optimizer=name, optimizer_rank=rank)
    sample = {"input_ids": torch.arange(LENGTH), "labels": torch.arange(LENGTH)}
    names = {"train_dataset": [sample] * 4}
    code = training_code(setup, str(folder)).replace("TrainingArguments(", "TrainingArguments(use_cpu=True,")
    assert f"pip install {package.replace('_', '-')}" in code
    exec(code.replace("Trainer(model", "trainer = Trainer(model").replace(".train()", "") + "trainer.train()", names)
    state = names["trainer"].optimizer.optimizer.state
    kept = [getattr(value, "ortho_matrix", value) for one in state.values() for value in one.values()]
    sizes = [value.untyped_storage().nbytes() for value in kept if isinstance(value, torch.Tensor)]
    assert sum(-(-size // 512) * 512 for size in sizes) == estimate(setup).optimizer_state_bytes


@pytest.mark.parametrize("model", ["gpt2-xl", "t5-3b", "llama-3.1-8b", "llama-3.2-1b", "gemma-3-4b", "bert-large"])
@pytest.mark.parametrize("gpu", ["rtx-2060", "t4", "rtx-4090", "cuda-80gb"])
def test_what_it_finds_fits_and_twice_the_batch_does_not(model, gpu):
    device = device_named(gpu)
    first = Setup(model=model, sequence_length=512, precision="amp-bf16" if device.bfloat16 else "amp-fp16")
    try:
        setup, judged, changed = best(first, device)
    except BadSetup as refused:
        assert str(refused).startswith("No settings of Trainer make")
        assert not suggestions(first, device, allowed=can_be_written)
        return
    assert judged == verdict(setup, device) and judged.fits
    assert setup.precision in PRECISIONS_OF_TRAINER and not setup.offload_optimizer
    assert isinstance(setup.checkpointing, bool) and setup.shared_groups is None
    assert (changed is not None) == (verdict(first, device).standing != "fits")
    twice = verdict(replace(setup, micro_batch_size=2 * setup.micro_batch_size), device)
    assert setup.micro_batch_size == 64 or twice.standing != "fits"


@pytest.mark.parametrize(
    "line, said",
    [
        ("fit gpt3-1.3b --gpu t4", "No weights of gpt3-1.3b are published"),
        ("fit dalle-2021 --gpu t4", "No weights of dalle-2021 are published"),
        ("fit llama-3.1-70b --gpu t4", "smaller model, or give --gpus 64."),
        ("fit gemma-3-27b --gpu rtx-3060", "smaller model, or give --gpus 16."),
        (
            "fit llama-3.1-70b --gpu t4 --gpus 2",
            "No settings of Trainer or FSDP2 make llama-3.1-70b fit 2 of the Tesla",
        ),
        ("fit gpt2 --gpu t4 --gpus 0", "gpus is a whole number from 1 to"),
        ("fit gpt2 --gpu t5", "t5"),
        ("fit gpt2 --gpu t4 --sequence-length 0", "sequence_length is a whole number from 1 to 1024, not 0"),
        ("fit --gpu t4", "Give a model or --config FILE, one of the two"),
        ("fit gpt2", "the following arguments are required: --gpu"),
        ("fit gpt2 --gpu t4 --precision fp16", "fp16"),
        ("swarm --config nowhere.json --volunteers 3:1:5/5", "nowhere.json cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(line, said, capsys):
    assert main(shlex.split(line)) == 2
    printed = capsys.readouterr()
    assert said.lower() in printed.err.lower() and printed.err.count("\n") == 1 and not printed.out


def test_as_many_gpus_as_it_names_suffice(capsys):
    assert main(shlex.split("fit llama-3.1-70b --gpu cuda-24gb --json")) == 2
    number = int(capsys.readouterr().err.split("--gpus ")[1].rstrip(".\n"))
    assert main(shlex.split(f"fit llama-3.1-70b --gpu cuda-24gb --gpus {number} --json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["setup"]["gpus"] == number and answer["setup"]["sharding"] == "zero-3" and answer["verdict"]["fits"]
    compile(answer["snippet"], "snippet", "exec")


def test_it_prints_code_or_json(capsys):
    assert main(shlex.split("fit llama-3.1-8b --gpu rtx-4090")) == 0
    text = capsys.readouterr().out
    compile(text, "snippet", "exec")
    assert text.startswith("# Trained with QLoRA of rank 16") and '"meta-llama/Llama-3.1-8B"' in text
    assert main(shlex.split("fit llama-3.1-8b --gpu rtx-4090 --json")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert text.endswith(answer["snippet"] + "\n") and answer["verdict"]["fits"]
    assert estimate(Setup(**answer["setup"])).gpu.total < answer["verdict"]["need_bytes"]


def test_answers_are_as_the_schema_says(capsys):
    jsonschema = pytest.importorskip("jsonschema")
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    check = jsonschema.Draft202012Validator(schema)
    check.check_schema(schema)
    lines = (
        "gpt2 --json",
        "t5-3b --json --offload-optimizer --gpu t4",
        "llama-3.1-8b --json --lora-rank 16 --base-bits 4 --gpu t4",
        "mixtral-8x7b --json",
        "dalle-2021 --json --delta-rule --offload-optimizer",
    )
    for line in lines:
        assert main(shlex.split(line)) == 0
        answer = json.loads(capsys.readouterr().out)
        check.validate(answer)
        with pytest.raises(jsonschema.ValidationError):
            check.validate(answer | {"gpu": answer["gpu"] | {"total": "much"}})
    setups = jsonschema.Draft202012Validator(schema["$defs"]["setup"])
    setups.validate({"model": "gpt2", "checkpointing": 2, "dropout": None})
    with pytest.raises(jsonschema.ValidationError):
        setups.validate({"modell": "gpt2"})


def test_a_swarm_takes_a_config_and_adapters(tmp_path, capsys):
    config = {"model_type": "llama"} | SIZES["llama"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    line = f"swarm --config {tmp_path}/config.json --sequence-length 64 --volunteers 3:10:20/20 --json"
    trained = []
    for flags in ("", " --lora-rank 3", " --lora-rank 3 --lora-freeze-a"):
        assert main(shlex.split(line + flags)) == 0
        trained.append(json.loads(capsys.readouterr().out)["parameters"])
    setups = [{}, {"lora_rank": 3}, {"lora_rank": 3, "lora_freeze_a": True}]
    assert trained == [estimate(Setup(config=config, **one)).trained_parameters for one in setups]


@pytest.mark.parametrize("name", ["gemma-2-2b", "gpt-j-6b", "gpt2", "gemma-3-1b", "qwen3-0.6b"])
def test_fused_attention_is_asked_for_only_where_the_models_code_has_it(name, capsys):
    """transformers refuses to load other models with it."""
    transformers = pytest.importorskip("transformers")
    kind = {"gemma-2-2b": "Gemma2", "gpt-j-6b": "GPTJ", "gpt2": "GPT2", "gemma-3-1b": "Gemma3", "qwen3-0.6b": "Qwen3"}
    suffix = "LMHeadModel" if name == "gpt2" else "ForCausalLM"
    has_it = getattr(transformers, kind[name] + suffix)._supports_sdpa
    assert main(["fit", name, "--gpu", "h200"]) == 0
    asked = "sdpa" if has_it else "eager"
    assert f'attn_implementation="{asked}"' in capsys.readouterr().out
