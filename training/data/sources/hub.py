"""Data sets of the Hugging Face Hub, read as a stream with the library `datasets`: `hf://OWNER/NAME[/config][@revision]`.

Nothing is stored but what the library keeps of a set's description. A revision is fixed to its commit when the set is
opened, so that a second start reads the same rows. A set that is made by a program (a dataset script) is refused:
code from the hub never runs here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from training.data.demo.captions import Split
from training.data.sources.documents import Piece, pieces_of, split_named
from training.data.sources.records import BROKEN_FILE
from training.data.sources.unused import Unusable
from training.errors import BadInput, TrainingError, first_line
from training.storage.remote import TRIES

if TYPE_CHECKING:
    from datasets import IterableDataset

ADDRESS = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+?)(?:/([^/@]+))?(?:@(.+))?/?")
"""Repository, configuration and revision."""
ANSWER_SECONDS = 30.0
"""Longest wait for the hub's description of a set."""


def is_hub(address: object) -> bool:
    """Returns whether an address names a set of the hub."""
    return str(address).startswith("hf://")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubPart:
    """The rows of one file of a set, or of several that are read together."""

    split: Split
    name: str
    """The hub's split and a number: `train/0`."""
    address: str
    """Address of the set, for messages."""
    data: IterableDataset = field(repr=False)

    def rows(self, skipped: int = 0) -> Iterator[dict | str]:
        """Yields the rows in order after the first `skipped`; at last the reason if the rest cannot be read.

        Raises:
            TrainingError: If the hub cannot be reached any more.
        """
        try:
            yield from islice(self.data, skipped, None)
        except GeneratorExit:
            raise
        except (pa.ArrowException, ValueError):  # what the library's readers raise for files that are not whole
            yield BROKEN_FILE
        except Exception as error:  # of the libraries below: there are many kinds
            raise broken_off(self.address, error) from None


def broken_off(address: str, error: Exception) -> TrainingError:
    """Returns the error to raise when the hub stops sending."""
    return TrainingError(
        f"{address} could not be read to its end: {first_line(error)}.",
        cure="Give the same command again; it continues where it broke off.",
    )


class HubSet:
    """A data set of the hub.

    Args:
        address: `hf://OWNER/NAME[/config][@revision]`; `hf://datasets/OWNER/NAME` is the same.

    Raises:
        BadInput: If the address names no set that can be read.
        TrainingError: If the hub does not answer.
    """

    def __init__(self, address: str):
        found = ADDRESS.fullmatch(address)
        if found is None:
            raise BadInput(f"{address} names no data set of the hub; give hf://OWNER/NAME[/config][@revision].")
        self.address, (self.name, self.config, revision) = address, found.groups()
        self.commit = self._commit(revision)
        self._take(self._open(self.name, self.config, revision=self.commit))

    def _take(self, opened: dict[str, IterableDataset]) -> None:
        """Takes the parts and the columns of the opened splits."""
        self.parts = tuple(
            HubPart(
                split=split_of(name, among=len(opened)),
                name=f"{name}/{number}",
                address=self.address,
                data=data.shard(data.num_shards, number),
            )
            for name, data in sorted(opened.items(), key=lambda one: split_of(one[0], among=len(opened)) != "train")
            for number in range(data.num_shards)
        )
        if not any(part.split == "train" for part in self.parts):
            raise BadInput(
                f"{self.address} has the splits {sorted(opened)}, and none to train on.",
                cure="Give a data set with a split `train`, or with one split alone.",
            )
        first = next(iter(opened.values()))
        self.features = first.features
        """Type of each column; None if the set does not describe its columns before it is read."""

    @property
    def identity(self) -> str:
        """Names the content: two sets with the same identity have the same rows."""
        return f"hf {self.name} {self.config or ''} {self.commit}"

    def columns(self) -> list[str]:
        """Names of the columns.

        Raises:
            BadInput: If the first file cannot be read.
        """
        if self.features is not None:
            return list(self.features)
        row = next(self.parts[0].rows(), {})
        if isinstance(row, str):
            raise BadInput(f"{self.address} begins with a {row}. Give another data set, or another @revision.")
        return list(row)

    def column(self, given: str | None, usual: tuple[str, ...], *, what: str, flag: str) -> str:
        """Returns the column that a flag names, or else the first of the usual names that the set has.

        Raises:
            BadInput: If the set has no such column.
        """
        there = self.columns()
        found = next((name for name in ((given,) if given else usual) if name in there), None)
        if found is None:
            raise BadInput(f"{self.address} has the columns {there}. Give that of the {what} with {flag}.")
        return found

    def _commit(self, revision: str | None) -> str:
        from huggingface_hub import HfApi, errors  # slow to load

        try:
            return HfApi().dataset_info(self.name, revision=revision, timeout=ANSWER_SECONDS).sha
        except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
            raise self._refused(error) from None
        except Exception as error:  # the connection's own errors are of many kinds
            raise self._silent(error) from None

    def _open(self, *what: object, **how: object) -> dict[str, IterableDataset]:
        """Opens the splits; arguments as those of `datasets.load_dataset`."""
        import datasets  # slow to load

        datasets.disable_progress_bars()
        # Its own 20 tries, each of them with tries of the layer below, last longer than six minutes.
        datasets.config.STREAMING_READ_MAX_RETRIES = datasets.config.STREAMING_OPEN_MAX_RETRIES = TRIES
        try:
            # A commit, not a branch: for branches the library also asks another server of the hub.
            opened = datasets.load_dataset(*what, streaming=True, **how)
            # As bytes: a broken picture then does not end the reading, and pictures are decoded once.
            return {name: data.decode(False) for name, data in opened.items()}
        except (FileNotFoundError, datasets.exceptions.DatasetsError, ValueError) as error:
            raise self._refused(error) from None
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise self._silent(error) from None
            raise BadInput(
                f"{self.address} is made by a program, a dataset script, which never runs here.",
                cure=f"Give a revision that has the data as files, such as hf://{self.name}@refs/convert/parquet.",
            ) from None
        except Exception as error:
            raise self._silent(error) from None

    def _refused(self, error: Exception) -> BadInput:
        return BadInput(
            f"{self.address} cannot be opened: {first_line(error)}.",
            cure="Check owner, name, config and revision. For a set that is private or gated, ask for access on its "
            "page of the hub, and set HF_TOKEN to a token of yours.",
        )

    def _silent(self, error: Exception) -> TrainingError:
        return TrainingError(
            f"The hub cannot be reached for {self.address}: {first_line(error)}.",
            cure="Check the connection (and HF_ENDPOINT, if you have set it), and give the same command again.",
        )


