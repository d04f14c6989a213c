"""The way to a run's peers: real nodes, with other recipes, other tokens, other clocks, other ids, or none."""

import asyncio
import errno
import gc
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.programs import Programs, until
from tests.training.data.text_shards import prepare_documents, write_documents
from tests.training.doctor.places import SERVER_ENVIRONMENT, closed_port, file_of, listening, server_command, serving
from training.data.store.shards import Manifest, ShardIndex, SplitEntry, describe_file
from training.doctor.checks.clock import check_clock
from training.doctor.checks.peers import FAR_SECONDS, check_node, check_peers, check_port, check_reachable
from training.doctor.checks.recipe import check_run
from training.doctor.checks.shards import check_link, check_shards, check_tokens
from training.doctor.facts import addresses
from training.doctor.facts.addresses import connect_all, parted
from training.doctor.facts.shared import Asked, Shared
from training.doctor.probes.children import NoAnswer
from training.errors import BadInput
from training.processes.environment import prepare_environment
from training.recipe import RECIPES, load_recipe

pytestmark = pytest.mark.swarm

OTHER_ID = "12D3KooWErbDxHgPXaPNFhaDKy2dLymnFWSbrYxxNMXLGcRw8w2X"
DEMO = load_recipe("demo")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Of shards of the demo's sizes, in a folder."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "train-00000.parquet").write_bytes(b"x" * (1 << 20))
    manifest = Manifest(
        run_id="demo",
        input_digest="a" * 64,
        image_seq_len=DEMO.model.image_seq_len,
        image_vocab_size=DEMO.model.image_vocab_size,
        text_vocab_size=7,
        codec_digest="b" * 64,
        reconstruction_error=0.0,
        pictures=64,
        picture_bytes=0,
        near_duplicates=0,
        left_out={},
        splits={"train": SplitEntry(samples=64, shards=("train-00000.parquet",))},
        files={path.name: describe_file(path) for path in folder.iterdir()},
        index={
            "train-00000.parquet": ShardIndex(rows=64, group_rows=64, footer_bytes=1024, footer_sha256="c" * 64),
        },
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return folder, manifest


@pytest.fixture(scope="module")
def servers(tmp_path_factory, manifest):
    """Addresses of a run's server that is as it should be, and of one whose clock is a minute ahead."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("right", "ahead")}
    with Programs() as programs:
        for name, folder in folders.items():
            ahead = 60 if name == "ahead" else 0
            programs.start(
                server_command(folder, "/ip4/127.0.0.1/tcp/0", str(ahead), "demo", manifest[1].tokens_digest),
                env=SERVER_ENVIRONMENT,
            )
        until(lambda: all((folder / "address").is_file() for folder in folders.values()))
        yield {name: (folder / "address").read_text() for name, folder in folders.items()}


@pytest.fixture
def visited(tmp_path, monkeypatch):
    """What checks share after a real visit, which takes place in the tests' own process to save its start."""
    prepare_environment()
    from training.swarm.run.visit import visit

    def examine(**asked):
        shared = Shared(Asked(**asked))
        facts = {}

        def whom():
            reached = [answer.address for answer in shared.answers() if answer.seconds is not None]
            return shared.run_or_none(), reached

        def tell(step, **told):
            facts[step] = told

        with ThreadPoolExecutor(1) as thread:  # Playwright's tests leave an event loop in the main one
            thread.submit(asyncio.run, visit(shared.asked.host_maddrs, tmp_path, whom, tell)).result()
        gc.collect()  # Python 3.11 cannot parse code while hivemind's objects are finalized, which pytest does

        def told(step):
            if step not in facts:
                raise NoAnswer("it did not come to that", late=False)
            return facts[step]

        monkeypatch.setattr(shared, "visit", told)
        return shared

    return examine


def test_a_run_that_is_as_it_should_be(visited, servers, manifest):
    shared = visited(recipe="demo", initial_peers=(servers["right"],), shards=str(manifest[0]))
    for check in (check_peers, check_run, check_tokens, check_clock, check_node, check_shards):
        assert check(shared).level == "ok", check(shared).found
    assert check_reachable(shared).level == "skipped" and "public addresses only" in check_reachable(shared).found


def test_a_run_with_another_recipe_and_other_tokens(visited, servers, manifest, tmp_path):
    recipe = tmp_path / "other.toml"
    recipe.write_text((RECIPES / "demo.toml").read_text().replace("hidden_size = 128", "hidden_size = 256"))
    shards = tmp_path / "shards"
    shards.mkdir()
    other = manifest[1].model_copy(update={"codec_digest": "c" * 64, "files": {}})
    other = other.model_copy(update={"splits": {}, "files": {}})
    (shards / "manifest.json").write_text(other.model_dump_json())
    dead = f"/ip4/127.0.0.1/tcp/{closed_port()}/p2p/{OTHER_ID}"
    shared = visited(recipe=str(recipe), initial_peers=(servers["right"], dead), shards=str(shards))
    assert check_run(shared).name == "recipe-differs" and DEMO.digest in check_run(shared).found
    assert check_tokens(shared).name == "shards-of-other-tokens"
    assert check_peers(shared).name == "some-peers-fail" and dead in check_peers(shared).found


def test_peers_that_know_another_run_only(visited, servers, tmp_path, monkeypatch):
    from training.swarm.run import visit

    monkeypatch.setattr(visit, "FIND_SECONDS", 0.5)
    recipe = tmp_path / "other.toml"
    recipe.write_text((RECIPES / "demo.toml").read_text().replace('run_id = "demo"', 'run_id = "elsewhere"'))
    shared = visited(recipe=str(recipe), initial_peers=(servers["right"],))
    assert check_run(shared).name == "run-unknown"


def test_peers_whose_clock_differs(visited, servers):
    shared = visited(recipe="demo", initial_peers=(servers["ahead"],))
    found = check_clock(shared)
    assert found.name == "clock-off" and "60 s behind" in found.found


def test_another_peer_and_something_else_at_the_address(visited, servers):
    place = servers["right"].split("/p2p/")[0]
    shared = visited(recipe="demo", initial_peers=(f"{place}/p2p/{OTHER_ID}",))
    (found,) = check_peers(shared)
    assert found.name == "peer-of-another-id" and servers["right"].split("/")[-1] in found.found
    with serving(file_of("a page")) as url:
        port = url.rsplit(":", 1)[1]
        shared = visited(recipe="demo", initial_peers=(f"/ip4/127.0.0.1/tcp/{port}/p2p/{OTHER_ID}",))
        (found,) = check_peers(shared)
    assert found.name == "no-peer-there" and check_run(shared).level == "skipped"


def test_a_node_that_is_no_server_of_a_run(visited):
    """A network node of libp2p without a DHT."""
    from hivemind.p2p import P2P

    started, stop = threading.Event(), threading.Event()
    address = []

    async def serve():
        node = await P2P.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        address.append(str((await node.get_visible_maddrs())[0]))
        started.set()
        await asyncio.to_thread(stop.wait)
        await node.shutdown()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(60)
    try:
        shared = visited(recipe="demo", initial_peers=tuple(address))
        assert check_peers(shared).level == "ok" and check_clock(shared).level == "skipped"
        assert check_run(shared).name == "run-silent"
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    "address", ["nonsense", "/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/99999/p2p/Qm", "/ip4/127.0.0.1/udp/1/p2p/Qm"]
)
def test_addresses_that_are_none(address):
    with pytest.raises(BadInput, match="is not the full address of a peer"):
        parted(address)


