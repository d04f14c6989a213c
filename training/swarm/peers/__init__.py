"""Facts that this peer knows about other peers.

    table.py      the table of peers: last heard, faults, samples brought, left out until; in the trainer
    times.py      all times and counts by which peers are judged
    progress.py   posts this peer's samples in the DHT and looks at the others' (records.py, estimate.py, pacing.py)
    liveness.py   groupmates that an all-reduce stops waiting for; in the averager's process
    groups.py     members of an average, and reports of averages
    epochs.py     the report of an epoch

Two rules say what reports of other peers can do:

1. **A voice** (`training.swarm.node.voices`). Only a peer that has brought weight to an average with this one, or whose
   ticket vouches for it, has a say in which epoch the run is at; and one account has one voice. Until one of the peers
   that are here has a voice, as at a newcomer, all of them are heard, but see rule 2. Samples of a peer count towards
   the end of an epoch when it has brought some to an average, and as far as it brings what it reports.
2. **A state in hand.** Reports move no peer to an epoch: only an update of its own or a downloaded state does, with the
   epochs that can have ended during the download (`furthest_epoch`). A peer whose weights were those of the others
   may skip three epochs if most voices say so, until its weights equal theirs again; nobody skips the schedule's last.
   What others report makes a peer try to download a state, and it trains on if none comes.
"""
