"""The swarm: how peers find each other, average gradients and parameters, and say how they are doing.

# An epoch's life

A peer's training loop calls `SwarmOptimizer.step` (optimizer.py) after each micro-batch's `backward`. What happens to a
gradient from there on, in order:

1. **Adding up.** The strategy (strategies/) adds the model's gradients to sums (gradients.py).
2. **Progress.** The peer announces its samples in the DHT and adds up everybody's (progress.py). An epoch ends when all
   peers together have `target_batch_size` samples; peers of any speed contribute what they have by then. What a peer
   tells counts as far as it has brought it to averages before (claims.py).
3. **A group.** Shortly before that, the averager's process begins to look for the other peers' averagers (exchange.py
   asks for it; averager.py, pipe.py and service.py are the trainer's handle, the pipe and the process; matchmaking.py
   forms the group). It waits for peers that answer a ping (signs_of_life.py), then for the majority of them, and leaves
   out those that have spoiled averages (standing.py).
4. **The all-reduce.** The group waits until the trainer has written its mean gradient to shared memory and starts the
   round. The tensors are cut into parts; each peer is the reducer of some: it gets them from all, averages them
   weighted by samples, and answers (rounds.py, allreduce.py, reducer.py). Large tensors travel in 8 bit (codecs.py)
   over streams that their reader closes (streams.py). powersgd.py averages thin matrices in place of large ones. With
   `aggregation = "centered-clip"` a reducer clips how far each sender pulls (clipping.py), also in 7, and peers send
   momentum in place of gradients (gradients.py).
   What is sent and answered is signed (books.py, receipts.py), and peers check some answers of the reducers, which they
   have drawn at random (auditor.py); a wrong answer proves that its reducer lies (auditing.py).
5. **Agreement.** Tensors change only when the group agrees that the all-reduce counts; otherwise the peers that are
   left repeat it (agreement.py).
6. **The update.** The optimizer on the host moves the weights, in the background (updates.py, host.py); they reach the
   model between two micro-batches.
7. **A round of parameters** follows every `average_state_every` epochs, or when a peer asks for it (parameters.py):
   weights that have drifted apart become the same again.
8. **The report** says who sent, how much of the update was this peer's own, and what went wrong (epochs.py,
   groups.py).

With awaited gradients, the peer waits for 4 and 5 (and for 6 unless `delay_optimizer_step`). With delayed gradients it
computes during 4 to 7. With local updates, peers average the distances that each has moved its own weights. Each is a
file in strategies/.

A peer is these processes: the trainer, the DHT node with its network daemon, an averager of gradients and an averager
of parameters.

# How a peer's weights compare with the others'

    ALIGNED  --- an average was torn, epochs were skipped, an older state was loaded ---> DRIFTED
    DRIFTED  --- a round of parameters was whole, or a state was loaded ----------------> ALIGNED
    either   --- the others have gone on without it ------------------------------------> BEHIND
    BEHIND   --- few epochs: it goes on with theirs ------------------------------------> DRIFTED
    BEHIND   --- many: it downloads a state (download.py, from serving.py) --------------> ALIGNED or DRIFTED
    BEHIND   --- nobody else trains any more -------------------------------------------> ALIGNED

alignment.py has the table; optimizer.py, exchange.py, updates.py and catching_up.py tell it what happened.

# How a peer stays in its run

online.py starts a peer's node and then a thread (redial.py) that goes on calling the run's servers (servers.py: the
initial peers, and those that the run's site names). While a server does not answer, it also calls peers that it has met
before; their addresses (addresses.py) are kept on disk (address_book.py). So a run goes on without its servers, and is
one run again when they are back. A server keeps its port (listening.py).

# Which run that is

The name of a run and its recipe do not tell two trainings apart. A lineage does (lineage.py): an id that is made once,
with the first weights, and that all keys of averaging, progress and states carry (`run_prefix`). The run's servers keep
it on disk and announce it with the newest epoch that they have seen (server_lineage.py); a newcomer goes by their words
(`training.volunteer.belonging`), and begins with fresh weights only if nobody knows of an update
(`training.volunteer.arrival`). `restore` makes a branch, to which all peers go over.

# Where other peers' calls and words come in

- Calls: `Service.rpc_join_group`, `rpc_aggregate_part` and `rpc_agree` (service.py), and those of `StateService`
  (serving.py) and `Auditor` (auditor.py). Each knows who calls (`context.remote_id`). A leader names the members of its
  group: `PatientMatchmaking.follower_assemble_group` checks them. gathering.py reads what they tell.
- Calls to the DHT node, which answers them in its own process; records are checked there (dht.py, record_tickets.py).
- In a run for members, all of these ask admission.py whether the other's ticket holds. Parts, verdicts and checks come
  from peers of a group only, and everybody has checked these when the group was formed.
- Whatever comes is unpacked by `bounds.unpack`, to a limited depth and size; bounds.py also says which records a node
  stores at all. quota.py limits how often one peer may ask for the state. A state that one peer sends is compared with
  what others have (witnesses.py).
- Records in the DHT: dht.py (recipe), tokens.py, lineage.py, metrics.py, progress.py, and hivemind's own
  keys for groups and offers of states, which peers sign as well (matchmaking.py, serving.py). nearest.py remembers on
  which nodes they lie.

# hivemind

All imports of hivemind lie in this package. engine.py lists what is overridden in it, and why. identity.py is a peer's
key, selftest.py tries the codecs before training, coroutine.py waits for a coroutine, and waiting.py decides how long a
peer waits for a group.
"""