class LocalSet(HubSet):
    """Parquet files on disk with pictures inside, as `datasets` writes them, read as a set of the hub.

    Args:
        folder: Folder of the files; their names tell the splits, as on the hub.
        files: The files.

    Raises:
        BadInput: If they cannot be read.
    """

    def __init__(self, folder: Path, files: list[Path]):
        self.address = str(folder)
        splits: dict[str, list[str]] = {}
        for file in files:
            words = re.findall("[a-z]+", file.relative_to(folder).as_posix().lower())
            split = next(filter(None, map(split_named, reversed(words))), "train")
            splits.setdefault("train" if split == "train" else "test", []).append(str(file))
        self._take(self._open("parquet", data_files=splits))

    @property
    def identity(self) -> str:
        """Names the folder; the digest of a set has the files themselves."""
        return self.address

    def _refused(self, error: Exception) -> BadInput:
        return BadInput(f"The Parquet files in {self.address} cannot be read: {first_line(error)}.")

    _silent = _refused


def split_of(name: str, *, among: int = 2) -> Split:
    """Returns our split for one of the hub's `among` splits: a split that is not for training is held out.

    >>> split_of("train"), split_of("train_sft"), split_of("validation"), split_of("corpus", among=1)
    ('train', 'train', 'held-out', 'train')
    """
    return "train" if name.startswith("train") or among == 1 else "held-out"


class HubText:
    """Documents of a part of a set, read in pieces as from `training.data.sources.documents.TextFile`."""

    size_bytes = 0
    """Size of the part's files, which is not known."""

    def __init__(self, part: HubPart, column: str, *, identity: str):
        self._part, self._column, self.split = part, column, part.split
        self.identity = f"{identity} {part.name}".encode()
        self.read_bytes = 0
        """Bytes of the texts that were read."""

    def __iter__(self) -> Iterator[Piece | Unusable]:
        for number, row in enumerate(self._part.rows()):
            name = f"{self._part.name}/{number}"
            for piece in self._pieces(row, name):
                yield piece if isinstance(piece, Piece) else Unusable(reason=piece, file=name)

    def _pieces(self, row: dict | str, name: str) -> Iterator[Piece | str]:
        text = row if isinstance(row, str) else row.get(self._column)
        if isinstance(row, str):
            yield row
        elif not isinstance(text, str):
            yield "no text"
        else:
            self.read_bytes += len(text)
            yield from pieces_of(text, self.split, name)


def hub_texts(address: str, column: str) -> list[HubText]:
    """Opens the texts of a set, one `HubText` for each part.

    Raises:
        BadInput: If the set cannot be read, or has no such column of text.
    """
    found = HubSet(address)
    column = found.column(column, (), what="text", flag="--text-column")
    kind = None if found.features is None else getattr(found.features[column], "dtype", "no text")
    if kind is not None and kind not in ("string", "large_string"):
        raise BadInput(
            f"The column {column!r} of {address} holds {kind}; text is a string. Give another one with --text-column."
        )
    return [HubText(part, column, identity=found.identity) for part in found.parts]
