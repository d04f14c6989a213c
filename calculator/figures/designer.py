"""The run designer: turns model, volunteers and target into days, losses, settings and the recipe file."""

from __future__ import annotations

from dataclasses import asdict

from calculator.choose.devices import DEVICES, device_named
from calculator.choose.flops import UTILISATION
from calculator.errors import BadSetup
from calculator.figures.kit.controls import Choice, Range, Stops, Values
from calculator.figures.kit.drawing import Canvas, wrapped
from calculator.figures.kit.figure import Drawn, Figure, File, Source
from calculator.swarm.designed_models import (
    BATCHES,
    FAMILIES,
    LANGUAGE_SIZES,
    PICTURE_SIZES,
    DesignedModel,
    LanguageModel,
    PictureModel,
)
from calculator.swarm.designer import (
    LEAST_EXCHANGES,
    LEAST_UPDATES,
    Design,
    Memory,
    People,
    Wish,
    alone_days,
    design,
    memory_of,
    recipe,
)
from calculator.swarm.exchange import SPARSE_BLOCK
from calculator.units import show_bytes, show_count, show_days, show_number, show_time

COUNTS = (0, 1, 2, 3, 5, 8, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000, 3000, 5000, 10_000)
MEGABITS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SAMPLES = (1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8, 2e8, 512e6, 1e9)
AS_SUITS = "as-suits"
DAYS = (1, 3, 7, 14, 30, 60, 90, 180, 365)
BLOCKS = (128, 256, 512, 1024, 2048, 4096)
PICTURE_WORDS = {
    "demo": "The demo's shapes",
    "small": "Small",
    "middle": "Middle",
    "dalle-2021": "The 2021 run's",
    "large": "Large",
    "huge": "Huge",
}
LANGUAGE_WORDS = {
    "stories": "The demo's stories",
    "15m": "Very small",
    "160m": "Small",
    "410m": "Middle",
    "1b": "Large",
    "2.8b": "Huge",
}
CAUSES = {
    "computing": "Samples that count",
    "adding_up": "Adding up gradients",
    "last_micro_batch": "The slowest's micro-batch",
    "meeting": "Meeting in groups",
    "averaging": "Exchange",
    "joining": "Joining",
    "leaving": "Others' leaving",
}


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws bars of the days needed, the days available, and the uses of volunteers' time."""
    wish = Wish(
        model=_model(values),
        people=tuple([_people(values, kind) for kind in ("first", "second")]),
        hours_a_day=float(values["hours"]),
        samples=float(values["samples"]),
        days=float(values["days"]),
        utilisation=float(values["utilisation"]) / 100,
        batch=None if values["batch"] == AS_SUITS else int(values["batch"]),
    )
    try:
        made = design(wish)
    except BadSetup as error:
        return _impossible(str(error), canvas)
    return Drawn(
        caption=_caption(wish, made),
        label=f"Bars: {show_days(made.days)} needed of {wish.days:g}, and what volunteers' time is spent on",
        canvas=canvas,
        height=_bars(canvas, wish, made),
        head=("What", "With these settings"),
        rows=_rows(wish, made),
        file=File(name="my-run.toml", text=recipe(wish, made)) if made.forecast.works else None,
    )


def _model(values: Values) -> DesignedModel:
    if values["task"] == PictureModel.task:
        return PictureModel(size=str(values["model"]))
    return LanguageModel(size=str(values["size"]), family=str(values["family"]), block_length=int(values["block"]))


def _people(values: Values, kind: str) -> People:
    return People(
        count=int(values[f"{kind}_count"]),
        gpu=str(values[f"{kind}_gpu"]),
        up_megabits=float(values[f"{kind}_up"]),
        down_megabits=float(values[f"{kind}_down"]),
    )


def _impossible(sentence: str, canvas: Canvas) -> Drawn:
    for number, line in enumerate(wrapped(sentence, 36 if canvas.narrow else 80)):
        canvas.text(10, 30 + 22 * number, line)
    return Drawn(
        caption=f"Not feasible. {sentence}",
        label="No run is possible with these settings",
        canvas=canvas,
        height=160,
        head=("What", "With these settings"),
        rows=[("Feasible", "no")],
    )


