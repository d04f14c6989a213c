"""A peer's optimizer: decides when to average with other peers and when to update; other modules do these steps.

The package's docstring (`training/swarm/__init__.py`) describes an epoch's life and names the modules.
"""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from dataclasses import replace

from torch import Tensor, nn

from training.recipe import RunConfig
from training.swarm.engine.codecs import exchange_codec
from training.swarm.engine.process import DHT
from training.swarm.epoch.exchange import OVERTAKEN, Exchange
from training.swarm.epoch.strategies import Parts, strategy_of
from training.swarm.epoch.updates import Updates
from training.swarm.epoch.waiting import LeftBehindError
from training.swarm.node.dht import check_node
from training.swarm.node.identity import Identity
from training.swarm.peers.epochs import MOST_BATCHES, EpochEnd, EpochReport
from training.swarm.peers.groups import FULL_WEIGHT
from training.swarm.peers.progress import Progress
from training.swarm.peers.times import POLL_SECONDS
from training.swarm.round.pipe import AveragerSettings
from training.swarm.round.reducer import WeightedMean
from training.swarm.run.lineage import Lineage, run_prefix
from training.swarm.state.alignment import AlignmentState, Event
from training.swarm.state.catching_up import CatchingUp
from training.swarm.state.master_weights import MasterWeights
from training.swarm.state.parameters import ParameterAverager, state_codec, state_prefix

LAST_AVERAGE_SECONDS = 5.0
"""Longest wait of a leaving peer for an average under way; it must be gone ten seconds after it was asked to end."""