@pytest.mark.parametrize(
    "address, name",
    [
        ("/ip4/127.0.0.1/tcp/{closed}/p2p/Qm", "peers-refuse"),
        ("/dns4/no-such-name.invalid/tcp/1/p2p/Qm", "peer-name-unknown"),
        ("/dns6/localhost.invalid/tcp/1/p2p/Qm", "peer-name-unknown"),
    ],
)
def test_addresses_at_which_nobody_answers(address, name):
    shared = Shared(Asked(initial_peers=(address.format(closed=closed_port()),)))
    assert check_peers(shared).name == name


def test_a_peer_that_is_far_away(servers):
    """A queue that is full lets a connection wait for a second, as the sender repeats it only then."""
    with listening(backlog=0) as listener:
        place = listener.getsockname()
        first = [socket.create_connection(place)]
        waiting = socket.socket()
        waiting.setblocking(False)
        assert waiting.connect_ex(place) == errno.EINPROGRESS
        timer = threading.Timer(0.7, lambda: [listener.accept()[0].close() for _ in range(2)])
        timer.start()
        shared = Shared(Asked(initial_peers=(f"/ip4/127.0.0.1/tcp/{place[1]}/p2p/{OTHER_ID}",)))
        (answer,) = shared.answers()
        shared.visit = lambda step: {"faults": {answer.address: None}}
        found = check_peers(shared)
        timer.join()
        waiting.close()
        first[0].close()
    assert answer.seconds > FAR_SECONDS and found.name == "peers-far"


def test_a_site_that_lists_the_peers(servers):
    with serving(file_of(f'{{"initial_peers": ["{servers["right"]}"]}}')) as url:
        shared = Shared(Asked(initial_peers=(url,)))
        assert [answer.address for answer in shared.answers()] == [servers["right"]]
    for body in ('{"initial_peers": []}', '{"initial_peers": ["nonsense"]}', "[]", "nonsense"):
        with serving(file_of(body)) as url:
            assert check_peers(Shared(Asked(initial_peers=(url,)))).name == "peer-list-unreadable"


