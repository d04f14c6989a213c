"""Designs a run: settings that suit a model, volunteers and a target; their forecast; and the recipe file."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from calculator.choose.advice import advised_micro_batch, sizes_to_advise
from calculator.choose.devices import device_named
from calculator.choose.flops import UTILISATION, samples_per_second
from calculator.errors import BadSetup
from calculator.step.estimate import estimate
from calculator.swarm.collaboration import Collaboration, Kind
from calculator.swarm.designed_models import BATCHES, DesignedModel
from calculator.swarm.forecast import (
    ADVISED_WINDOWS,
    DAY_SECONDS,
    ExchangedVectors,
    Forecast,
    Volunteers,
    forecast,
)
from calculator.swarm.recipe_file import recipe_text
from calculator.swarm.settings import (
    DEFAULTS,
    EPOCHS_ALONE,
    INNER_BATCH_SIZE,
    METRICS_SECONDS,
    SPARSE_STATES_EVERY,
    ExchangeSettings,
)

LEAST_UPDATES, LEAST_EXCHANGES = 1000, 100
"""The least number of updates, or of exchanges of local updates, that a batch must leave; 2021 planned 31 250."""
LEAST_SECONDS_BETWEEN_CHECKPOINTS, MOST_EPOCHS_BETWEEN_CHECKPOINTS = 30.0, 10
"""Time between two checkpoints of short epochs, by the forecast, since the monitor downloads the state for each; but no
more epochs than these, as volunteers may be slower than forecast."""
SHORT_EPOCH_SECONDS = 30.0
"""Longest epoch for which volunteers report more often, so that the dashboard moves."""
MOST_COMMUNICATION = 0.1
"""The largest share of the time that the exchange may take if it can be avoided."""
INNER_UPDATES = (30, 100, 500)
"""Numbers of local updates between two exchanges that the designer tries. Sarfi et al. 2025 (arXiv:2508.15706) use 30,
Douillard et al. 2023 (arXiv:2311.08105) 500."""
STATES_EVERY = 25
"""Epochs between two averages of the parameters, but with `mode = "sparse"`."""
WHY_LARGEST = "The largest batch with which this kind of run is known to learn, or that leaves a thousand updates"
WHY_DELAYED = "; gradients are averaged while the next update is computed, so they are one update old"
WHY_ASKED = "You chose it."
WHY_LOCAL = (
    "The links are too slow, or the volunteers too many, to average gradients: each volunteer trains on its own for "
    "about {updates} updates, then all exchange the changes of their weights."
)
WHY_OVERLAPPED = (
    "Waiting for the exchange would take {percent:.0f} % of the time, so all train on during it, with weights that "
    "lack what the others have just sent."
)
GENEROUS = dict(allreduce_timeout_seconds=1800.0, next_chunk_timeout_seconds=300.0)
"""The longest advised time-outs. Settings are tried with these; the final ones follow from the slowest link."""


@dataclass(frozen=True, kw_only=True, slots=True)
class People:
    """Volunteers with one GPU and link."""

    count: int
    gpu: str
    up_megabits: float
    down_megabits: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """The user's target and volunteers."""

    model: DesignedModel
    people: tuple[People, ...]
    hours_a_day: float
    samples: float
    """Samples to train on in total."""
    days: float
    """Days available."""
    utilisation: float = UTILISATION
    batch: int | None = None
    """Samples per update; None: the designer chooses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """Settings and their forecast."""

    collaboration: Collaboration
    forecast: Forecast
    micro_batches: dict[str, int]
    """Micro-batch of each GPU; 0 where not even one sample fits."""
    learning_rate: float
    epochs: int
    why_batch: str

    @property
    def days(self) -> float:
        """Days until all samples are trained on."""
        return self.forecast.days(self.epochs)


@lru_cache(maxsize=512)
def micro_batch(
    model: DesignedModel,
    gpu: str,
    *,
    local_updates: bool = False,
    delay_outer_step: bool = False,
    target_batch_size: int = BATCHES[0],
    sample_seconds: float | None = None,
) -> int:
    """Samples at once that are advised for this GPU; 0 if not even one fits.

    Args:
        model: Model of the run.
        gpu: Name of a GPU.
        local_updates: See `calculator.choose.advice.PeerTraining`.
        delay_outer_step: Likewise.
        target_batch_size: Target batch of the run; the smallest of `BATCHES` allows as large a micro-batch as any
            larger one.
        sample_seconds: Time of one sample on this GPU; None if it is not known.
    """
    device = device_named(gpu)
    training = model.training(local_updates=local_updates, delay_outer_step=delay_outer_step)
    window = DEFAULTS.matchmaking_seconds
    sizes = sizes_to_advise(target_batch_size, matchmaking_seconds=window, sample_seconds=sample_seconds)
    return advised_micro_batch(sizes, lambda size: training.need_bytes(device, size), device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Memory that training takes on a volunteer's machine."""

    device_bytes: int
    """Bytes on the GPU, with all activations recomputed."""
    host_bytes: int


