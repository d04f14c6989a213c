import socket
from pathlib import Path

import pytest

from tests.support.ports import HIGHEST, LOWEST, free_ports

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_are_free_and_follow_each_other():
    ports = free_ports(3)
    assert ports == list(range(ports[0], ports[0] + 3))
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.skipif(not RANGE.exists(), reason="only Linux tells which ports it takes for connections")
def test_the_system_does_not_take_them_for_connections():
    assert LOWEST <= free_ports(1)[0] < HIGHEST
    assert int(RANGE.read_text().split()[0]) > HIGHEST