def test_a_port_that_is_taken():
    with listening() as listener:
        port = listener.getsockname()[1]
        taken = check_port(Shared(Asked(host_maddrs=(f"/ip4/127.0.0.1/tcp/{port}",))))
    assert [one.name for one in taken] == ["port-taken"]
    assert [one.level for one in check_port(Shared(Asked(host_maddrs=(f"/ip4/127.0.0.1/tcp/{port}",))))] == ["ok"]
    assert check_port(Shared(Asked()))[0].level == "ok"


@pytest.mark.parametrize(
    "address", ["/ip4/192.0.2.7/tcp/0", "/ip4/192.0.2.7/tcp/4711", "/ip4/127.0.0.1/tcp/99999", "0.0.0.0:4711"]
)
def test_an_address_to_listen_on_that_this_machine_does_not_have(address):
    """The first two as of a router, from RFC 5737's network for examples."""
    shared = Shared(Asked(host_maddrs=(address,)))
    assert [one.name for one in check_port(shared)] == ["address-not-here"]


def test_a_node_that_cannot_listen_is_not_broken(visited):
    """To install hivemind again would not help."""
    with listening() as listener:
        shared = visited(host_maddrs=(f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}",))
        assert shared.visit("node")["fault"] and check_node(shared).level == "skipped"


def test_a_system_without_ipv6(monkeypatch):
    """As Linux with ipv6.disable=1, where no such socket can be made; a name's other address counts."""
    real = socket.socket

    class Without(real):
        def __init__(self, family=-1, *rest, **more):
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *rest, **more)

    with listening() as listener:
        port = listener.getsockname()[1]
        both = [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0))]
        monkeypatch.setattr(addresses, "resolve", lambda host: both)
        monkeypatch.setattr(socket, "socket", Without)
        answers = connect_all([f"/dns/run.example/tcp/{port}/p2p/Qm", f"/dns6/run.example/tcp/{port}/p2p/Qm"])
    assert answers[0].seconds is not None and answers[1].kind == "unroutable"
    assert [one.name for one in check_port(Shared(Asked(host_maddrs=("/ip6/::/tcp/4711",))))] == ["address-not-here"]


def test_nothing_is_asked_without_addresses():
    shared = Shared(Asked())
    for check in (check_peers, check_run, check_tokens, check_reachable, check_shards, check_link):
        assert check(shared).level == "skipped"
    assert check_reachable(Shared(Asked(client_mode=True))).level == "skipped"


def damaged(folder, manifest, tmp_path, *, change=None, content=None):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    if change:
        (copy / "manifest.json").write_text(manifest.model_copy(update=change).model_dump_json())
    if content is not None:
        (copy / "train-00000.parquet").write_bytes(content)
    return copy


@pytest.mark.parametrize(
    "change, content, name",
    [
        (None, None, ""),
        (None, b"y" * (1 << 20), "shards-damaged"),
        (None, b"x", "shards-damaged"),
        ({"image_vocab_size": 4096}, None, "shards-of-another-model"),
    ],
    ids=["well", "other content", "cut short", "another model"],
)
def test_shards_in_a_folder(manifest, tmp_path, change, content, name):
    copy = damaged(*manifest, tmp_path, change=change, content=content)
    assert check_shards(Shared(Asked(recipe="demo", shards=str(copy)))).name == name


def test_shards_that_are_not_there(tmp_path):
    assert check_shards(Shared(Asked(shards=str(tmp_path / "none")))).name == "shards-unreadable"
    (tmp_path / "manifest.json").write_text("{}")
    assert check_shards(Shared(Asked(shards=str(tmp_path)))).name == "shards-damaged"


def test_shards_of_text_are_of_another_model(tmp_path):
    prepare_documents(tmp_path / "shards", write_documents(tmp_path / "a.jsonl", 20))
    found = check_shards(Shared(Asked(recipe="demo", shards=str(tmp_path / "shards"))))
    assert found.name == "shards-of-another-model" and "hold blocks of text; pictures" in found.found


def site_of(folder, seconds_a_block=0.0):
    """Serves a folder's files, in blocks of 16 KiB with a pause behind each."""

    def answer(request):
        body = (folder / request.path.split("/")[-1]).read_bytes()
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        for at in range(0, len(body), 1 << 14):
            request.wfile.write(body[at : at + (1 << 14)])
            request.wfile.flush()
            time.sleep(seconds_a_block)

    return answer


@pytest.mark.parametrize("pause, name", [(0.0, ""), (0.1, "link-slow")], ids=["fast", "slow"])
def test_a_link_that_is_too_slow_for_averages(manifest, monkeypatch, pause, name):
    """A plan of a hundred million weights, whose start PyTorch would cost; the download is real."""
    with serving(site_of(manifest[0], pause)) as url:
        shared = Shared(Asked(recipe="dalle-2021", shards=url))
        monkeypatch.setattr(shared, "plan", lambda: {"trained_parameters": 125_894_244})
        found = check_link(shared)
    assert found.name == name and "34 Mbit/s" in found.found
