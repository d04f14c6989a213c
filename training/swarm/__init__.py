"""The swarm: how peers find each other, average gradients and parameters, and say how they are doing.

# The folders, from the top down

    optimizer.py   `SwarmOptimizer`, all that the training loop uses of this package
    epoch/         the trainer's side of an epoch: gradients, exchange, update, strategies
    state/         the weights of a peer, and how they become and stay the same as the others'
    run/           which run a peer trains, and how it stays in it without the run's servers
    round/         one average of a group, in a process of its own: matchmaking, all-reduce, agreement
    defence/       options for runs of strangers: clipping, signed parts, audits
    peers/         what a peer knows of the other peers, and whose reports count
    node/          this peer in the DHT: identity, node, records, tickets
    engine/        hivemind as we use it: limits, streams, codecs

# An epoch's life

A peer's training loop (`training.volunteer.loop`) computes micro-batches: `training.compute.micro_batches` calls
`backward`, undoes the loss scale of float16, and computes a micro-batch again in two parts if memory runs out. The loop
skips micro-batches whose loss is not finite. After each other one it calls `SwarmOptimizer.step` (optimizer.py). What
happens to a gradient from there on, in order:

1. **Adding up.** The strategy (epoch/strategies/) adds the model's gradients to sums (epoch/gradients.py).
2. **Progress.** The peer announces its samples in the DHT and adds up everybody's (peers/progress.py). An epoch ends
   when all peers together have `target_batch_size` samples; peers of any speed contribute what they have by then,
   which is whole micro-batches (`PeerProgress.whole_samples`).
   A peer's reported samples count as far as the peer has brought such reports to averages before (peers/table.py).
3. **A group.** Shortly before that, the averager's process begins to look for the other peers' averagers
   (epoch/exchange.py asks for it; in round/, averager.py, pipe.py and service.py are the trainer's handle, the pipe
   and the process; matchmaking.py forms the group). It waits for peers that answer a ping (node/slow_nodes.py),
   then for the majority of them, and leaves out those that have spoiled averages (peers/table.py).
4. **The all-reduce.** The group waits until the trainer has written its mean gradient to shared memory and starts the
   round. The tensors are cut into parts, and each peer is the reducer of some parts: it receives them from all peers,
   averages them weighted by samples, and sends the results back (round/: rounds.py, allreduce.py, reducer.py). Large
   tensors travel in 8 bit (engine/codecs.py) over streams that their reader closes (engine/calls.py).
   epoch/powersgd.py averages thin matrices in place of large ones. With `aggregation = "centered-clip"`, a
   `RoundGuard` (round/guard.py), whose code is in defence/, takes part: a reducer clips how far each sender pulls
   (also in step 7), peers send momentum in place of gradients, senders sign parts and reducers sign answers, and peers
   compute some answers again. A wrong answer proves that its reducer lies.
5. **Agreement.** Tensors change only when the group agrees that the all-reduce counts; otherwise the peers that are
   left repeat it (round/agreement.py).
6. **The update.** The optimizer on the host (`training.optim`) updates the master weights in the background
   (epoch/updates.py, state/master_weights.py). `Updates.apply` copies them to the model between two micro-batches.
7. **A round of parameters** follows every `average_state_every` epochs, or when a peer asks for it
   (state/parameters.py): weights that have drifted apart become the same again.
8. **The report** says who sent, how much of the update was this peer's own, and what went wrong (peers/epochs.py,
   peers/groups.py).

With awaited gradients, the peer waits for 4 and 5, and computes during 6 and 7. With delayed gradients it computes
during 4 to 7. With local updates, peers average the distances that each has moved its own weights. With sparse ones,
reducers pass the largest of these distances on as they come (`reducer.Gatherer`), and each peer averages them itself
(epoch/sparse.py). With `delay_outer_step` it computes during an exchange of distances too. Each strategy is a file in
epoch/strategies/.

A peer is these processes: the trainer, the DHT node with its network daemon, an averager of gradients and an averager
of parameters.

# How a peer's weights compare with the others'

    ALIGNED  --- an average was torn, epochs were skipped, an older state was loaded ---> DRIFTED
    DRIFTED  --- a round of parameters was whole, or a state was loaded ----------------> ALIGNED
    either   --- the others have gone on without it ------------------------------------> BEHIND
    BEHIND   --- few epochs: it goes on with theirs ------------------------------------> DRIFTED
    BEHIND   --- many: it downloads a state (state/download.py, from state/serving.py) --> ALIGNED or DRIFTED
    BEHIND   --- nobody else trains any more -------------------------------------------> ALIGNED

state/alignment.py has the table; optimizer.py, epoch/exchange.py, epoch/updates.py and state/catching_up.py report to
it what happened.

# How a peer stays in its run

The code is in run/. online.py starts a peer's node and then a thread (redial.py) that goes on calling the run's
servers (servers.py: the initial peers, and those that the run's site names). While a server does not answer, it also
calls peers that it has met before, whose addresses are kept on disk (address_book.py). So a run goes on without its
servers, and is one run again when they are back. A server keeps its port (node/addresses.py).

# Which run that is

The name of a run and its recipe do not tell two trainings apart. A lineage does (run/lineage.py): an id that is made
once, with the first weights, and that all keys of averaging, progress and states carry (`run_prefix`). The run's
servers keep it on disk and announce it with the newest epoch that they have seen (run/server_lineage.py); a newcomer
goes by their reports (`training.volunteer.belonging`), and begins with fresh weights only if nobody knows of an
update (`training.volunteer.arrival`). `restore` makes a branch, to which all peers go over.

# Where other peers' calls and records come in

- Calls: `Service.rpc_join_group`, `rpc_aggregate_part` and `rpc_agree` (round/service.py), and those of
  `StateService` (state/serving.py) and `Auditor` (defence/auditor.py). Each knows the caller (`context.remote_id`). A
  leader names the members of its group: `Matchmaking._join` checks them. round/gathering.py
  reads what they send.
- Calls to the DHT node, which answers them in its own process; node/protocol.py lists its guards.
- In a run for members, all of these ask node/admission.py whether the other's ticket holds. Parts, verdicts and
  checks come from peers of a group only, and everybody has checked these when the group was formed.
- Whatever comes is unpacked by `bounds.unpack`, to a limited depth and size; engine/bounds.py also says which records
  a node stores at all. engine/quota.py limits how often one peer may ask for the state. A state that one peer sends
  is compared with what others have (state/witnesses.py).
- Records in the DHT: recipe, tokens and metrics (node/), lineage (run/), progress (peers/), and hivemind's own keys
  for groups and offers of states, which peers sign as well (round/matchmaking.py, state/serving.py).

# hivemind

All imports of hivemind lie in this package. engine/engine.py lists which private names of it are used.
"""