def memory_of(wish: Wish, made: Design, gpu: str) -> Memory:
    """The memory of a volunteer with this GPU and the design's micro-batch, which is at least 1."""
    return _memory(wish.model, gpu, made.micro_batches[gpu], **_of_memory(made.collaboration))


def _of_memory(exchange: ExchangeSettings) -> dict[str, bool]:
    """The settings of an exchange on which a volunteer's memory depends."""
    return {"local_updates": exchange.local_updates, "delay_outer_step": exchange.delay_outer_step}


@lru_cache(maxsize=512)
def _memory(model: DesignedModel, gpu: str, micro_batch_size: int, **mode: bool) -> Memory:
    device, training = device_named(gpu), model.training(**mode)
    result = estimate(training.setup(device, micro_batch_size, checkpointing=True))
    _, on_host = training.bytes_of_the_mode(result)
    return Memory(device_bytes=training.need_bytes(device, micro_batch_size), host_bytes=result.host.total + on_host)


def design(wish: Wish) -> Design:
    """Chooses settings: the best for learning among those with a short exchange, otherwise the fastest that work.

    Raises:
        BadSetup: If no volunteer's GPU holds the model.
    """
    crew = _crew(wish)
    if not crew.people:
        raise BadSetup(
            "No volunteer's GPU holds even one sample of this model; choose a smaller model or GPUs with more memory."
        )
    chosen, made, why = _choose(crew, wish)
    crew = _crew(wish, chosen)
    learned = INNER_BATCH_SIZE if chosen.local_updates else chosen.target_batch_size
    return Design(
        collaboration=replace(
            crew.collaboration,
            target_batch_size=chosen.target_batch_size,
            mode=chosen.mode,
            delay_outer_step=chosen.delay_outer_step,
            average_state_every=chosen.average_state_every,
            matchmaking_seconds=chosen.matchmaking_seconds,
            allreduce_timeout_seconds=_timeout(made.longest_seconds),
            next_chunk_timeout_seconds=chosen.next_chunk_timeout_seconds,
        ),
        forecast=made,
        micro_batches=crew.sizes,
        learning_rate=wish.model.learning_rate(learned),
        epochs=max(2, math.ceil(wish.samples / chosen.target_batch_size)),
        why_batch=why,
    )


@dataclass(frozen=True, slots=True)
class _Crew:
    """Volunteers with GPUs that hold the model."""

    collaboration: Collaboration
    people: list[Volunteers]
    sizes: dict[str, int]
    """Micro-batch by GPU, 0 for the others."""

    @property
    def rate(self) -> float:
        """Samples per second of all volunteers if no time were lost."""
        return sum(kind.count * kind.present * kind.samples_per_second for kind in self.people)


def _crew(wish: Wish, exchange: ExchangeSettings = DEFAULTS) -> _Crew:
    sizes = {people.gpu: _size(wish, people.gpu, exchange) for people in wish.people if people.count}
    able = [people for people in wish.people if people.count and sizes[people.gpu]]
    collaboration = Collaboration(
        volunteers=tuple([_kind(people, wish.hours_a_day, sizes[people.gpu]) for people in able]),
        config=wish.model.config,
        sequence_length=wish.model.sequence_length,
        optimizer=wish.model.host_optimizer,
        **{name: value for name, value in wish.model.adapters.items() if name != "base_bits"},
        utilisation=wish.utilisation,
        average_state_every=STATES_EVERY,
        state_bits=16,
        **GENEROUS,
    )
    return _Crew(collaboration, collaboration.kinds(), sizes)


def _size(wish: Wish, gpu: str, exchange: ExchangeSettings = DEFAULTS) -> int:
    """The micro-batch that is advised at the expected speed, at most `most_forecast`; 0 if not even one sample fits."""
    seconds = 1 / _speed(wish, gpu)
    size = micro_batch(wish.model, gpu, **_of_memory(exchange), sample_seconds=seconds)
    return min(size, wish.model.most_forecast)


def _speed(wish: Wish, gpu: str, micro_batch_size: int | None = None) -> float:
    """Samples per second of one volunteer with this GPU."""
    model = wish.model
    return samples_per_second(
        model.architecture(),
        device_named(gpu),
        wish.utilisation,
        micro_batch_size,
        length=model.sequence_length,
        frozen=bool(model.adapters),
    )