def _caption(wish: Wish, made: Design) -> str:
    """Says whether the run is feasible, with the numbers; then names the first limit that it reaches."""
    reached, limits = made.forecast, made.forecast.limits
    if not reached.works:
        first = next(limit for limit in limits if limit.stops)
        return f"Not feasible. {first.sentence}"
    pace = f"{show_number(reached.samples_per_second)} samples per second"
    took = f"{show_count(wish.samples)} samples{_tokens_words(wish)} take {show_days(made.days)} at {pace}"
    lost = f"{100 * reached.shares.communication:.0f} % of the time is lost to communication if no link is slower"
    verdict = "Feasible" if made.days <= wish.days else f"Not feasible in {show_days(wish.days)}"
    said = f"{verdict}: {took}; {lost}. The recipe: {_settings(made)}."
    left_out = [device_named(gpu).title for gpu, size in made.micro_batches.items() if not size]
    if left_out:
        said += f" Not even one sample fits {' and '.join(left_out)}, so these volunteers are left out."
    if made.epochs < (LEAST_EXCHANGES if made.collaboration.local_updates else LEAST_UPDATES):
        before = " (2021: 31 250)" if wish.model.task == PictureModel.task else ""
        said += f" These are only {made.epochs} updates of the shared weights, few to learn from{before}."
    if limits:
        said += f" Note: {limits[0].sentence}{_no_larger(wish, made)}"
    return said


def _tokens_words(wish: Wish) -> str:
    """The tokens of all samples of text, in words; empty for pictures."""
    tokens = _tokens(wish)
    if tokens is None:
        return ""
    parameters = wish.model.parameters
    return f" ({_large(tokens)} tokens, {show_number(tokens / parameters)} for each of {_large(parameters)} parameters)"


def _tokens(wish: Wish) -> float | None:
    length = wish.model.sequence_length
    return None if length is None else wish.samples * length


def _large(number: float) -> str:
    """A number with three digits, in millions or more where it is that large."""
    for size, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{show_number(number / size)} {word}"
    return show_count(round(number))


def _no_larger(wish: Wish, made: Design) -> str:
    """The reason why the batch is not larger, if the first limit suggests a larger batch."""
    batch = made.collaboration.target_batch_size
    if "larger" not in made.forecast.limits[0].sentence or wish.batch or made.collaboration.local_updates:
        return ""
    if batch == wish.model.batches[-1]:
        return " With larger batches than this, models are not known to learn as much from a sample."
    left = "even fewer" if made.epochs < LEAST_UPDATES else f"fewer than {show_count(LEAST_UPDATES)}"
    return (
        f" It would leave {left} updates, so it was not chosen: train on more samples or with fewer volunteers, or set "
        "a larger batch under “By numbers”."
    )


def _settings(made: Design) -> str:
    """Batch and compression in words."""
    chosen = made.collaboration
    batch = show_count(chosen.target_batch_size)
    if chosen.local_updates:
        changes = (
            f"send each other the {chosen.sparse_kept} largest of each {show_count(SPARSE_BLOCK)} changes of their "
            "weights, in 2 bit"
        )
        exchange = changes if chosen.mode == "sparse" else "average the changes of their weights, in 8 bit"
        late = ", while they train on" if chosen.delay_outer_step else ""
        return f"each volunteer trains on its own, and after {batch} samples in total all {exchange}{late}"
    way = "while the next update is computed" if chosen.is_delayed else "before the next update"
    return f"updates of {batch} samples, gradients in 8 bit, averaged {way}"


