"""Weights of a language model: drawn from a seed, read from a folder or the hub, and written to a folder.

A folder is as `transformers` reads it: config.json and model.safetensors, or its parts and their index.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from training.errors import BadInput, first_line, reason_of
from training.model.language.adapters import add_adapters, check_digest, digest_of, frozen_dtype, save_adapters
from training.model.language.architecture import (
    attention_of,
    check_agreement,
    check_length,
    read_architecture,
    read_config_json,
    recipe_table,
)
from training.model.language.config import AdapterConfig, LanguageModelConfig
from training.model.language.model import LanguageModel, most_positions
from training.model.language.source import find_source
from training.model.trained import load_trained_state, trained_state
from training.storage.whole import whole_folder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

HEADER_BYTES = 32 << 20
"""Bytes that headers and buffers in a repository's weights may take."""


def build_language_model(config: LanguageModelConfig, seed: int, adapter: AdapterConfig | None = None) -> LanguageModel:
    """Builds the model with its first weights, float32; the global random state does not change.

    Without `pretrained`, weights depend only on the seed. Under `torch.device("meta")`, nothing is allocated and no
    weights are read, only the configuration. With `adapter`, the weights are frozen, in the type that it says.

    Raises:
        BadInput: If the architecture is unknown or impossible, or the weights cannot be used or are not those for which
            the recipe's adapters are trained.
        TrainingError: If the hub cannot be reached.
    """
    on_paper = torch.empty(0).device.type == "meta"
    # For a plan, the recipe is enough, so that a plan needs no hub.
    from_recipe = config.pretrained is None or (on_paper and config.architecture is not None)
    source = None if from_recipe else find_source(config.pretrained)
    if source is None:
        architecture = read_architecture(config.architecture)
    else:
        architecture = read_config_json(source.read_config())
        if config.architecture is not None:
            check_agreement(config.architecture, architecture)
    check_length(architecture, config.block_length)
    if source is None or on_paper:
        network = _drawn(architecture, seed, frozen_dtype(adapter))
    else:
        files = source.weight_files(_most_bytes(architecture))
        network = _loaded(architecture, files, named=config.pretrained, adapter=adapter)
    if adapter is None:
        return LanguageModel(config, network)
    return LanguageModel(config, network, adapter=adapter, adapted=add_adapters(network, adapter, seed))


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """A published model, beside which a run trains adapters."""

    name: str
    """A folder, or an id of the hub."""
    architecture: dict[str, Any]
    """Its settings, as a recipe has them."""
    digest: str
    """Digest of its weights, for `AdapterConfig.base_digest`."""
    longest: int | None
    """Most tokens of a text; None: no limit."""
    tokenizer_file: Path | None
    """Its tokenizer.json; None if it has none."""


def read_base(name: str) -> Base:
    """Reads what a recipe says of a published model; fetches it first, if the name is an id of the hub.

    Raises:
        BadInput: If the model cannot be used.
        TrainingError: If the hub cannot be reached.
    """
    source = find_source(name)
    table = source.read_config()
    architecture = read_config_json(table)
    files = source.weight_files(_most_bytes(architecture))
    return Base(
        name=name,
        architecture=recipe_table(table),
        digest=digest_of(_read_tensors(files, name)),
        longest=most_positions(architecture),
        tokenizer_file=source.path("tokenizer.json"),
    )


def export_folder(
    model: LanguageModel, folder: Path, *, tokenizer_file: Path | None, end_of_text: int | None = None
) -> None:
    """Writes the model for `transformers.AutoModelForCausalLM.from_pretrained`, atomically.

    Args:
        model: Model to write; it does not change.
        folder: Folder to write; an older one is replaced.
        tokenizer_file: The run's tokenizer.json, so that `AutoTokenizer` finds it.
        end_of_text: Id that ends a text in that tokenizer. Without it, the family's default would end texts.

    Raises:
        BadInput: If the tokenizer cannot be read.
        OSError: If the disk cannot be written.
    """
    if tokenizer_file is not None and not tokenizer_file.is_file():
        raise BadInput(f"There is no tokenizer {tokenizer_file}; give a tokenizer.json.")
    with whole_folder(folder) as draft:
        # One file: it is easier to copy, and these models have less than 50 GB, where `transformers` begins to split a
        # file.
        with _without_bars():
            model.network.save_pretrained(draft, max_shard_size="1000GB")
        if end_of_text is not None:
            _write_ends(model, draft, end_of_text)
        if tokenizer_file is not None:
            shutil.copyfile(tokenizer_file, draft / "tokenizer.json")
            _write_tokenizer_config(model, draft, end_of_text)


def _write_ends(model: LanguageModel, draft: Path, end_of_text: int) -> None:
    """Writes the id that ends a text and pads to the files that `generate` of `transformers` reads.

    Documents of a run begin with no token of their own: the end of one is also the beginning of the next, as in GPT-2.
    """
    ends = {"eos_token_id": end_of_text, "pad_token_id": end_of_text}
    if model.config.pretrained is None:
        ends["bos_token_id"] = end_of_text
    for name in ("config.json", "generation_config.json"):
        path = draft / name
        facts = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        path.write_text(json.dumps(facts | ends, indent=2) + "\n", encoding="utf-8")


