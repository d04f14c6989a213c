"""An opened set of prepared shards: its manifest, its tokenizer, and the source of its other files.

Files come from a folder or over the network (`training.storage.remote`). Fetched files are compared with the manifest's
SHA-256, kept in a cache with a limit (`training.data.store.cache`), and compared again whenever it is read. The codec
is fetched only when pictures are to be decoded.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from training.data.demo.captions import Split
from training.data.store.cache import CACHE_GB, Cache, default_cache, make_room, mark_used
from training.data.store.shards import (
    LARGEST_MANIFEST_BYTES,
    MANIFEST_FILE,
    TOKENIZER_FILE,
    FileEntry,
    Kind,
    Manifest,
    TextManifest,
    check_content,
    check_file,
    is_same_file,
    parse_manifest,
    refuse_other_kind,
)
from training.data.store.text_tokenizer import TextTokenizer
from training.data.store.tokenizer import Tokenizer
from training.errors import BadInput, reason_of
from training.model.codecs.codec import CONFIG_FILE, WEIGHTS_FILE
from training.storage.remote import MissingError, Source, UnreachableError, data_set_address, open_source
from training.storage.whole import whole_file

LARGEST_FILE_BYTES = 1 << 33
"""Largest file that is fetched whole, such as a codec's weights."""
LARGEST_TOKENIZER_BYTES = 1 << 26


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Opened shards of one split. Files are fetched at their first use."""

    source: str
    """Folder, or address without a slash at its end."""
    split: Split
    manifest: Manifest | TextManifest
    """The set's manifest; its `kind` says what the samples are."""
    files: Source
    """Reads the files, or parts of them."""
    folder: Path
    """The folder of the files, including those that are still to be fetched."""
    tokenizer: Tokenizer | TextTokenizer
    """Tokenizer of captions, or of text."""
    cache: Cache | None
    """Cache of fetched parts of shards; None for a folder."""
    cache_bytes: int
    """Disk space that fetched shards may take, in this run and others."""

    @property
    def names(self) -> tuple[str, ...]:
        """File names of the split's shards."""
        return self.manifest.splits[self.split].shards

    @property
    def samples(self) -> int:
        """Samples of the split."""
        return self.manifest.splits[self.split].samples

    def file(self, name: str) -> Path:
        """Returns the path of a file beside the manifest, which is fetched as a whole if necessary, and checked.

        Raises:
            BadInput: If the file cannot be fetched, or differs from the manifest's description.
        """
        entry, path = self.manifest.files[name], self.folder / name
        if not self.files.is_remote:
            check_file(path, entry, source=str(path))
            return path
        if not is_same_file(path, entry):
            if name.endswith(".parquet"):
                make_room(self.folder.parent, needed_bytes=entry.bytes, limit_bytes=self.cache_bytes)
            try:
                # Checked before it gets its name, so that a broken download is never taken for a cached file.
                with whole_file(path) as draft:
                    self._download(name, draft, entry)
            except OSError as error:
                raise BadInput(
                    f"{path} cannot be written: {reason_of(error)}. Free space there, or set XDG_CACHE_HOME to another "
                    "folder."
                ) from None
        mark_used(path)
        return path

    @property
    def codec_folder(self) -> Path:
        """Folder with the codec's two files, for `training.model.codecs.codec.load_codec`."""
        self.file(WEIGHTS_FILE)
        return self.file(CONFIG_FILE).parent

    def _download(self, name: str, draft: Path, entry: FileEntry) -> None:
        _check_size(entry, LARGEST_FILE_BYTES, source=f"{self.source}/{name}")
        try:
            self.files.download(name, draft, length=entry.bytes)
        except (MissingError, UnreachableError) as error:
            raise BadInput(f"{error}. Check the address and the network.") from None
        check_file(draft, entry, source=f"{self.source}/{name}")


