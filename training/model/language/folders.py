"""Weights of a language model: drawn from a seed, read from a folder or the hub, and written to a folder.

A folder is one that `transformers` reads: config.json and model.safetensors, or its parts and their index.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from training.config import AdapterConfig, LanguageModelConfig
from training.errors import BadInput, TrainingError, first_line, reason_of
from training.model.language.adapters import add_adapters, check_digest, digest_of, frozen_dtype, save_adapters
from training.model.language.architecture import (
    attention_of,
    check_agreement,
    check_length,
    read_architecture,
    read_config_json,
)
from training.model.language.model import LanguageModel
from training.model.trained import load_trained_state, trained_state
from training.storage.whole import whole_folder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
"""Owner and name, and a revision if wanted."""


def build_language_model(config: LanguageModelConfig, seed: int, adapter: AdapterConfig | None = None) -> LanguageModel:
    """The model with its first weights, float32; the global random state does not change.

    Without `pretrained`, weights depend only on the seed. Under `torch.device("meta")`, nothing is allocated and no
    weights are read, only the configuration. With `adapter`, the weights are frozen, in the type that it says.

    Raises:
        BadInput: If the architecture is unknown or impossible, the weights cannot be used, or they are not those beside
            which the adapters are trained.
        TrainingError: If the hub cannot be reached.
    """
    on_paper = torch.empty(0).device.type == "meta"
    # On paper, what the recipe says is enough, so that a plan needs no hub.
    from_recipe = config.pretrained is None or (on_paper and config.architecture is not None)
    source = None if from_recipe else _Source.find(config.pretrained)
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
        network = _loaded(architecture, source.weight_files(), named=config.pretrained, adapter=adapter)
    if adapter is None:
        return LanguageModel(config, network)
    return LanguageModel(config, network, adapter=adapter, adapted=add_adapters(network, adapter, seed))


def export_folder(model: LanguageModel, folder: Path, *, tokenizer_file: Path | None) -> None:
    """Writes the model for `transformers.AutoModelForCausalLM.from_pretrained`: the whole folder or nothing.

    Args:
        model: Its weights stay as they are.
        folder: Where it goes; an older one there is replaced.
        tokenizer_file: The run's tokenizer.json, so that `AutoTokenizer` finds it.

    Raises:
        BadInput: If the tokenizer cannot be read.
        OSError: If the disk cannot be written.
    """
    if tokenizer_file is not None and not tokenizer_file.is_file():
        raise BadInput(f"There is no tokenizer {tokenizer_file}; give a tokenizer.json.")
    with whole_folder(folder) as draft:
        # One file: it is easier to copy, and 50 GB, where `transformers` begins to part it, is beyond these models.
        with _without_bars():
            model.network.save_pretrained(draft, max_shard_size="1000GB")
        if tokenizer_file is not None:
            shutil.copyfile(tokenizer_file, draft / "tokenizer.json")
            # Without it, `AutoTokenizer` would take the class of the architecture, which may split texts otherwise.
            facts = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.seq_len}
            (draft / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def merged(model: LanguageModel, seed: int) -> LanguageModel:
    """A model of its own whose weights are the frozen ones plus the adapters: W + (alpha / rank) B A.

    The sum is made in float32, and rounded to 16 bits if the frozen weights have no more.

    Args:
        model: With adapters; it stays as it is.
        seed: The recipe's.
    """
    precise = model.adapter.model_copy(update={"frozen_bits": 32})
    copied = build_language_model(model.config, seed, precise)
    load_trained_state(copied, trained_state(model))
    network = copied.adapted.merge_and_unload()
    return LanguageModel(model.config, network.to(frozen_dtype(model.adapter)))


def export_adapters(model: LanguageModel, folder: Path) -> None:
    """Writes a model's adapters for `peft.PeftModel.from_pretrained`: the whole folder or nothing.

    Raises:
        OSError: If the disk cannot be written.
    """
    with whole_folder(folder) as draft:
        save_adapters(model.adapted, model.adapter, draft, base=model.config.pretrained)


def _drawn(architecture: PreTrainedConfig, seed: int, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    # A copy: `transformers` notes its choices in the configuration.
    settings = {"dtype": dtype, "attn_implementation": attention_of(architecture)}
    # No devices: weights are made on the CPU, and to fork a GPU's state would initialize CUDA.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return AutoModelForCausalLM.from_config(copy.deepcopy(architecture), trust_remote_code=False, **settings)
        except Exception as error:  # sizes that do not fit together fail in many ways
            raise BadInput(
                f"PyTorch cannot build this architecture: {first_line(error)}", cure="Change its sizes in the recipe."
            ) from None


def _loaded(
    architecture: PreTrainedConfig, files: list[Path], *, named: str, adapter: AdapterConfig | None
) -> PreTrainedModel:
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    tensors: dict[str, torch.Tensor] = {}
    try:
        for file in files:
            tensors |= load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise BadInput(f"{file} of model.from cannot be read: {reason_of(error)}. Get the file again.") from None
    if adapter is not None:
        check_digest(adapter, digest_of(tensors), named=named)
    dtype = frozen_dtype(adapter)
    settings = {"dtype": dtype, "attn_implementation": attention_of(architecture)}
    try:
        # Tensors instead of the folder: of a folder, `transformers` also reads adapters, which name other folders.
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
    for parameter in network.parameters():
        # Files are mapped into memory: a copy stays as it is when the file changes.
        parameter.data = parameter.data.to(dtype, copy=True).contiguous()
    return network


@contextmanager
def _without_bars() -> Iterator[None]:
    """`transformers` draws progress bars, which do not belong between the trainer's lines."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class _Source:
    """Where weights come from. Small files are read before large ones."""

    @staticmethod
    def find(name: str) -> _Source:
        """A folder if there is one of this name, otherwise a repository of the hub.

        Raises:
            BadInput: If it is neither.
        """
        folder = Path(name).expanduser()
        if folder.is_dir():
            return _Folder(folder)
        if not HUB_ID.fullmatch(name) or name.startswith("."):
            raise BadInput(
                f"model.from is {name!r}, which is no folder here; give a folder with config.json and "
                "model.safetensors, or a hub id such as owner/name."
            )
        return _Repository(name)

    def path(self, name: str) -> Path | None:
        """A file on this machine; None if there is no such file."""
        raise NotImplementedError

    def __init__(self, name: object):
        self._name = name

    def read_config(self) -> dict[str, Any]:
        """What stands in config.json.

        Raises:
            BadInput: If there is none, or nothing that can be read.
        """
        table = self._read_json(CONFIG)
        if table is None:
            raise BadInput(f"{self._name} of model.from lacks {CONFIG}; give weights that `transformers` has saved.")
        return table

    def weight_files(self) -> list[Path]:
        """The safetensors files, all on this machine.

        Raises:
            BadInput: If there are none.
        """
        index = self._read_json(INDEX)
        names = [WEIGHTS]
        if index is not None:
            parts = index.get("weight_map")
            names = sorted(set(map(str, parts.values()))) if isinstance(parts, dict) else []
            # A name with a slash could lead out of the folder.
            if not names or any(not re.fullmatch(r"[\w.-]+\.safetensors", name) for name in names):
                raise BadInput(f"{INDEX} of {self._name} names no files beside it; choose other weights.")
        paths = {name: self.path(name) for name in names}
        missing = [name for name, path in paths.items() if path is None]
        if missing:
            raise BadInput(
                f"{self._name} of model.from lacks {missing[0]}; give weights as safetensors (files of other kinds can "
                "contain programs)."
            )
        return list(paths.values())

    def _read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path(name)
        if path is None:
            return None
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BadInput(f"{name} of {self._name} cannot be read: {reason_of(error)}. Get the file again.") from None
        if not isinstance(table, dict):
            raise BadInput(f"{name} of {self._name} is not a table; get the file again.")
        return table


class _Folder(_Source):
    def path(self, name: str) -> Path | None:
        path = self._name / name
        return path if path.is_file() else None


class _Repository(_Source):
    def path(self, name: str) -> Path | None:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

        repository, _, revision = self._name.partition("@")
        try:
            return Path(hf_hub_download(repository, name, revision=revision or None))
        except LocalEntryNotFoundError as error:  # a kind of EntryNotFoundError: neither the hub nor the cache has it
            raise TrainingError(
                f"{repository} of model.from cannot be fetched, because the hub cannot be reached: {first_line(error)}",
                cure="Check the connection, or give a folder.",
            ) from None
        except EntryNotFoundError:
            return None
        except HfHubHTTPError as error:
            raise BadInput(
                f"The hub does not give out {self._name} of model.from: {first_line(error)}",
                cure="Check the name; for weights behind a licence, set HF_TOKEN.",
            ) from None
        except OSError as error:
            raise TrainingError(
                f"{repository} of model.from cannot be fetched: {first_line(error)}",
                cure="Check the connection, or give a folder.",
            ) from None
