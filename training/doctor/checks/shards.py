"""Checks of the shards: that they can be read, suit the recipe and the run, and come fast enough."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from training.doctor.facts.shards import DAMAGED, NoShards
from training.doctor.facts.shared import PlanUnknown
from training.doctor.facts.web import Unfetched, fetch, is_url
from training.doctor.finding import Fault, Finding, fine, skipped
from training.doctor.probes.children import NoAnswer
from training.errors import BadInput

if TYPE_CHECKING:
    from training.data.store.shards import Manifest
    from training.doctor.facts.shared import Shared

UNSUITABLE = Fault(
    name="shards-of-another-model",
    why="The recipe's model has no room for these tokens, so `join` ends.",
    remedy="Use the shards that the recipe names, without --shards, or prepare them again with this recipe.",
)
OTHER_TOKENS = Fault(
    name="shards-of-other-tokens",
    why="Their numbers stand for other words or pictures, which would spoil everybody's weights, so `join` ends.",
    remedy="Use the shards that the run's recipe names, without --shards, or a copy of them.",
)
SLOW_LINK = Fault(
    name="link-slow",
    level="warning",
    why="An average takes longer than the run waits, so this peer is left out of averages.",
    remedy="Use a wired connection, and stop other traffic while you train.",
)
FAULTS = (UNSUITABLE, OTHER_TOKENS, SLOW_LINK)

PROBE_BYTES, PROBE_SECONDS = 4 << 20, 2.0
"""The link is measured by so much of a shard at most."""
READ_SECONDS = 3.0
"""Files of a folder are read for so long; a run's shards may take hours."""
LEAST_BYTES = 1 << 18
"""The time of a smaller download depends more on latency than on bandwidth."""


def check_shards(shared: Shared) -> Finding:
    """Whether the shards are there and whole, as far as that can be seen without reading them all."""
    from training.tasks.known import task_of

    if shared.source() is None:
        return skipped("Not checked: neither a recipe nor --shards says where they are.")
    source, run = shared.source(), shared.run_or_none()
    try:
        manifest = shared.manifest()
    except NoShards as error:
        return error.finding
    if "://" not in source:
        try:
            _check_files(Path(source), manifest)
        except BadInput as error:
            return DAMAGED.found(str(error))
    if run is not None:
        try:
            task_of(run).check_fit(manifest, source=source)
        except BadInput as error:
            return UNSUITABLE.found(str(error))
    samples = sum(split.samples for split in manifest.splits.values())
    return fine(f"The shards at {source} have {samples:,} samples in {len(manifest.files)} files.")


def _check_files(folder: Path, manifest: Manifest) -> None:
    """Compares files with the manifest, the smallest first: the size of all, the content as far as time allows.

    Raises:
        BadInput: If one differs.
    """
    from training.data.store.shards import check_file

    deadline = time.monotonic() + READ_SECONDS
    for name, entry in sorted(manifest.files.items(), key=lambda item: item[1].bytes):
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry.bytes or time.monotonic() < deadline:
            check_file(path, entry, source=str(path))


def check_tokens(shared: Shared) -> Finding:
    """Whether the run trains on the tokens of these shards."""
    if shared.source() is None or not shared.asked.initial_peers:
        return skipped("Not checked: this needs shards and --initial-peers.")
    try:
        ours, theirs = shared.manifest().tokens_digest, Counter(shared.visit("tokens")["digests"])
    except (NoShards, NoAnswer):
        return skipped("Not checked: the shards or the run could not be read.")
    told = ", ".join(f"{digest} ({count} peers)" for digest, count in theirs.most_common())
    if theirs and theirs[ours] < max(theirs.values()):
        return OTHER_TOKENS.found(f"The tokens of {shared.source()} are {ours}; the run's are {told}.")
    return fine(f"The tokens are {ours}, as in the run." if theirs else "No peer has announced its tokens yet.")


def check_link(shared: Shared) -> Finding:
    """Whether the link is fast enough for averages, by the download of a part of a shard."""
    source = shared.source()
    if source is None or not is_url(source):
        return skipped("Not measured: no shards come from an address.")
    try:
        files = shared.manifest().files
        needed = shared.needed_mbits()
    except (NoShards, PlanUnknown):
        return skipped("Not measured: shards or recipe could not be read.")
    largest = max(files, key=lambda name: files[name].bytes)
    began = time.monotonic()
    try:
        fetched = fetch(f"{source.rstrip('/')}/{largest}", limit=PROBE_BYTES, seconds=PROBE_SECONDS)
    except Unfetched as error:
        return error.finding
    seconds = max(fetched.seconds, 1e-3)
    rate = 8 * len(fetched.body) / seconds / 1e6
    told = f"{rate:.3g} Mbit/s come from {source}; an average needs {needed:.2g} Mbit/s in each direction"
    if len(fetched.body) < LEAST_BYTES and time.monotonic() - began < PROBE_SECONDS:
        return skipped(f"Not measured: the shards are too small. An average needs {needed:.2g} Mbit/s each way.")
    return SLOW_LINK.found(f"{told}.") if rate < needed else fine(f"{told}; your upload is not measured.")