def _bars(canvas: Canvas, wish: Wish, made: Design) -> float:
    """Draws the bars; returns the drawing's height."""
    left, right = (10, canvas.width - 60) if canvas.narrow else (220, canvas.width - 70)
    row, lower = (44, 20) if canvas.narrow else (30, 0)

    def bar(number: float, words: str, share: float, shown: str, look: str) -> None:
        y = 16 + row * number
        canvas.text(10, y + 13, words, "soft")
        canvas.rect(left, y + lower, right - left, 16, "shade")
        canvas.rect(left, y + lower, (right - left) * share, 16, look)
        canvas.text(canvas.width - 4, y + 13 + lower, shown, anchor="end")

    works = made.forecast.works
    longest = max(made.days, wish.days) if works else wish.days
    bar(0, "Time available", wish.days / longest, show_days(wish.days), "fill-3")
    bar(1, "Time needed", made.days / longest if works else 1, show_days(made.days) if works else "never", "fill-1")
    for number, (cause, share) in enumerate(asdict(made.forecast.shares).items()):
        # 0.6 of a row separates the two groups of bars.
        bar(2.6 + number, CAUSES[cause], min(share, 1), f"{100 * share:.0f} %", "fill-1" if not number else "fill-2")
    return 16 + row * (2.6 + len(CAUSES)) + 6


def _rows(wish: Wish, made: Design) -> list[tuple[str, str]]:
    """The table: the forecast, then the settings."""
    reached, chosen = made.forecast, made.collaboration
    exchange = chosen.exchange()
    feasible = reached.works and made.days <= wish.days
    alone = alone_days(wish)
    first = device_named(wish.people[0].gpu).title
    if chosen.local_updates:
        way = f"local updates (mode = {chosen.mode}{', delay_outer_step' * chosen.delay_outer_step})"
    else:
        way = "delayed" if chosen.is_delayed else "awaited"
    sent = f"{chosen.sparse_kept} of {show_count(SPARSE_BLOCK)} changes in 2 bit" if chosen.mode == "sparse" else ""
    micro = ", ".join(f"{size or 'none'} on {device_named(gpu).title}" for gpu, size in made.micro_batches.items())
    return [
        ("Feasible", "yes" if feasible else "no"),
        ("Volunteers at the same time", show_number(reached.peers)),
        (
            "Samples per second",
            f"{show_number(reached.samples_per_second)} of {show_number(reached.ideal_samples_per_second)}",
        ),
        ("Time needed", show_days(made.days) if reached.works else "never"),
        (f"Time with a single {first}", "it does not fit" if alone is None else show_days(alone)),
        ("Lost to communication", f"{100 * reached.shares.communication:.1f} %"),
        *[(CAUSES[cause], f"{100 * share:.1f} %") for cause, share in asdict(reached.shares).items()],
        ("Distinct parameters", show_count(exchange.parameters)),
        *_token_rows(wish, made),
        ("Samples per update", show_count(chosen.target_batch_size)),
        ("Why so many", made.why_batch),
        ("Updates", show_count(made.epochs)),
        ("Compression", f"{sent or f'gradients {chosen.gradient_codec}'}, parameters {chosen.state_bits} bit"),
        ("Gradients", way),
        ("An update takes", f"{show_time(reached.epoch_seconds)}, an exchange {show_time(reached.all_reduce_seconds)}"),
        ("Each peer sends per update", show_bytes(reached.sent_bytes)),
        ("A newcomer downloads", f"{show_bytes(exchange.newcomer_bytes)}, {show_time(reached.newcomer_seconds)}"),
        ("Micro-batch", micro),
        *[_memory_row(gpu, memory_of(wish, made, gpu)) for gpu, size in made.micro_batches.items() if size],
        *[(f"Note: {limit.name}", limit.sentence) for limit in reached.limits],
    ]


def _token_rows(wish: Wish, made: Design) -> list[tuple[str, str]]:
    """Rows of the table for a language model."""
    tokens, length, chosen = _tokens(wish), wish.model.sequence_length, made.collaboration
    if tokens is None:
        return []
    per = "exchange" if chosen.local_updates else "update"
    return [
        ("Tokens to train on", f"{_large(tokens)}, {show_number(tokens / wish.model.parameters)} per parameter"),
        (f"Tokens per {per}", show_count(chosen.target_batch_size * length)),
    ]


def _memory_row(gpu: str, memory: Memory) -> tuple[str, str]:
    device = device_named(gpu)
    return (
        f"Memory on {device.title}",
        f"{show_bytes(memory.device_bytes)} of {show_bytes(device.usable_bytes)} if activations are recomputed, and "
        f"{show_bytes(memory.host_bytes)} of the computer's",
    )


