"""What goes wrong at a peer in the middle of an average, by the faults that hivemind's own tests inject.

A scenario of `started_peers.meet`, like those of `scenarios.py`. A faulty peer lives on: its process answers as far
as the fault lets it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from enum import Enum, auto
from functools import partial
from pathlib import Path

import psutil
import torch

from tests.training.swarm.real_peers.started_peers import Peer
from training.storage.whole import whole_file

SHAPES = ((16, 1024), (3, 8192), (4, 4, 4), (1024, 256))
PART_BYTES = 2**16
SILENCE_SECONDS = 1.0
"""A sender that is silent for so long is given up, a reducer after twice this time."""
SLOW_SECONDS, LONG_SECONDS = 10.0, 100.0
SLEEPERS = "sleepers"
"""A file with the ids of a peer's processes, which the first peer makes stand still."""


class Fault(Enum):
    """What a peer does wrong, each time that it averages."""

    FAIL_BEFORE = auto()
    """Fails when it has its group, before it sends anything."""
    FAIL_SENDING = auto()
    """Sends the last of the other reducers one part, and fails then."""
    SLOW_SENDING = auto()
    """Sends the last of the other reducers a part every ten seconds."""
    FAIL_REDUCING = auto()
    """Answers three parts of each sender, and fails then."""
    SLOW_REDUCING = auto()
    """Answers three parts of each sender, and waits for ten seconds then."""
    REFUSE = auto()
    """Answers each sender that it was cancelled."""
    STAND_STILL = auto()
    """Sends nothing and answers nothing."""
    CANCEL = auto()
    """Gives its round up when it has a group."""
    SLEEP = auto()
    """All its processes stand still, as if its machine slept or its link was cut, until the others have ended."""