def _timeout(longest_seconds: float) -> float:
    """Twice the time of the longest exchange, rounded up to ten seconds, and at least the default."""
    most = GENEROUS["allreduce_timeout_seconds"]
    return min(max(DEFAULTS.allreduce_timeout_seconds, 10.0 * math.ceil(longest_seconds / 5)), most)


def _kind(people: People, hours_a_day: float, micro_batch_size: int) -> Kind:
    return Kind(
        count=people.count,
        gpu=people.gpu,
        up_megabits=people.up_megabits,
        down_megabits=people.down_megabits,
        present=hours_a_day / 24,
        session_hours=None if hours_a_day == 24 else hours_a_day,
        micro_batch_size=micro_batch_size,
    )


@dataclass(frozen=True, slots=True)
class _Tried:
    exchange: ExchangedVectors
    forecast: Forecast
    why: str

    @property
    def good(self) -> bool:
        """Returns True if the run works, loses little time to the exchange, and has long enough epochs."""
        made, windows = self.forecast, ADVISED_WINDOWS * self.exchange.matchmaking_seconds
        # 0.99, because the window was rounded to a tenth of a second.
        calm = made.peers <= 1 or made.computing_seconds >= 0.99 * windows
        return made.works and made.shares.communication <= MOST_COMMUNICATION and calm


def _choose(crew: _Crew, wish: Wish) -> tuple[ExchangedVectors, Forecast, str]:
    people, exchange = crew.people, crew.collaboration.exchange()
    present = sum(kind.count * kind.present for kind in people)
    reducers = max(2, min(round(present), exchange.max_group_size))
    message = max(exchange.message_seconds(kind.link, reducers) for kind in people)
    longest = GENEROUS["next_chunk_timeout_seconds"]
    silence = max(DEFAULTS.next_chunk_timeout_seconds, float(math.ceil(2 * message)))
    exchange = replace(exchange, next_chunk_timeout_seconds=min(silence, longest))

    def tried(why: str, batch: int, crew: _Crew = crew, **changes) -> _Tried:
        # At least 1.5 s, which leaves a request one second (see `_tables`).
        window = min(DEFAULTS.matchmaking_seconds, max(1.5, round(batch / crew.rate / ADVISED_WINDOWS, 1)))
        candidate = replace(exchange, target_batch_size=batch, matchmaking_seconds=window, **changes)
        return _Tried(candidate, forecast(crew.people, candidate), why)

    known = wish.model.batches
    batches = [batch for batch in known if batch <= wish.samples / LEAST_UPDATES] or known[:1]
    if wish.batch:
        batches = [wish.batch]

    def awaited(place: int) -> _Tried:
        return tried(WHY_ASKED if wish.batch else _why_batch(batches[place]), batches[place])

    best = awaited(len(batches) - 1)
    if best.good:  # larger batches exchange less often, so bisection finds the smallest good one
        low, high = 0, len(batches) - 1
        while low < high:
            middle = (low + high) // 2
            one = awaited(middle)
            low, high, best = (low, middle, one) if one.good else (middle + 1, high, best)
        return best.exchange, best.forecast, best.why
    # Then what learns less well: gradients that are one update old, then local updates.
    others = [
        replace(best, why=WHY_ASKED if wish.batch else f"{WHY_LARGEST}."),
        tried(WHY_ASKED if wish.batch else f"{WHY_LARGEST}{WHY_DELAYED}.", batches[-1], mode="delayed"),
    ]
    local = _crew(wish, replace(exchange, mode="diloco"))  # which takes more memory
    for updates in INNER_UPDATES if local.people else ():
        batch = max(batches[-1], round(present * INNER_BATCH_SIZE * updates))
        if others[-1].good or wish.batch or batch > wish.samples / LEAST_EXCHANGES:
            break
        why = WHY_LOCAL.format(updates=updates)
        sparse = tried(why, batch, local, mode="sparse", average_state_every=SPARSE_STATES_EVERY)
        dense = tried(why, batch, local, mode="diloco")
        # Sparse exchanges learn least well (benchmarks/swarm/local_losses.py). Every peer gets all sparse messages, so
        # in large groups they are more bytes than an average.
        others.append(dense if dense.good else max(dense, sparse, key=_speed_of))
    chosen = others[-1] if others[-1].good else max(others, key=_speed_of)
    waiting = chosen.forecast.shares.communication
    if chosen.exchange.local_updates and waiting > MOST_COMMUNICATION:
        # Last, since all then train on with weights that lack the others' changes, and need yet more memory.
        late = replace(chosen.exchange, delay_outer_step=True)
        overlapped = _crew(wish, late)
        if overlapped.people:
            why = f"{chosen.why} {WHY_OVERLAPPED.format(percent=100 * waiting)}"
            chosen = max(chosen, _Tried(late, forecast(overlapped.people, late), why), key=_speed_of)
    if chosen.good:
        return chosen.exchange, chosen.forecast, chosen.why
    why = f"{chosen.why} This is the fastest of the settings tried; none leaves enough time for the exchange."
    return chosen.exchange, chosen.forecast, why


