"""The process of a peer that takes samples of a shared pass: python sharing_peer.py FOLDER NAME RATE.

It computes nothing; it writes the numbers of its samples to FOLDER/NAME.log, so many a second.
"""

import sys
from pathlib import Path

from training.config import load_recipe
from training.data import shared
from training.processes.environment import prepare_environment
from training.processes.role import run_role

CODES = 240
"""Values of a code; the first two of a sample say which it is."""


def take_samples(folder: Path, name: str, rate: float, stop) -> None:
    """Until it is asked to stop."""
    from training.swarm.dht import full_addresses, start_dht
    from training.swarm.identity import Identity
    from training.swarm.shared_pass import PassBoard
    from training.volunteer.samples import PLACE_FILE, own_samples
    from training.volunteer.settings import PeerSettings

    run = load_recipe("demo")
    run = run.model_copy(update={"data": run.data.model_copy(update={"order": "shared"})})
    identity, address = Identity(folder / name), folder / "address"
    known = {"initial_peers": [address.read_text()]} if address.is_file() else {}
    dht = start_dht(run, identity, host_maddrs=["/ip4/127.0.0.1/tcp/0"], **known)
    if not known:
        (folder / "address.new").write_text(full_addresses(dht)[0])
        (folder / "address.new").rename(address)
    stop.listen()
    samples = own_samples(
        run,
        PeerSettings(initial_peers=(), shards=str(folder / "shards")),
        folder / name / PLACE_FILE,
        seed=0,
        micro_batch_size=4,
        tell=lambda words: print(words, flush=True),
        open_board=lambda order: PassBoard(dht, identity, prefix=run.run_id, order=order),
    )
    with (folder / f"{name}.log").open("a") as log:
        while not stop.wait(4 / rate):
            batch = next(samples)
            log.write("".join(f"{row[0] * CODES + row[1]}\n" for row in batch.codes.tolist()))
            log.flush()
            samples.computed(len(batch), is_added=True, held=0)
    samples.close()


if __name__ == "__main__":
    prepare_environment()
    # A run of hours, in a minute: what a peer has claimed ends after 6 s, not after 45.
    shared.CLAIM_SECONDS, shared.REPORT_SECONDS, shared.SETTLE_SECONDS, shared.AHEAD_SECONDS = 6.0, 1.0, 0.5, 3.0
    run_role(lambda stop: take_samples(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), stop))
