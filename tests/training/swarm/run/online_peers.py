"""Peers of `test_redial.py`, each a process of its own: python online_peers.py

Reads a JSON object from each line of its input, and forks a peer from it: a new interpreter would import for seconds.
The peers import hivemind themselves. It makes locks while it is imported, which the peers would share: a peer that is
killed while it holds one would stop all others.
The peer goes online, posts its name every half second, and writes to FOLDER/NAME.json what it sees. If it has a
recipe, it posts that too, `posts_after` seconds after it began; one that "finds" the run begins only when another peer
has the same. It takes a file FOLDER/NAME.slept for a sleep of its machine, and removes it when it has called anew.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch  # noqa: F401  before the forks

from training.processes.environment import prepare_environment
from training.processes.role import run_role
from training.recipe import load_recipe
from training.storage import whole
from training.storage.whole import write_whole

SEEN_SECONDS = 2.5
"""A name disappears so soon after it was posted last."""


def record(identity, name):
    from training.swarm.node.metrics import PeerRecord

    nothing = ("samples", "group_size", "averaged_epochs", "alone_epochs", "bytes_sent", "bytes_received")
    return PeerRecord(
        **{"name": name, "peer_id": str(identity.peer_id), "status": "training", "epoch": 1, "loss": 1.0},
        **{"samples_per_second": 0.0, "seconds": 0.0, "micro_batch_size": 1, "version": "test", "time": time.time()},
        **dict.fromkeys(nothing, 0),
    )


def play(wanted, stop):
    # Before hivemind is imported, which keeps `time.time` as the clock of its DHT.
    real_time, offset = time.time, Path(wanted["folder"]) / f"{wanted['name']}.clock"
    time.time = lambda: real_time() + (float(offset.read_text()) if offset.exists() else 0.0)
    from training.swarm.engine import steady_clock
    from training.swarm.node.addresses import settle_ports
    from training.swarm.node.dht import full_addresses, post_recipe
    from training.swarm.node.identity import Identity
    from training.swarm.node.metrics import MetricsBoard, read_records
    from training.swarm.run.online import find_run, go_online
    from training.swarm.run.redial import Pace

    steady_clock.STEP_LASTS_SECONDS = 5.0
    if wanted.get("slow_disk"):
        whole.flush = lambda path, flush=whole.flush: (flush(path), time.sleep(2))
    run, folder, name, told = load_recipe("demo"), Path(wanted["folder"]), wanted["name"], []
    identity = Identity(folder / name)
    host_maddrs = settle_ports(identity.path.parent, ["/ip4/127.0.0.1/tcp/0"])
    redial = go_online(
        run,
        identity,
        wanted["initial_peers"],
        host_maddrs=host_maddrs,
        client_mode=wanted.get("client_mode", False),
        may_be_alone=wanted.get("may_be_alone", False),
        tell=told.append,
        pace=Pace(**wanted.get("pace", {})),
    )
    if wanted.get("recipe") == "finds":
        find_run(redial, run, told.append)
    posts_from = time.monotonic() + wanted.get("posts_after", 0)
    board = MetricsBoard(dht=redial.dht, run_id=run.run_id, expiration_seconds=SEEN_SECONDS)
    slept = folder / f"{name}.slept"
    while not stop.wait(0.5):
        if slept.exists():
            redial.wake()
            slept.unlink()
        board.post(record(identity, name), identity)
        if "recipe" in wanted and time.monotonic() >= posts_from:
            post_recipe(redial.dht, run, identity)
        now, known = redial.reachability(), [peer.peer_id for peer in redial.book.peers()]
        seen = {
            "names": sorted(one.name for one in read_records(redial.dht, run.run_id)),
            "addresses": full_addresses(redial.dht),
            "known": known,
            "told": told,
            "servers": now.servers,
            "answering": now.answering,
            "silent_seconds": now.silent_seconds,
        }
        write_whole(folder / f"{name}.json", json.dumps(seen))
    redial.stop()


def main():
    prepare_environment()
    for line in sys.stdin:
        wanted = json.loads(line)
        if not (pid := os.fork()):
            log = os.open(f"{wanted['folder']}/{wanted['name']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            run_role(lambda stop, wanted=wanted: play(wanted, stop))
        print(pid, flush=True)


if __name__ == "__main__":
    main()
