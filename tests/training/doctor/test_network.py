"""The way to a run's peers: real nodes, with other recipes, other tokens, other clocks, other ids, or none."""

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tests.support.programs import Programs, until
from tests.training.data.text_shards import prepare_documents, write_documents
from tests.training.doctor.places import SERVER_ENVIRONMENT, closed_port, file_of, listening, server_command, serving
from training.data.store.shards import Manifest, ShardIndex, SplitEntry, describe_file
from training.doctor.checks.compute import check_link, check_shards
from training.doctor.checks.network import check_port, judge_reach, probe_run
from training.doctor.facts import Asked, Facts
from training.processes.environment import prepare_environment
from training.recipe import RECIPES, load_recipe

pytestmark = pytest.mark.swarm

OTHER_ID = "12D3KooWErbDxHgPXaPNFhaDKy2dLymnFWSbrYxxNMXLGcRw8w2X"
DEMO = load_recipe("demo")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Manifest of shards of the demo's sizes, in a folder."""
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
def probed():
    """Findings of a real probe by check; it takes place in the tests' own process to save its start."""
    prepare_environment()

    def examine(**asked):
        found = {}
        with ThreadPoolExecutor(1) as thread:  # Playwright's tests leave an event loop in the main one
            thread.submit(probe_run, Facts(Asked(**asked)), lambda name, ones: found.setdefault(name, *ones)).result()
        gc.collect()  # Python 3.11 cannot parse code while hivemind's objects are finalized, which pytest does
        return found

    return examine


def test_a_run_that_is_as_it_should_be(probed, servers, manifest):
    found = probed(recipe="demo", initial_peers=(servers["right"],), shards=str(manifest[0]))
    for check in ("peers", "run", "tokens", "clock", "network node"):
        assert found[check].level == "ok", found[check].found
    assert found["reachability"].level == "skipped" and "public addresses only" in found["reachability"].found


def test_a_run_with_another_recipe_and_other_tokens(probed, servers, manifest, tmp_path):
    recipe = tmp_path / "other.toml"
    recipe.write_text((RECIPES / "demo.toml").read_text().replace("hidden_size = 128", "hidden_size = 256"))
    shards = tmp_path / "shards"
    shards.mkdir()
    other = manifest[1].model_copy(update={"codec_digest": "c" * 64, "files": {}, "splits": {}})
    (shards / "manifest.json").write_text(other.model_dump_json())
    dead = f"/ip4/127.0.0.1/tcp/{closed_port()}/p2p/{OTHER_ID}"
    found = probed(recipe=str(recipe), initial_peers=(servers["right"], dead), shards=str(shards))
    assert found["run"].name == "recipe-differs" and DEMO.digest in found["run"].found
    assert found["tokens"].name == "shards-of-other-tokens"
    assert found["peers"].name == "some-peers-fail" and dead in found["peers"].found


def test_peers_that_know_another_run_only(probed, servers, tmp_path, monkeypatch):
    from training.swarm.run import probe

    monkeypatch.setattr(probe, "FIND_SECONDS", 0.5)
    recipe = tmp_path / "other.toml"
    recipe.write_text((RECIPES / "demo.toml").read_text().replace('run_id = "demo"', 'run_id = "elsewhere"'))
    assert probed(recipe=str(recipe), initial_peers=(servers["right"],))["run"].name == "run-unknown"


def test_peers_whose_clock_differs(probed, servers):
    found = probed(recipe="demo", initial_peers=(servers["ahead"],))["clock"]
    seconds = float(found.found.split("clock is ")[1].split(" s ")[0])
    assert found.name == "clock-off" and seconds == pytest.approx(60, abs=2) and "behind" in found.found