def tensors_of(name: str) -> list[torch.Tensor]:
    """A peer's own tensors."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def average(
    peer: Peer,
    *,
    prefix: str,
    faults: Mapping[str, Fault],
    client_mode: str = "",
    only_once: bool = False,
    silence_seconds: float = SILENCE_SECONDS,
):
    """One round in which some peers have faults: this peer's tensors after it, its report and its id.

    In place of the report stands the exception if the round has failed, and None if the peer did not wait for it.

    Args:
        peer: This one.
        prefix: Of the averager.
        faults: By the names of peers.
        client_mode: The peer of this name accepts no connections.
        only_once: Faults occur in the first all-reduce of a group, and not in its repetitions.
        silence_seconds: A sender that is silent for so long is given up, a reducer after twice this time.
    """
    from training.swarm.round.averager import Averager
    from training.swarm.round.pipe import AveragerSettings

    fault = faults.get(peer.name)
    settings = AveragerSettings(
        prefix=prefix,
        matchmaking_seconds=5.0,
        request_timeout_seconds=2.0,
        next_chunk_timeout_seconds=silence_seconds,
        allreduce_timeout_seconds=max(40.0, 3 * silence_seconds),
        part_bytes=PART_BYTES,
        client_mode=peer.name == client_mode,
    )
    averager = Averager(
        tensors_of(peer.name),
        dht=peer.dht,
        settings=settings,
        method=faulty_mean(fault, peer.folder, only_once=only_once),
    )
    peer.await_others(f"{prefix}.begin")
    round_ = averager.begin_round(peer.name, seconds=20, expected_peers=len(peer.names))
    if fault is Fault.FAIL_BEFORE:
        round_.start(1.0)  # it looks for another group until the others have ended
        outcome = None
    else:
        others_sleep = Fault.SLEEP in faults.values() and peer.name == peer.names[0]
        with keep_asleep(peer.folder) if others_sleep else nullcontext():
            outcome = cancel(round_) if fault is Fault.CANCEL else outcome_of(round_)
    with averager.get_tensors() as tensors:
        left_with = [tensor.clone() for tensor in tensors]
    peer.await_others(f"{prefix}.end")  # a faulty peer's process answers until the others have ended
    averager.shutdown()
    return left_with, outcome, str(peer.identity.peer_id)


def outcome_of(round_):
    """The report of a round that averages at once, or why it has failed."""
    round_.start(1.0)
    try:
        return round_.result(60).report
    except Exception as error:
        return error


def cancel(round_):
    """Gives the round up as soon as the others count on this peer."""
    from training.swarm.round.pipe import Stage

    while round_.stage is Stage.SEARCHING:
        time.sleep(0.05)
    round_.cancel()


def faulty_mean(fault: Fault | None, folder: Path, *, only_once: bool):
    """The mean, averaged as a peer with this fault does it."""
    from training.swarm.round import rounds

    class FaultyMean(rounds.Mean):
        async def average(self, tensors, infos, all_reduce):
            if fault is Fault.FAIL_BEFORE:
                raise RuntimeError("this peer fails before it averages")
            if fault is Fault.SLEEP:
                fall_asleep(folder)
            rounds.AllReduce = partial(faulty_all_reduce, fault, first_only=only_once, made=[])
            return await super().average(tensors, infos, all_reduce)

    return None if fault in (None, Fault.CANCEL) else FaultyMean()


def fall_asleep(folder: Path) -> None:
    """All processes of this peer stand still soon, its network daemon too."""
    own = psutil.Process().parent()  # this runs in the averager's process, a child of the peer's
    processes = [str(process.pid) for process in (own, *own.children(recursive=True))]
    with whole_file(folder / SLEEPERS) as draft:
        draft.write_text(" ".join(processes))
    time.sleep(1.0)


@contextmanager
def keep_asleep(folder: Path) -> Iterator[None]:
    """Within this context, the processes of a peer that falls asleep stand still."""
    processes, over = [], threading.Event()

    def put_to_sleep():
        while not (folder / SLEEPERS).exists() and not over.wait(0.05):
            pass
        if not over.is_set():
            processes.extend(psutil.Process(int(number)) for number in (folder / SLEEPERS).read_text().split())
            for process in processes:
                process.suspend()

    thread = threading.Thread(target=put_to_sleep)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for process in processes:
            process.resume()


def faulty_all_reduce(fault: Fault, *, first_only: bool, made: list, **kwargs):
    """An all-reduce with the fault; `made` has those that were made before it in the same round."""
    from hivemind.proto import averaging_pb2

    from training.swarm.round.allreduce import AllReduce

    class Faulty(AllReduce):
        async def _exchange(self, reducer):
            if fault is Fault.STAND_STILL:
                await asyncio.sleep(LONG_SECONDS)
            await super()._exchange(reducer)

        async def answer(self, sender, stream):
            if fault is Fault.STAND_STILL:
                await asyncio.sleep(LONG_SECONDS)
            if fault is Fault.REFUSE:
                yield averaging_pb2.AveragingData(code=averaging_pb2.CANCELLED)
                return
            answers, good = 0, min(3, len(self.parts[self.own]) - 1)
            async for message in super().answer(sender, stream):
                if fault is Fault.FAIL_REDUCING and answers == good:
                    yield averaging_pb2.AveragingData(code=averaging_pb2.INTERNAL_ERROR)
                    return
                if fault is Fault.SLOW_REDUCING and answers == good:
                    await asyncio.sleep(SLOW_SECONDS)
                yield message
                answers += 1

        async def _outgoing(self, reducer):
            others = [peer for peer, parts in self.parts.items() if parts and peer != self.own]
            async for message in super()._outgoing(reducer):
                yield message
                if reducer == others[-1] and fault is Fault.FAIL_SENDING:
                    raise RuntimeError("this peer fails while it sends")
                if reducer == others[-1] and fault is Fault.SLOW_SENDING:
                    await asyncio.sleep(SLOW_SECONDS)

    one = AllReduce(**kwargs) if made and first_only else Faulty(**kwargs)
    made.append(one)
    return one


# -- a peer that spoils all averages -----------------------------------------------------------------------------------


def spoil(fault: Fault) -> None:
    """From now on this peer has the fault in each of its all-reduces."""
    from training.swarm.round import rounds

    rounds.AllReduce = partial(faulty_all_reduce, fault, first_only=False, made=[])


def answer_slowly(seconds: float = SILENCE_SECONDS * 0.8) -> None:
    """From now on this peer sends each mean late, but in time not to be given up."""
    from training.swarm.round.allreduce import AllReduce

    answer = AllReduce.answer

    async def slowly(self, sender, stream):
        async for message in answer(self, sender, stream):
            await asyncio.sleep(seconds)
            yield message

    AllReduce.answer = slowly


def train_beside_a_spoiler(peer: Peer, *, spoil, averages: int, **swarm: object):
    """The third spoils averages; the others' reports until so many averages in a row had only them, and no fault.

    All stay until both have: who has one more report with a fault would be alone if the other one left.
    """
    from tests.training.swarm.real_peers.scenarios import give_gradients, model_of, optimizer_of, run_with

    if peer.name == "third":
        spoil()
    settings = {"matchmaking_seconds": 1.5, "next_chunk_timeout_seconds": SILENCE_SECONDS, **swarm}
    run = run_with(target_batch_size=160, **settings)
    model = model_of(seed=0)
    optimizer = optimizer_of(peer, run, model)
    peer.await_others("ready")
    reports, in_a_row = [], 0
    deadline = time.monotonic() + 150
    done = {name: peer.folder / f"{name}.done" for name in ("first", "second")}
    while time.monotonic() < deadline and not all(path.exists() for path in done.values()):
        give_gradients(peer, model)
        optimizer.step()
        for report in optimizer.take_epoch_reports():
            if in_a_row < averages:
                undisturbed = report.group_size == report.senders == 2 and not report.fault
                in_a_row = in_a_row + 1 if undisturbed else 0
                reports.append(report)
        if in_a_row >= averages and peer.name in done:
            done[peer.name].touch()
    return reports, str(peer.identity.peer_id)
