"""A run's server for the doctor's tests: a real node that announces a recipe and tokens, with a clock of its own.

Arguments: its folder, which gets `address`; the address to listen on; seconds by which its clock is ahead; the recipe;
the digest of its tokens.
"""

import sys
import time
from pathlib import Path

folder, listen, ahead, recipe, tokens = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4], sys.argv[5]
real_time = time.time
time.time = lambda: real_time() + ahead  # before hivemind takes it as the time of the DHT

from training.processes.environment import prepare_environment  # noqa: E402
from training.processes.role import run_role  # noqa: E402
from training.recipe import load_recipe  # noqa: E402

prepare_environment()


def serve(stop):
    """Serves until it is stopped."""
    from training.storage.whole import write_whole
    from training.swarm.node.dht import full_addresses, post_recipe, start_dht
    from training.swarm.node.identity import Identity
    from training.swarm.node.tokens import post_tokens

    run, identity = load_recipe(recipe), Identity(folder)
    dht = start_dht(run, identity, host_maddrs=[listen], is_server=True)
    post_recipe(dht, run, identity)
    post_tokens(dht, run, identity, tokens)
    time.sleep(0.5)  # the words are stored in the background
    write_whole(folder / "address", full_addresses(dht)[0])
    stop.listen()
    while not stop.wait(1.0):
        pass


run_role(serve)
