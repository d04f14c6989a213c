"""hivemind's progress tracker over ours."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager

from hivemind.dht import DHT
from hivemind.utils.crypto import RSAPrivateKey
from hivemind.utils.performance_ema import PerformanceEMA

from training.swarm.peers.progress import Progress, RefreshSeconds

LIVELY_SECONDS = 6.0
END_SECONDS = 5.0
"""Threads that were told to end have ended by then."""


class ProgressTracker:
    """Takes hivemind's arguments."""

    def __init__(
        self,
        dht: DHT,
        prefix: str,
        target_batch_size: int,
        *,
        start: bool,
        private_key: RSAPrivateKey | None = None,
        min_refresh_period: float,
        default_refresh_period: float,
        max_refresh_period: float,
    ):
        refresh = RefreshSeconds(least=min_refresh_period, most=max_refresh_period, alone=default_refresh_period)
        self.progress = Progress(
            dht=dht,
            prefix=prefix,
            target_batch_size=target_batch_size,
            private_key=private_key,
            lively_seconds=LIVELY_SECONDS,
            refresh=refresh,
        )
        if start:
            self.progress.start()

    @property
    def ready_to_update_epoch(self) -> bool:
        return self.progress.ready_to_update_epoch or self.progress.ready_with_a_group  # its peers average nothing

    @property
    def performance_ema(self) -> PerformanceEMA:
        return self.progress.performance

    def report_local_progress(self, local_epoch: int, samples_accumulated: int) -> None:
        self.progress.report(local_epoch, samples_accumulated)

    def pause_updates(self) -> AbstractContextManager[None]:
        return self.progress.pause()

    def update_epoch(self, new_epoch: int) -> int:
        self.progress.begin_epoch(new_epoch)
        return new_epoch

    def shutdown(self) -> None:
        self.progress.shutdown()

    def is_alive(self) -> bool:
        return has_threads(self.progress)


def has_threads(progress: Progress) -> bool:
    """Whether threads of it run on, some seconds after they were told to end."""
    deadline = time.monotonic() + END_SECONDS
    for thread in threading.enumerate():
        if thread.name.startswith(f"{progress.key}-"):
            thread.join(max(deadline - time.monotonic(), 0.0))
            if thread.is_alive():
                return True
    return False