def test_another_peer_and_something_else_at_the_address(probed, servers):
    place, _, theirs = servers["right"].partition("/p2p/")
    found = probed(recipe="demo", initial_peers=(f"{place}/p2p/{OTHER_ID}",))
    assert found["peers"].name == "peer-of-another-id" and theirs in found["peers"].found
    with serving(file_of("a page")) as url:
        port = url.rsplit(":", 1)[1]
        found = probed(recipe="demo", initial_peers=(f"/ip4/127.0.0.1/tcp/{port}/p2p/{OTHER_ID}",))
    assert found["peers"].name == "peers-unreachable" and found["run"].level == "skipped"


def test_a_node_that_is_no_server_of_a_run(probed):
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
        found = probed(recipe="demo", initial_peers=tuple(address))
        assert found["peers"].level == "ok" and found["clock"].level == "skipped"
        assert found["run"].name == "run-silent"
    finally:
        stop.set()
        thread.join()


def test_a_site_that_lists_the_peers(probed, servers):
    with serving(file_of(f'{{"initial_peers": ["{servers["right"]}"]}}')) as url:
        assert probed(initial_peers=(url,))["peers"].level == "ok"
    for body in ('{"initial_peers": []}', '{"initial_peers": ["nonsense"]}', "nonsense"):
        with serving(file_of(body)) as url:
            assert probed(initial_peers=(url,))["peers"].name == "peers-unreachable"


def test_a_port_that_is_taken(probed):
    """A node that cannot listen is not broken: to install hivemind again would not help."""
    with listening() as listener:
        address = f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}"
        assert check_port((address,)).name == "cannot-listen"
        assert probed(host_maddrs=(address,))["network node"].level == "skipped"
    assert check_port((address,)).level == check_port(Asked().host_maddrs).level == "ok"


@pytest.mark.parametrize(
    "address", ["/ip4/192.0.2.7/tcp/0", "/ip4/192.0.2.7/tcp/4711", "/ip4/127.0.0.1/tcp/99999", "0.0.0.0:4711"]
)
def test_an_address_to_listen_on_that_this_machine_does_not_have(address):
    """The first two as of a router, from RFC 5737's network for examples."""
    assert check_port((address,)).name == "cannot-listen"


def test_without_addresses_no_peer_is_asked(probed):
    found = probed(client_mode=True)
    assert found.pop("network node").level == "ok"
    assert {one.level for one in found.values()} == {"skipped"} and "--client-mode" in found["reachability"].found
    facts = Facts(Asked())
    assert check_shards(facts).level == check_link(facts, None).level == "skipped"
    assert judge_reach("failed", "it tried").name == "not-reachable"


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
        (None, b"y" * (1 << 20), "shards-unreadable"),
        (None, b"x", "shards-unreadable"),
        ({"image_vocab_size": 4096}, None, "shards-of-another-model"),
    ],
    ids=["well", "other content", "cut short", "another model"],
)
def test_shards_in_a_folder(manifest, tmp_path, change, content, name):
    copy = damaged(*manifest, tmp_path, change=change, content=content)
    assert check_shards(Facts(Asked(recipe="demo", shards=str(copy)))).name == name


def test_shards_that_are_not_there(tmp_path):
    assert check_shards(Facts(Asked(shards=str(tmp_path / "none")))).name == "shards-unreadable"
    (tmp_path / "manifest.json").write_text("{}")
    assert check_shards(Facts(Asked(shards=str(tmp_path)))).name == "shards-unreadable"


def test_shards_of_text_are_of_another_model(tmp_path):
    prepare_documents(tmp_path / "shards", write_documents(tmp_path / "a.jsonl", 20))
    found = check_shards(Facts(Asked(recipe="demo", shards=str(tmp_path / "shards"))))
    assert found.name == "shards-unreadable" and "hold blocks of text; pictures" in found.found


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
def test_a_link_that_is_too_slow_for_averages(manifest, pause, name):
    """A plan of a hundred million weights; the download is real."""
    with serving(site_of(manifest[0], pause)) as url:
        plan = SimpleNamespace(trained_parameters=125_894_244)
        found = check_link(Facts(Asked(recipe="dalle-2021", shards=url)), plan)
    assert found.name == name and "29 Mbit/s" in found.found
