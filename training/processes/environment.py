"""What hivemind and torch read from the environment when they are imported, and the limit on open files."""

from __future__ import annotations

import logging
import os
import resource
import sys
import warnings

FILE_LIMIT = 16_384
"""Open files that a peer asks for; each connection to another peer is one."""


def prepare_environment() -> None:
    """Settings that hivemind and torch read while they are imported; what the environment already says stays.

    A volunteer sees this program's words, not hivemind's tracebacks: `HIVEMIND_LOGLEVEL=INFO` shows them.
    """
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "CRITICAL")
    os.environ.setdefault("QUANTIZATION_THREADS", "4")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait spinning starve others on busy cores
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # hivemind drops tasks of connections that have ended
    warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")  # hivemind's 8-bit codec at each start
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(FILE_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if sys.platform == "linux" and wanted == FILE_LIMIT:
        # By file names, torch needs a janitor process that must answer within a second, or an averager hangs for good.
        os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
        os.environ.setdefault("HIVEMIND_SHM_BUFFER_SIZE", "4096")
