"""What two real DHT nodes tell each other of their tokens, and who is refused by it."""

import doctest

import pytest

from tests.support.programs import until
from tests.support.random_shards import write_shards
from training.data.store.sets import open_manifest
from training.errors import RefusedByRun
from training.recipe import load_recipe
from training.roles import monitor
from training.swarm.node import tokens
from training.swarm.node.dht import full_addresses, posted_messages, start_dht
from training.swarm.node.identity import Identity
from training.swarm.node.tokens import check_tokens, post_tokens

pytestmark = pytest.mark.swarm
RUN = load_recipe("demo")


@pytest.fixture
def nodes(tmp_path):
    """Two peers of the demo run: [(identity, node), ...]."""
    started, addresses = [], []
    for name in ("ada", "eve"):
        identity = Identity(tmp_path / name)
        dht = start_dht(RUN, identity, initial_peers=addresses, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        addresses = addresses or full_addresses(dht)
        started.append((identity, dht))
    yield started
    for _, dht in started:
        dht.shutdown()


def told(node, identity, digest):
    """Says it, until this node reads it."""
    post_tokens(node, RUN, identity, digest)
    while posted_messages(node, "demo_tokens").get(identity.signer().local_public_key) != digest:
        pass


def test_who_has_other_tokens_than_the_others_is_refused_while_they_are_there(nodes):
    (ada, first), (eve, second) = nodes
    check_tokens(second, RUN, eve, "b" * 16, shards="s")  # nobody has said anything
    told(second, eve, "b" * 16)
    check_tokens(second, RUN, eve, "c" * 16, shards="s")  # its own word is not another's
    told(first, ada, "a" * 16)
    words = f"tokens of s .{'b' * 16}. are not .* demo trains on .{'a' * 16}.: .* Use the shards"
    with pytest.raises(RefusedByRun, match=words):
        check_tokens(second, RUN, eve, "b" * 16, shards="s")
    with pytest.raises(RefusedByRun):  # two that have come at once: neither trains
        check_tokens(first, RUN, ada, "a" * 16, shards="s")
    check_tokens(second, RUN, eve, "a" * 16, shards="s")
    told(first, ada, "")
    check_tokens(second, RUN, eve, "b" * 16, shards="s")


def test_the_words_of_servers_count_before_those_of_all_others(nodes, tmp_path):
    (ada, first), (eve, second) = nodes
    told(first, ada, "a" * 16)
    told(second, eve, "e" * 16)
    server = {"shards": "s", "trusted": [str(ada.peer_id)]}
    newcomer = Identity(tmp_path / "newcomer")
    check_tokens(second, RUN, newcomer, "a" * 16, **server)
    with pytest.raises(RefusedByRun, match="a" * 16):
        check_tokens(second, RUN, newcomer, "e" * 16, **server)
    told(first, ada, "")
    check_tokens(second, RUN, newcomer, "e" * 16, **server)  # the server has no shards to compare


def test_strangers_words_keep_no_monitor_from_coming_back(nodes, tmp_path, capsys):
    """One that has nothing of the run yet may have been given shards of another one."""
    (ada, first), (own, second) = nodes
    shards = str(write_shards(tmp_path / "shards", RUN))
    told(first, ada, "e" * 16)
    settings = {"shards": shards, "trusted": ()}
    with pytest.raises(RefusedByRun):
        monitor._Tokens(second, RUN, own, **settings, has_stored=False)
    monitor._Tokens(second, RUN, own, **settings, has_stored=True)
    digest = open_manifest(shards, kind=None).tokens_digest
    assert f"others announce other tokens than {digest}" in capsys.readouterr().out
    until(lambda: digest in posted_messages(second, "demo_tokens").values())


def test_most_words_count():
    assert doctest.testmod(tokens).failed == 0
