"""The process of one peer of `started_peers.meet`: python one_peer.py FOLDER NAME."""

import pickle
import sys
import time
from pathlib import Path

from training.processes.environment import prepare_environment
from training.processes.role import run_role


def play(folder: Path, name: str, stop) -> None:
    import torch

    from tests.training.swarm.real_peers.started_peers import Peer
    from training.recipe import load_recipe
    from training.swarm.node.dht import full_addresses, start_dht
    from training.swarm.node.identity import Identity

    torch.set_num_threads(1)
    names, behind_nat, scenarios = pickle.loads((folder / "scenarios").read_bytes())
    identity, address = Identity(folder / name), folder / "address"
    here = {"host_maddrs": ["/ip4/127.0.0.1/tcp/0"]}
    if name == names[0]:
        dht = start_dht(load_recipe("demo"), identity, **here)
        (folder / "address.new").write_text(full_addresses(dht)[0])
        (folder / "address.new").rename(address)
    else:
        while not address.is_file():
            time.sleep(0.1)
        where = {"initial_peers": [address.read_text()], "client_mode": name == behind_nat}
        dht = start_dht(load_recipe("demo"), identity, **here, **where)
    peer = Peer(name=name, names=names, folder=folder, dht=dht, identity=identity, stop=stop)
    for number, scenario in enumerate(scenarios):
        (folder / f"{name}-{number}").write_bytes(pickle.dumps(scenario(peer)))
    (folder / f"{name}.over").touch()
    survivors = names[:2]  # a third one may be there to die
    while not all((folder / f"{other}.over").is_file() for other in survivors) and not stop.wait(0.1):
        pass  # another one may still need this one's node


if __name__ == "__main__":
    prepare_environment()
    run_role(lambda stop: play(Path(sys.argv[1]), sys.argv[2], stop))