def _speed_of(one: _Tried) -> tuple[bool, float]:
    """Key for sorting: settings that do not work come first, then slower ones."""
    return one.forecast.works, one.forecast.samples_per_second


def _why_batch(batch: int) -> str:
    return (
        f"{'The smallest batch' if batch > BATCHES[0] else 'A small batch'} for which the exchange takes at most a "
        "tenth of the time: with smaller batches a model learns more from each sample."
    )


def recipe(wish: Wish, made: Design) -> str:
    """The complete recipe file, ready for `python -m training bootstrap --recipe`."""
    head = (
        "From the run designer. The page “The recipe” explains every number. All peers of a run use the same file.",
        "To simulate it with the volunteers that you named (without --alike, speeds and links vary as people's do,",
        "and the slowest link of a group sets its pace):",
        f"  {simulate_command(wish, made)}",
        "To prepare the data:",
        f"  python -m training {wish.model.prepare_command}",
    )
    # From the wish, so that the same settings always give the same file.
    named = {"run_id": f"run-{zlib.crc32(repr(wish).encode()):08x}", "title": "My run"}
    return recipe_text(head, recipe_tables(wish, made, named))


def recipe_tables(wish: Wish, made: Design, named: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """The recipe's tables by name.

    Args:
        wish: What was designed.
        made: Its design.
        named: The recipe's first values: `run_id` and `title`.
    """
    chosen, forecast = made.collaboration, made.forecast
    calm = round(LEAST_SECONDS_BETWEEN_CHECKPOINTS / forecast.epoch_seconds)
    shown_every = max(1, made.epochs // 300, min(calm, MOST_EPOCHS_BETWEEN_CHECKPOINTS))
    is_alone = sum(people.count for people in wish.people) == 1
    return {
        "": {**named, "description": wish.model.description, "task": wish.model.task, "seed": 0},
        **wish.model.tables(),
        "data": dict(shards="shards"),
        "optimizer": wish.model.optimizer,
        "schedule": dict(
            peak_learning_rate=float(f"{made.learning_rate:.2g}"),
            warmup_epochs=made.epochs // 10,
            total_epochs=made.epochs,
        ),
        "swarm": dict(
            target_batch_size=chosen.target_batch_size,
            matchmaking_seconds=chosen.matchmaking_seconds,
            allreduce_timeout_seconds=chosen.allreduce_timeout_seconds,
            next_chunk_timeout_seconds=chosen.next_chunk_timeout_seconds,
            gradient_codec=chosen.gradient_codec,
            average_state_every=chosen.average_state_every,
            state_bits=chosen.state_bits,
            mode=chosen.mode,
            **(dict(inner_batch_size=INNER_BATCH_SIZE) if chosen.local_updates else {}),
            **(dict(delay_outer_step=True) if chosen.delay_outer_step else {}),
            max_epochs_alone=0 if is_alone else EPOCHS_ALONE,
            metrics_every_seconds=METRICS_SECONDS if forecast.epoch_seconds > SHORT_EPOCH_SECONDS else 3.0,
        ),
        "monitor": dict(checkpoint_every_epochs=shown_every, pictures_every_epochs=shown_every, **wish.model.shown),
    }


def simulate_command(wish: Wish, made: Design, file: str = "my-run.toml") -> str:
    """The command that simulates the recipe with the volunteers of the wish, each kind as fast as the design says."""
    kinds = made.collaboration.volunteers
    said = [
        f"--volunteers {kind.count}:{speed.samples_per_second:.4g}:{kind.up_megabits:g}/{kind.down_megabits:g}"
        for kind, speed in zip(kinds, made.collaboration.kinds(), strict=True)
    ]
    hours = wish.hours_a_day
    absent = [] if hours == 24 else [f"--session-hours {hours:g} --present {hours / 24:.3g}"]
    size = min(kind.micro_batch_size for kind in kinds)
    words = ["python -m training simulate", f"--recipe {file}", "--alike", f"--micro-batch-size {size}", *said, *absent]
    return " ".join(words)


def alone_days(wish: Wish) -> float | None:
    """Days that one volunteer of the first kind needs on its own, 24 hours a day; None if the model does not fit it."""
    first = wish.people[0]
    size = _size(wish, first.gpu)
    if not size:
        return None
    return wish.samples / _speed(wish, first.gpu, size) / DAY_SECONDS