class SwarmOptimizer:
    """Trains a model together with the other peers of a run.

    To the training loop it is an optimizer whose `step` comes after each micro-batch. It adds gradients up until the
    peers of the run have computed `target_batch_size` samples together. Then it averages its gradients with the other
    peers', and updates the weights once. That is an epoch.

        optimizer = SwarmOptimizer(model, run, dht=dht, identity=identity)
        optimizer.load_state_from_peers()              # a newcomer begins where the others are
        for batch in batches:
            loss_of(model, batch).backward()           # a mean over the batch's samples
            optimizer.step(len(batch))                 # sometimes exchanges and updates; usually only adds up
            optimizer.zero_grad()
            for report in optimizer.take_epoch_reports():
                print(report.epoch, report.senders, report.fault)

    Which setting of the recipe's `[swarm]` to turn, by what the reports show:

    - `alone` often, with "no group": groups form too slowly. Raise `matchmaking_seconds`; an epoch should last five
      times as long, so raise `target_batch_size` with it.
    - `averaging_seconds` is a large part of the epoch: the links are slow for this model. Set
      `mode = "delayed"`, then a larger `target_batch_size`, then `gradient_codec`, `powersgd_rank`, or
      `mode = "diloco"`, which exchanges rarely, or `mode = "sparse"`, which sends an eighth of that among 8 peers;
      with `delay_outer_step = true` neither waits for the exchange.
    - "a peer was lost" often: volunteers come and go within an average. A smaller `next_chunk_timeout_seconds` notices
      it sooner; a smaller `max_group_size` loses less.
    - the loss jumps when newcomers come: lower `average_state_every`, or set `state_bits = 16`.
    - a volunteer waits though others will come later: `max_epochs_alone = 0` lets it train on alone.
    - "the others were faster": this peer's micro-batches last as long as an epoch. Give it a smaller micro-batch, or
      the run a larger `target_batch_size`.

    Starts two averagers, each a process.

    Args:
        model: The model to train; the optimizer holds its master weights in float32 on the host.
        run: The recipe of the run.
        dht: A running node that signs with `identity`.
        identity: Signs this peer's progress; None: a new key of this process does.
        lineage: Lineage of the weights. The peer trains with peers of this lineage; None: with peers that have none.
        micro_batch_size: Samples of a micro-batch, for calls of `step` that do not say how many.
        client_mode: Accept no incoming connections.
    """

    def __init__(
        self,
        model: nn.Module,
        run: RunConfig,
        *,
        dht: DHT,
        identity: Identity | None = None,
        lineage: Lineage | None = None,
        micro_batch_size: int | None = None,
        client_mode: bool = False,
    ):
        self.run, self.dht, self.lineage = run, dht, lineage
        self.local_epoch = 0
        """Number of updates that this peer has done or begun."""
        self._micro_batch_size, self._client_mode = micro_batch_size, client_mode
        self._epochs_alone = 0
        self._reports: queue.SimpleQueue[EpochReport] = queue.SimpleQueue()
        strategy, swarm = strategy_of(run.swarm), run.swarm
        self.alignment = AlignmentState()
        prefix = run_prefix(run.run_id, lineage)
        self.progress = _make_progress(run, prefix, dht, identity, client_mode)
        self.master = strategy.make_master(model, run)
        settings = _averager_settings(run, state_prefix(prefix), client_mode)
        self.parameters = _make_parameter_averager(self.master, self.alignment, run, dht, settings, lineage)
        apart = strategy.epochs_apart
        settings = replace(settings, prefix=f"{prefix}_grad_averager", epochs_apart=apart)
        self.gradients = strategy.make_averager(self.master, run, dht=dht, settings=settings)
        with self.gradients.get_tensors() as averaged:
            # An average that this peer has given up may end later; `hold` keeps it out while an update reads gradients.
            self.master.use_gradients(averaged, hold=self.gradients.get_tensors)
        for averager in (self.gradients, self.parameters):
            averager.peers = self.progress.peers
        self.exchange = Exchange(swarm, self.gradients, self.progress, self.alignment, epochs_apart=apart)
        self.updates = _make_updates(self.master, self.parameters, self.alignment, run, self.progress)
        self.strategy = strategy(
            Parts(
                run=run,
                model=model,
                master=self.master,
                updates=self.updates,
                exchange=self.exchange,
                begin_update=self._begin_update,
                report=self._report,
            )
        )
        self.catching_up = self._make_catching_up()
        if not client_mode:
            self.parameters.offer_state(0)
        # Last, when the averagers' processes are forked: a lock that a thread holds at a fork stays locked in them.
        self.progress.start()

    def _make_catching_up(self) -> CatchingUp:
        return CatchingUp(
            self.run,
            self.dht,
            self.master,
            self.progress,
            self.alignment,
            let_rounds_end=self._let_rounds_end,
            begin_epoch=self._begin_epoch,
            lineage=self.lineage,
        )

    # -- the training loop -----------------------------------------------------------------------------------------

    def step(self, batch_size: int | None = None) -> None:
        """Adds up the gradients that a micro-batch has left in the model; ends the epoch if all samples are there.

        A peer that is behind the others catches up instead, and its gradients are dropped. If no peer sends a state, it
        keeps them and trains on.

        Args:
            batch_size: Samples of this micro-batch, over which its loss is a mean; None: `micro_batch_size`.

        Raises:
            TrainingError: If the process of the node or of an averager has ended.
        """
        samples = self._micro_batch_size if batch_size is None else batch_size
        check_node(self.dht)
        self.updates.apply()
        # The progress compares epochs once in each epoch. The alignment remembers the result, so that a peer that fails
        # to catch up tries again and does not train on.
        if self.progress.is_behind(self.local_epoch):
            self.alignment.note(Event.OVERTAKEN)
        if self.alignment.behind and self._leave_epoch():
            return
        self.strategy.add_gradients(samples, self.local_epoch)
        self.progress.report(self.local_epoch, self.gradients.samples)
        self.exchange.look_for_group_early(self.local_epoch)
        if self._is_over() and not self.waits_for_others:
            self._end_epoch()

    def _is_over(self) -> bool:
        """Returns True if this peer's epoch ends now."""
        if self.progress.ready_to_update_epoch or self.exchange.is_awaited:
            return True
        return self.progress.ready_with_a_group and self.exchange.await_group_of_strangers()

    @property
    def waits_for_others(self) -> bool:
        """True if this peer should compute nothing until others come, because it has been alone for too long.

        It keeps the gradients of the current epoch. The next `step` adds to them, and ends the epoch together with
        newly arrived peers, or catches up with them.
        """
        most = self.run.swarm.max_epochs_alone
        is_alone = 0 < most <= self._epochs_alone and self.progress.num_peers <= 1
        return is_alone and self.progress.ready_to_update_epoch and self.progress.global_epoch <= self.local_epoch

    @property
    def samples_held(self) -> int:
        """Samples whose gradients this peer has added up and not yet used in an update."""
        return self.gradients.samples

    @property
    def averages(self) -> bool:
        """True while an average of this peer's gradients runs."""
        return self.exchange.under_way

    def rest(self) -> None:
        """Keeps the peer in the run while it computes nothing; call it every second or so.

        What the peer has computed still enters the update that ends its epoch. After that the peer is away until its
        next `step`: no group waits for it. Others can still download its state.

        Raises:
            TrainingError: If the process of the node or of an averager has ended.
        """
        check_node(self.dht)
        self.updates.apply()
        if self.gradients.samples:
            self.exchange.look_for_group_early(self.local_epoch)
            if self._is_over() and not self.waits_for_others:
                self._end_epoch()
        if not self.averages:
            if not self.gradients.samples:
                self.exchange.leave_group()
            self.progress.rest(self.local_epoch, self.gradients.samples)

    def catch_up(self) -> None:
        """Looks at once whether the others have gone on, and catches up with them; call it after `rest`."""
        with suppress(TimeoutError):
            if self.progress.look_around()[0] > self.local_epoch:
                self.alignment.note(Event.OVERTAKEN)
                self._leave_epoch() if self.gradients.samples else self._catch_up()

    def keep_waiting(self) -> None:
        """Tells newcomers that this peer is there; call it every second or so while `waits_for_others`."""
        self.progress.still_here()

    def zero_grad(self) -> None:
        """Drops the model's gradients."""
        for parameter in self.master.model_parameters:
            parameter.grad = None

    def take_epoch_reports(self) -> list[EpochReport]:
        """Returns the reports of the epochs that have ended since the last call."""
        reports = []
        while not self._reports.empty():
            reports.append(self._reports.get_nowait())
        return reports

    # -- the end of an epoch ---------------------------------------------------------------------------------------

    def _end_epoch(self) -> None:
        for averager in (self.gradients, self.parameters):
            averager.check_process()
        epoch_end = EpochEnd(epoch=self.local_epoch, others=max(self.progress.num_peers - 1, 0))
        epoch_end.reports = self.progress.reports_of(self.local_epoch)
        self._epochs_alone = 0 if epoch_end.others else self._epochs_alone + 1
        with suppress(LeftBehindError), self.progress.pause():
            self.strategy.end_epoch(epoch_end)
            self._begin_epoch(epoch_end.epoch + 1)
        if not epoch_end.in_background:  # else the strategy reports it when its average ends
            self._report(epoch_end)
        if epoch_end.left_behind:
            self._catch_up()

    def _begin_update(self, epoch: int, **gradients_ready) -> None:
        """Begins the update that ends an epoch, and the round of parameters that is due with it."""
        is_due = (epoch + 1) % self.run.swarm.average_state_every == 0
        is_wanted = epoch + 1 == self.exchange.parameters_wanted_at
        self.updates.begin(
            epoch,
            **gradients_ready,
            average_parameters=self.progress.num_peers > 1 and (is_due or is_wanted),
            expected_peers=self.exchange.expected_peers,
        )

    def _begin_epoch(self, epoch: int) -> None:
        """Begins an epoch in which nothing is computed yet; the progress must be paused."""
        self.local_epoch = epoch
        self.strategy.forget()
        self.progress.begin_epoch(epoch)
        if not self._client_mode:
            self.parameters.offer_state(epoch)

    def _report(self, epoch_end: EpochEnd) -> None:
        self._reports.put(epoch_end.report(self.updates.take_reports()))

    # -- where the others are --------------------------------------------------------------------------------------

    def _leave_epoch(self) -> bool:
        """Goes on where the others are, and reports that this peer's samples of the epoch are in no update.

        Returns False if it cannot, and trains on.
        """
        missed = EpochEnd(epoch=self.local_epoch, others=1, left_behind=True, fault=OVERTAKEN)
        has_caught_up = self._catch_up()
        if has_caught_up:
            self._report(missed)
        return has_caught_up

    def _catch_up(self) -> bool:
        """Goes on where the others are. Returns False if it cannot, and trains on."""
        has_caught_up = self.catching_up.skip_epochs(self.local_epoch) or self.load_state_from_peers()
        if not has_caught_up:
            self.catching_up.train_on()
        return has_caught_up

    def load_state_from_peers(self, *, oldest_epoch: int = 0) -> bool:
        """Downloads the run's state. Returns False if no peer sent it; see `CatchingUp.load_state_from_peers`."""
        # The update by which an epoch began may still run in the background. A donor in this peer's epoch then offers a
        # state of one epoch less, which is no older than this peer's own state.
        oldest_epoch = max(self.local_epoch - self.run.swarm.updates_in_background, oldest_epoch)
        return self.catching_up.load_state_from_peers(oldest_epoch)

    def load_checkpoint(
        self, model: nn.Module, optimizer_state: dict[str, Tensor], epoch: int, *, may_differ: bool = False
    ) -> None:
        """Continues from a checkpoint; see `CatchingUp.load_checkpoint`."""
        self.catching_up.load_checkpoint(model, optimizer_state, epoch, may_differ=may_differ)

    @property
    def last_download(self) -> tuple[int, float]:
        """Bytes and seconds of the last downloaded state; zeros before the first."""
        return self.catching_up.last_download

    def _let_rounds_end(self) -> None:
        """Waits for updates under way, and leaves the group that this peer looks for; called before the weights
        change."""
        self.updates.wait()
        self.exchange.leave_group()

    # -- this peer and the others ----------------------------------------------------------------------------------

    def declare_bandwidth(self, mbits: float | None) -> None:
        """Tells groupmates how much this peer's link carries in both directions, so that slow peers average smaller
        parts.

        None, an unknown bandwidth, counts as the mean of the known ones; see `gathering.shares`.

        Args:
            mbits: Bandwidth in Mbit/s.
        """
        self.gradients.bandwidth = self.parameters.bandwidth = mbits

    def say_goodbye(self) -> None:
        """Tells the others not to wait for this peer.

        First it waits up to `LAST_AVERAGE_SECONDS` for an average under way: without this peer, the group would repeat
        it.
        """
        deadline = time.monotonic() + LAST_AVERAGE_SECONDS
        while self.exchange.under_way and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        # The record goes last: with it `Progress` announces that this peer has left, and then no group may have this
        # peer.
        self.parameters.offer_state(None)
        self.exchange.drop_search()
        self.progress.shutdown()

    def shutdown(self) -> None:
        """Ends the averagers' processes and the background thread; processes of a role end with the role."""
        self.say_goodbye()
        self.updates.end()
        for averager in (self.gradients, self.parameters):
            averager.shutdown()