def _write_tokenizer_config(model: LanguageModel, draft: Path, end_of_text: int | None) -> None:
    from tokenizers import Tokenizer

    # Without the class, `AutoTokenizer` would use that of the architecture, which may split texts differently.
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.seq_len}
    if end_of_text is not None:
        name = Tokenizer.from_file(str(draft / "tokenizer.json")).id_to_token(end_of_text)
        # Texts of a batch are padded on the left, so that each is continued at its own end.
        facts |= {"eos_token": name, "pad_token": name, "padding_side": "left"}
    (draft / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def merged(model: LanguageModel, seed: int) -> LanguageModel:
    """Builds a model whose weights are the frozen ones plus the adapters: W + (alpha / rank) B A.

    The sum is made in float32, and rounded to 16 bits if the frozen weights have no more.

    Args:
        model: Model with adapters; it does not change.
        seed: Seed of the recipe.
    """
    precise = model.adapter.model_copy(update={"frozen_bits": 32})
    copied = build_language_model(model.config, seed, precise)
    load_trained_state(copied, trained_state(model))
    network = copied.adapted.merge_and_unload()
    return LanguageModel(model.config, network.to(frozen_dtype(model.adapter)))


def export_adapters(model: LanguageModel, folder: Path) -> None:
    """Writes a model's adapters for `peft.PeftModel.from_pretrained`, atomically.

    Raises:
        OSError: If the disk cannot be written.
    """
    with whole_folder(folder) as draft:
        save_adapters(model.adapted, model.adapter, draft, base=model.config.pretrained)


def _drawn(architecture: PreTrainedConfig, seed: int, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    # A copy: `transformers` notes its choices in the configuration.
    settings = {"dtype": dtype, "attn_implementation": attention_of(architecture)}
    # No devices: weights are made on the CPU, and forking a GPU's random state would initialize CUDA.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return AutoModelForCausalLM.from_config(copy.deepcopy(architecture), trust_remote_code=False, **settings)
        except Exception as error:  # sizes that do not fit together cause many kinds of errors
            raise BadInput(
                f"PyTorch cannot build this architecture: {first_line(error)}", cure="Change its sizes in the recipe."
            ) from None


def _most_bytes(architecture: PreTrainedConfig) -> int:
    """Bytes that no file of float32 weights of this architecture exceeds, with tied weights stored twice."""
    with torch.device("meta"):
        network = _drawn(architecture, 0, torch.float32)
    named = network.named_parameters(remove_duplicate=False)
    return HEADER_BYTES + sum(parameter.numel() * parameter.itemsize for _, parameter in named)


def _read_tensors(files: list[Path], named: str) -> dict[str, torch.Tensor]:
    """Reads the weights of some files, by name; raises BadInput if they cannot be used."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    try:
        for file in files:
            tensors |= load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise BadInput(f"{file} of model.from cannot be read: {reason_of(error)}. Get the file again.") from None
    _check_numbers(tensors, named)
    return tensors


def _loaded(
    architecture: PreTrainedConfig, files: list[Path], *, named: str, adapter: AdapterConfig | None
) -> PreTrainedModel:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    tensors = _read_tensors(files, named)
    if adapter is not None:
        check_digest(adapter, digest_of(tensors), named=named)
    dtype = frozen_dtype(adapter)
    settings = {"dtype": dtype, "attn_implementation": attention_of(architecture)}
    try:
        # Tensors and not the folder: in a folder, `transformers` also reads adapters, which name other folders.
        with _without_bars():
            network, report = MODEL_FOR_CAUSAL_LM_MAPPING[type(architecture)].from_pretrained(
                None, config=copy.deepcopy(architecture), state_dict=tensors, output_loading_info=True, **settings
            )
    except Exception as error:
        raise BadInput(
            f"The weights of {named} do not fit its config.json: {first_line(error)}", cure="Choose other weights."
        ) from None
    lacking = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if lacking:
        raise BadInput(
            f"The weights of {named} lack {len(lacking)} tensors of its config.json, among them {lacking[0]}.",
            cure="Choose weights of a whole model.",
        )
    # `transformers` does not tie a head that differs from the embeddings, and its config still says that it does.
    head, embeddings = network.get_output_embeddings(), network.get_input_embeddings()
    network.config.tie_word_embeddings = head.weight is embeddings.weight
    for parameter in network.parameters():
        # Files are mapped into memory: a copy does not change when the file changes.
        parameter.data = parameter.data.to(dtype, copy=True).contiguous()
    return network


def _check_numbers(tensors: dict[str, torch.Tensor], named: str) -> None:
    """Raises BadInput if a weight is quantized, or a value is not finite."""
    for name, tensor in tensors.items():
        # Buffers, such as GPT-2's masks, may be of any type.
        if name.endswith(".weight") and (not tensor.is_floating_point() or tensor.itemsize == 1):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise BadInput(f"{name} of {named} has the type {kind}; choose weights in 16 or 32 bits.")
        # The sum of finite values is finite in 64 bits, and takes no memory.
        if tensor.is_floating_point() and tensor.itemsize > 1 and not tensor.sum(dtype=torch.float64).isfinite():
            raise BadInput(f"{name} of {named} has values that are not finite.", cure="Choose other weights.")


@contextmanager
def _without_bars() -> Iterator[None]:
    """Context that hides the progress bars of `transformers`, which would appear between the trainer's lines."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
