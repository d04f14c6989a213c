"""Environment variables that hivemind and torch read when they are imported, and the limit on open files."""

from __future__ import annotations

import logging
import os
import resource
import sys
import warnings

FILE_LIMIT = 16_384
"""Limit on open files that a peer asks for; each connection to another peer takes one."""
BASE_FILES = 256
"""Number of open files of a peer without connections, with a margin: a training process was counted to have about
60."""
FILES_PER_PEER = 2
"""Number of open files per peer of a group: a connection in each direction."""


def files_of_group(peers: int) -> int:
    """Number of files that a peer may have open in a group of this size."""
    return BASE_FILES + FILES_PER_PEER * peers


def prepare_environment() -> None:
    """Sets the variables that hivemind and torch read while they are imported; variables that are already set stay
    unchanged.

    hivemind's log is silenced, so that a volunteer sees this program's messages and not hivemind's tracebacks;
    `HIVEMIND_LOGLEVEL=INFO` shows them.
    """
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "CRITICAL")
    # hivemind's default is 128 threads in each process (compression/quantization.py).
    os.environ.setdefault("QUANTIZATION_THREADS", "4")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait starve others
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # a message about hivemind's tasks of closed connections
    warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")  # a warning from hivemind's 8-bit codec
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(FILE_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if sys.platform == "linux" and wanted == FILE_LIMIT:
        # If torch shares memory by file names, it needs a janitor process; unless that answers within a second, an
        # averager hangs forever. Sharing by file descriptors needs none.
        os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
        # Each buffer takes a descriptor; hivemind's default of 16 bytes would use up thousands (utils/mpfuture.py).
        os.environ.setdefault("HIVEMIND_SHM_BUFFER_SIZE", "4096")