def _make_progress(run: RunConfig, prefix: str, dht: DHT, identity: Identity | None, client_mode: bool) -> Progress:
    return Progress(
        dht=dht,
        prefix=prefix,
        target_batch_size=run.swarm.target_batch_size,
        private_key=identity.private_key if identity is not None else None,
        client_mode=client_mode,
        matchmaking_seconds=run.swarm.matchmaking_seconds,
        record_seconds=run.swarm.metrics_expiration_seconds,
    )


def _make_parameter_averager(
    master: MasterWeights,
    alignment: AlignmentState,
    run: RunConfig,
    dht: DHT,
    settings: AveragerSettings,
    lineage: Lineage | None,
) -> ParameterAverager:
    swarm = run.swarm
    large = "float16" if swarm.state_bits == 16 else swarm.gradient_codec
    settings = replace(
        settings,
        compression=exchange_codec(swarm.compression_threshold, large),
        round_own_parts=True,  # otherwise a round would change even weights that are equal
        reduction=WeightedMean(most_weight=FULL_WEIGHT),
        guard=None,
    )
    if swarm.aggregation == "centered-clip":
        from training.swarm.defence import options  # a run that averages by the mean loads none of it

        settings = replace(settings, **options.of_parameters(swarm))
    codec = state_codec()
    return ParameterAverager(master, alignment, dht=dht, settings=settings, codec=codec, lineage=lineage)


def _make_updates(
    master: MasterWeights, parameters: ParameterAverager, alignment: AlignmentState, run: RunConfig, progress: Progress
) -> Updates:
    return Updates(
        master,
        parameters,
        alignment,
        epoch_seconds=lambda: progress.epoch_seconds,
        round_seconds=run.swarm.averaging_timeout_seconds,
        search_seconds=run.swarm.matchmaking_seconds + run.swarm.request_timeout_seconds,
    )


def _averager_settings(run: RunConfig, prefix: str, client_mode: bool) -> AveragerSettings:
    swarm = run.swarm
    settings = AveragerSettings(
        prefix=prefix,
        matchmaking_seconds=swarm.matchmaking_seconds,
        request_timeout_seconds=swarm.request_timeout_seconds,
        allreduce_timeout_seconds=swarm.allreduce_timeout_seconds,
        next_chunk_timeout_seconds=swarm.next_chunk_timeout_seconds,
        client_mode=client_mode,
        reduction=WeightedMean(most_weight=MOST_BATCHES * swarm.target_batch_size),
    )
    if swarm.aggregation == "centered-clip":
        from training.swarm.defence import options  # a run that averages by the mean loads none of it

        settings = replace(settings, **options.of_gradients(swarm))
    return settings
