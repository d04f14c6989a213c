"""What another peer says commands no terminal, and is short."""

import asyncio
import doctest
import re
import sys

import pytest
from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client
from hivemind.p2p.p2p_daemon_bindings.utils import P2PHandlerError

from training.errors import TrainingError
from training.swarm.engine import quoted as quoted_words
from training.swarm.engine.quoted import LONGEST_QUOTE, quoted
from training.swarm.node.metrics import PLAIN
from training.swarm.run import dial_back
from training.swarm.run.dial_back import DIAL_ERROR, PROTOCOL, DialBack, ask_dial_back
from training.swarm.state.download import _ask_in_turn

BAD = "\x1b]0;mine\x07\x1b[2J\u202eno\nroom"
SHOWN = "]0;mine[2Jno room"


def test_the_examples():
    assert doctest.testmod(quoted_words).failed == doctest.testmod(dial_back).failed == 0


def test_what_is_quoted_could_stand_in_any_record():
    text = "".join(filter(str.isprintable, map(chr, range(sys.maxunicode + 1))))
    for start in range(0, len(text), LONGEST_QUOTE):
        piece = text[start : start + LONGEST_QUOTE].strip()
        assert quoted(f"\x00{piece}\u200b") == piece and re.match(PLAIN, piece)
    assert quoted("".join(map(chr, range(32)))) == "" and quoted("\x1b" * 10**6 + "A" * 10**6) == "A" * LONGEST_QUOTE


def test_a_donor_whose_error_is_long_and_not_printable_is_quoted_briefly():
    async def ask(donor, donors, seconds):
        raise P2PHandlerError(BAD + "A" * 4_000_000)

    with pytest.raises(TrainingError) as failed:
        _ask_in_turn(ask, ["QmEve"], 1.0, lambda donor, error: None)
    assert f"QmEve: {SHOWN}AAA" in failed.value.sentence and failed.value.sentence.isprintable()
    assert len(failed.value.sentence) < LONGEST_QUOTE + 200


def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content


async def told_by_a_peer_that_answers(answer):
    """What this node makes of another node's answer when it asks to be connected to."""
    message = b"\x08\x01" + field(3, answer)

    async def handle(_info, reader, writer):
        await reader.readexactly(1)
        writer.write(bytes([len(message)]) + message)
        await writer.drain()

    other = await P2P.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    await other.add_binary_stream_handler(PROTOCOL, handle)
    own = await P2P.create(initial_peers=await other.get_visible_maddrs())
    daemon = await Client.create(control_maddr=own.daemon_listen_maddr)
    try:
        return await ask_dial_back(daemon, other.peer_id, own.peer_id, [])
    finally:
        daemon.close()
        await own.shutdown()
        await other.shutdown()


@pytest.mark.swarm
def test_the_reason_why_a_peer_does_not_connect_back_can_be_printed():
    answer = bytes([1 << 3, DIAL_ERROR]) + field(2, BAD.encode())
    assert asyncio.run(told_by_a_peer_that_answers(answer)) == DialBack(outcome="failed", text=SHOWN)
