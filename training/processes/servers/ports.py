"""Addresses and ports at which a run's servers listen unless their settings name others."""

ANYWHERE = "0.0.0.0"
"""All addresses of this machine."""
LOOPBACK = {ANYWHERE: "127.0.0.1", "::": "::1"}
"""Hosts that mean all addresses of this machine, each with the address at which the machine itself reaches them."""
SITE_PORT = 8000
"""Port of the site."""
DHT_PORT = 31337
"""Port of the bootstrap peer; the monitor beside it takes the next one."""


def listens_at(port: int = 0) -> str:
    """Address in libp2p's form at which a peer listens on all of this machine's addresses; port 0 is a free one.

    >>> listens_at(31337)
    '/ip4/0.0.0.0/tcp/31337'
    """
    return f"/ip4/{ANYWHERE}/tcp/{port}"
