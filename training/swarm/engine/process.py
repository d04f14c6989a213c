"""A node of the DHT in a process of its own, and the requests of this peer's other processes to it.

hivemind's own `DHT` takes requests from one pipe that all processes share, and hands a file over with each. If a
process is killed while it asks, the node may end, or a lock that all share stays locked. It also keeps no reference to
the tasks that answer: asyncio keeps a weak one, so the garbage collector may end such a task, and its caller waits in
vain. Here each process has a connection of its own to the node, and the node keeps its tasks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import pickle
import signal
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.context import ForkProcess
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.validation import CompositeValidator, RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.utils.asyncio import switch_to_uvloop
from hivemind.utils.multiaddr import Multiaddr

SHUTDOWN_SECONDS = 3.0
"""Longest wait for a node to end; then it is terminated."""
_HEAD = struct.Struct("!QQ")
"""Header of a request or an answer: its number and its length."""

logger = logging.getLogger(__name__)


class Answer(Future):
    """An answer of the node that may not have come yet. Call `result` or await it."""

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()


class DHT(ForkProcess):
    """A node of the DHT in a process of its own; has the methods of hivemind's `DHT` that this program uses.

    Args:
        start: Start the process now, and wait until its node is ready, unless `await_ready` is False.
        initial_peers: Full addresses of running nodes; without any, a new DHT starts.
        record_validators: Sign and check records.
        client_mode: Accept no incoming connections.
        settings: Arguments of `DHTNode.create`.
    """

    def __init__(
        self,
        *,
        start: bool,
        await_ready: bool = True,
        initial_peers: Sequence[str | Multiaddr] = (),
        record_validators: Iterable[RecordValidatorBase] = (),
        client_mode: bool = False,
        **settings: object,
    ) -> None:
        super().__init__(daemon=True)
        self.client_mode = client_mode
        self._settings = settings | {
            "initial_peers": list(initial_peers),
            "client_mode": client_mode,
            "record_validator": CompositeValidator(record_validators),
        }
        self._made_by, self._asker = os.getpid(), None
        self._began, self._begins = Pipe(duplex=False)
        self._door, self._node_door = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        """Socket through which a process passes the node its connection, and the node's end of it."""
        self._peer_id: PeerID | None = None
        self._held: set[asyncio.Task] = set()
        if start:
            self.start()
            if await_ready:
                self.wait_until_ready()

    def __del__(self) -> None:
        if self._made_by == os.getpid() and self._popen is not None:
            self.shutdown()

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Waits until the node answers.

        Raises:
            TimeoutError: If it does not answer in time.
            Exception: The error that was raised when the node was made.
        """
        if self._peer_id is not None:
            return
        if not self._began.poll(timeout):
            raise TimeoutError("the node has not started in time")
        fault, self._peer_id = self._began.recv()
        if fault is not None:
            raise fault

    @property
    def peer_id(self) -> PeerID:
        """Id of the node's peer."""
        self.wait_until_ready()
        return self._peer_id

    def get(self, key: str, latest: bool = False, return_future: bool = False, **settings: object) -> Any:
        """Gets a value as `DHTNode.get` does; with `return_future`, returns an `Answer`."""
        return self._ask(_get, (key, latest, settings), return_future)

    def store(
        self,
        key: str,
        value: object,
        expiration_time: float,
        subkey: object = None,
        return_future: bool = False,
        **settings: object,
    ) -> Any:
        """Stores a value as `DHTNode.store` does; with `return_future`, returns an `Answer`."""
        return self._ask(_store, (key, value, expiration_time, subkey, settings), return_future)

    def run_coroutine(self, coroutine: Callable[[DHT, DHTNode], Awaitable[object]], return_future: bool = False) -> Any:
        """Runs a coroutine function in the node's process, with this object and the node as its arguments.

        Args:
            coroutine: A function of a module, or a `partial` of one, since it is pickled.
            return_future: Return an `Answer` and do not wait.
        """
        return self._ask(coroutine, (), return_future)

    def add_validators(self, record_validators: Iterable[RecordValidatorBase]) -> None:
        """Adds validators, which sign and check records."""
        self.run_coroutine(partial(_add_validators, list(record_validators)))

    def get_visible_maddrs(self, latest: bool = False) -> list[Multiaddr]:
        """Returns the full addresses of this node; with `latest`, asks the network daemon anew."""
        return self.run_coroutine(partial(_visible_addresses, latest))

    def shutdown(self) -> None:
        """Ends the node's process."""
        if self.is_alive():
            self._ask(_shutdown, (), return_future=True)
            self.join(SHUTDOWN_SECONDS)
            if self.is_alive():
                logger.warning("The network node did not end in time, and is terminated.")
                self.terminate()

    def _ask(self, function: Callable, arguments: tuple, return_future: bool) -> Any:
        assert os.getpid() != self.pid, "the node's process would wait for itself"
        if self._asker is None or self._asker.process != os.getpid():  # this process asks for the first time
            self._asker = _Asker(self._door)
        answer = self._asker.ask((function, arguments))
        return answer if return_future else answer.result()

    # -- in the node's process ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs the node until its process ends: the main function of the process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the role decides when it ends
        switch_to_uvloop().run_until_complete(self._serve())

    def hold(self, task: asyncio.Task) -> None:
        """Keeps a reference to a task until the task ends."""
        self._held.add(task)
        task.add_done_callback(self._held.discard)

    async def make_node(self, **settings: object) -> DHTNode:
        """Makes the node that the process serves."""
        return await DHTNode.create(**settings)

    async def _serve(self) -> None:
        try:
            self._node = await self.make_node(**self._settings)
        except Exception as error:
            self._begins.send((error, None))
            return
        self._begins.send((None, self._node.peer_id))
        self.ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._node_door.fileno(), self._let_in)
        await self.ended.wait()
        await self._node.shutdown()

    def _let_in(self) -> None:
        _, (connection,), *_ = socket.recv_fds(self._node_door, 1, 1)
        self.hold(asyncio.create_task(self._answer_all(socket.socket(fileno=connection))))

    async def _answer_all(self, connection: socket.socket) -> None:
        """Answers the requests of one process until that process ends."""
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        try:
            while True:
                number, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                request = await reader.readexactly(length)
                self.hold(asyncio.create_task(self._answer(number, request, writer)))
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    async def _answer(self, number: int, request: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            function, arguments = pickle.loads(request)
            answer = pickle.dumps((True, await function(self, self._node, *arguments)))
        except Exception as error:
            logger.debug("A request to the node has failed.", exc_info=True)
            answer = _packed_fault(error)
        writer.write(_HEAD.pack(number, len(answer)) + answer)


class _Asker:
    """A process's connection to the node.

    Args:
        door: Socket to the node; see `DHT`.
    """

    def __init__(self, door: socket.socket):
        self.process = os.getpid()
        self._connection, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(door, [b"."], [theirs.fileno()])
        self._answers: dict[int, Answer] = {}
        self._numbers, self._sending = itertools.count(), threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, request: object) -> Answer:
        """Sends a request, and returns its `Answer`. If the node has ended, the answer never comes."""
        packed, number, answer = pickle.dumps(request), next(self._numbers), Answer()
        answer.set_running_or_notify_cancel()  # so that no caller can cancel it before it is set
        self._answers[number] = answer
        try:
            with self._sending:
                self._connection.sendall(_HEAD.pack(number, len(packed)) + packed)
        except OSError:
            logger.debug("The node has ended.")
        return answer

    def _read(self) -> None:
        with self._connection.makefile("rb") as stream, suppress(OSError):  # the node may be killed
            while len(head := stream.read(_HEAD.size)) == _HEAD.size:
                number, length = _HEAD.unpack(head)
                packed, answer = stream.read(length), self._answers.pop(number)
                try:
                    has_worked, value = pickle.loads(packed)
                except Exception as error:
                    has_worked, value = False, error
                if has_worked:
                    answer.set_result(value)
                else:
                    answer.set_exception(value)


def _packed_fault(error: Exception) -> bytes:
    try:
        return pickle.dumps((False, error))
    except Exception:
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


async def _get(_dht: DHT, node: DHTNode, key: str, latest: bool, settings: dict) -> object:
    return await node.get(key, latest=latest, **settings)


async def _store(
    _dht: DHT, node: DHTNode, key: str, value: object, expires: float, subkey: object, settings: dict
) -> bool:
    return await node.store(key, value, expires, subkey=subkey, **settings)


async def _add_validators(validators: list[RecordValidatorBase], _dht: DHT, node: DHTNode) -> None:
    node.protocol.record_validator.extend(validators)


async def _visible_addresses(latest: bool, _dht: DHT, node: DHTNode) -> list[Multiaddr]:
    return await node.get_visible_maddrs(latest=latest)


async def _shutdown(dht: DHT, _node: DHTNode) -> None:
    dht.ended.set()