def _picture_words(size: str) -> str:
    """A model's description with its number of distinct parameters; layers share weights."""
    count = PictureModel(size=size).parameters
    return f"{PICTURE_WORDS[size]}, {show_count(round(count / 1e6) or 1)} M parameters"


def _language_words(size: str) -> str:
    """Describes a size by the numbers that all families share; their numbers of parameters differ."""
    of_size = LANGUAGE_SIZES[size]
    return f"{LANGUAGE_WORDS[size]}, {of_size['num_hidden_layers']} layers of width {of_size['hidden_size']}"


def _kind_controls(kind: str, words: str, count: int, gpu: str) -> tuple:
    gpus = tuple([(device.name, device.title) for device in DEVICES.values() if device.teraflops])
    return (
        Stops(name=f"{kind}_count", label=f"{words}: how many", stops=COUNTS[kind == "first" :], default=count),
        Choice(name=f"{kind}_gpu", label=f"{words}: GPU", options=gpus, default=gpu),
        Stops(name=f"{kind}_up", label=f"{words}: up", stops=MEGABITS, default=50, unit="Mbit/s"),
        Stops(name=f"{kind}_down", label=f"{words}: down", stops=MEGABITS, default=100, unit="Mbit/s"),
    )


_OF_PICTURES, _OF_TEXT = ("task", PictureModel.task), ("task", LanguageModel.task)
_PICTURE_MODELS = tuple([(size, _picture_words(size)) for size in PICTURE_SIZES])
_LANGUAGE_MODELS = tuple([(size, _language_words(size)) for size in LANGUAGE_SIZES])

FIGURE = Figure(
    name="designer",
    title="Design a run",
    controls=(
        Choice(
            name="task", label="What is trained", default=PictureModel.task,
            options=((PictureModel.task, "Pictures from captions"), (LanguageModel.task, "Language model")),
        ),
        Choice(name="model", label="Model", options=_PICTURE_MODELS, default="dalle-2021", needs=_OF_PICTURES),
        Choice(name="family", label="Family", options=tuple(FAMILIES.items()), default="llama", needs=_OF_TEXT),
        Choice(name="size", label="Size", options=_LANGUAGE_MODELS, default="160m", needs=_OF_TEXT),
        Stops(name="block", label="Block length", stops=BLOCKS, default=512, unit="tokens", needs=_OF_TEXT),
        Stops(name="samples", label="Samples to train on", stops=SAMPLES, default=1e8),
        Stops(name="days", label="Days available", stops=DAYS, default=60),
        Range(name="hours", label="Hours per day of each volunteer", low=1, high=24, default=12, unit="h"),
        *_kind_controls("first", "Volunteers", 30, "t4"),
        *_kind_controls("second", "Others", 10, "rtx-3090"),
        Choice(
            name="batch", label="Samples per update", default=AS_SUITS, folded=True,
            options=((AS_SUITS, "as suits the run"), *[(str(batch), show_count(batch)) for batch in BATCHES]),
        ),
        Range(
            name="utilisation", label="Share of a GPU's peak that training reaches", low=5, high=60,
            default=100 * UTILISATION, step=5, unit="%", folded=True,
        ),
    ),
    draw=draw,
    sources=(
        Source(text="Douillard et al., DiLoCo, 2023, on local updates", address="https://arxiv.org/abs/2311.08105"),
        Source(text="Sarfi et al., SparseLoCo, 2025, on sparse ones", address="https://arxiv.org/abs/2508.15706"),
        Source(text="Biderman et al., Pythia, 2023, on language models", address="https://arxiv.org/abs/2304.01373"),
        Source(text="Diskin et al., DeDLOC, 2021, on batches of uneven peers", address="https://arxiv.org/abs/2106.10207"),
        Source(text="Jaghouar et al., INTELLECT-1, 2024, on utilisation", address="https://arxiv.org/abs/2412.01152"),
    ),
)  # fmt: skip