def open_shards(
    source: str | Path,
    split: Split = "train",
    *,
    kind: Kind | None = "pictures",
    cache: Path | None = None,
    cache_gb: float = CACHE_GB,
) -> Shards:
    """Opens prepared shards.

    Args:
        source: A folder, or an address at which a folder's files are served: `https://`, `hf://`, `s3://`.
        split: One of `SPLITS` in `training.data.demo.captions`.
        kind: Kind that the samples must have; None: any.
        cache: Folder for fetched files; None is `default_cache()`.
        cache_gb: Disk space that fetched shards may take, in GB (10**9 bytes).

    Raises:
        BadInput: If the shards cannot be read or are of another kind, or the split has no samples.
    """
    source = str(source).rstrip("/")
    files = open_source(source)
    manifest = _read_manifest(files, source)
    if kind is not None:
        refuse_other_kind(manifest, kind, source=source)
    folder, cache_bytes = Path(source), int(cache_gb * 1e9)
    if files.is_remote:
        # Named by the input's digest: shards that are prepared again at the same address do not mix with older files.
        folder = (cache or default_cache()) / "shards" / manifest.input_digest[:24]
        with suppress(OSError):  # on a full disk, a peer goes on without a cache
            folder.mkdir(parents=True, exist_ok=True)
    if split not in manifest.splits or not manifest.splits[split].samples:
        raise BadInput(
            f"The shards at {source} have no {split!r} samples, only: {_counts(manifest)}.",
            cure="Give shards with that part; `prepare` makes all.",
        )
    if TOKENIZER_FILE not in manifest.files:
        raise BadInput(f"The shards at {source} have no {TOKENIZER_FILE}. Prepare them again.")
    return Shards(
        source=source,
        split=split,
        manifest=manifest,
        files=files,
        folder=folder,
        tokenizer=_tokenizer(files, folder, manifest, source=f"{source}/{TOKENIZER_FILE}"),
        cache=Cache(folder, cache_bytes) if files.is_remote else None,
        cache_bytes=cache_bytes,
    )


def open_manifest(source: str, *, kind: Kind | None = "pictures") -> Manifest | TextManifest:
    """Reads the manifest of prepared shards, never from the cache.

    Args:
        source: See `open_shards`.
        kind: See `open_shards`.

    Raises:
        BadInput: If the manifest cannot be read, or describes samples of another kind.
    """
    source = source.rstrip("/")
    manifest = _read_manifest(open_source(source), source)
    if kind is not None:
        refuse_other_kind(manifest, kind, source=source)
    return manifest


def _read_manifest(files: Source, source: str) -> Manifest | TextManifest:
    try:
        text = files.read_all(MANIFEST_FILE, limit=LARGEST_MANIFEST_BYTES)
    except (MissingError, UnreachableError) as error:
        if not files.is_remote:
            raise BadInput(
                f"{source} has no prepared shards: {error}. Make them with `python -m training prepare`."
            ) from None
        wanted = data_set_address(source)
        hint = f" A data set's address is {wanted}." if wanted != source else ""
        raise BadInput(f"{error}. Check the address and the network.{hint}") from None
    if len(text) > LARGEST_MANIFEST_BYTES:
        raise BadInput(
            f"{source}/{MANIFEST_FILE} has more than {LARGEST_MANIFEST_BYTES} bytes, which no manifest needs.",
            cure="Check the address: it must be that of prepared shards.",
        )
    return parse_manifest(text, source=f"{source}/{MANIFEST_FILE}")


def _tokenizer(
    files: Source, folder: Path, manifest: Manifest | TextManifest, *, source: str
) -> Tokenizer | TextTokenizer:
    content = _tokenizer_file(files, folder, manifest.files[TOKENIZER_FILE], source=source)
    if manifest.kind == "pictures":
        return Tokenizer.parse(content, source=source)
    tokenizer = TextTokenizer.parse(content, end_of_text=manifest.end_of_text, source=source)
    if tokenizer.vocab_size != manifest.vocab_size:
        raise BadInput(
            f"{source} has {tokenizer.vocab_size} ids, its manifest says {manifest.vocab_size}.",
            cure="Fetch or prepare the shards again.",
        )
    return tokenizer


def _tokenizer_file(files: Source, folder: Path, entry: FileEntry, *, source: str) -> bytes:
    path = folder / TOKENIZER_FILE
    if files.is_remote and is_same_file(path, entry):
        return path.read_bytes()
    _check_size(entry, LARGEST_TOKENIZER_BYTES, source=source)
    try:
        content = files.read(TOKENIZER_FILE, length=entry.bytes)
    except (MissingError, UnreachableError) as error:
        raise BadInput(f"{error}. Check the address and the network.") from None
    check_content(content, entry, source=source)
    if files.is_remote:
        with suppress(OSError), whole_file(path) as draft:  # it is fetched again if the disk is full
            draft.write_bytes(content)
    return content


def _check_size(entry: FileEntry, largest_bytes: int, *, source: str) -> None:
    if entry.bytes > largest_bytes:
        raise BadInput(
            f"{source} has {entry.bytes} bytes by its manifest; such a file has at most {largest_bytes}.",
            cure="Check the address; if it is right, tell the run's maintainer.",
        )


def _counts(manifest: Manifest) -> str:
    return ", ".join(f"{entry.samples} {split}" for split, entry in manifest.splits.items())
