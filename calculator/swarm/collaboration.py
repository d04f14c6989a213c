"""A collaboration as people describe it, with names of models and GPUs, Mbit/s and hours, and its forecast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from calculator.choose.devices import device_named
from calculator.choose.flops import UTILISATION, samples_per_second
from calculator.errors import BadSetup
from calculator.families.lengths import most_tokens
from calculator.models.architecture import ParameterTensor
from calculator.models.architectures import Architecture, from_config
from calculator.models.names import preset
from calculator.parts.adapters import ALL_LINEAR, adapter_tensors
from calculator.parts.optimizers import OPTIMIZERS
from calculator.parts.parameters import parameter_tensors
from calculator.step.resolve import lora_of, resolve
from calculator.step.setups import Setup
from calculator.swarm.exchange import CODECS, Link
from calculator.swarm.forecast import ExchangedVectors, Forecast, Volunteers, forecast
from calculator.swarm.settings import (
    BATCH_OF_2021,
    COMPRESSION_THRESHOLD,
    EPOCHS_OF_2021,
    MODES,
    SPARSE_STATES_EVERY,
    ExchangeSettings,
)
from calculator.units import show_bytes, show_number, show_rate

MOST_KINDS = 20
LARGEST_NUMBER = 1e300
"""Limit for whole numbers in a request, so that each can be converted to a float."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Volunteers of one kind. Every field is a key of a request."""

    count: int
    gpu: str | None = None
    """Name of a GPU (see `calculator.choose.devices.device_named`), whose speed is computed for the model."""
    samples_per_second: float | None = None
    """Speed of one volunteer, as an alternative to `gpu`."""
    up_megabits: float = 50.0
    """Mbit/s from the volunteer to the others."""
    down_megabits: float = 100.0
    latency_milliseconds: float = 50.0
    """Delay of the link, one way."""
    client_mode: bool = False
    present: float = 1.0
    """Share of the time for which a volunteer is present."""
    session_hours: float | None = None
    """Mean time from joining to leaving, in hours; None: the volunteers stay."""
    micro_batch_size: int = 1

    def in_words(self, utilisation: float = UTILISATION) -> str:
        """Number of the volunteers, and the hardware that a forecast assumes of each.

        >>> Kind(count=2, gpu="cpu").in_words()
        '2 × computer without a GPU: 114 GFLOP/s (30 % of its peak), 4.00 GiB usable, 50 Mbit/s up, 100 Mbit/s down'
        >>> Kind(count=3, samples_per_second=0.5, up_megabits=1000).in_words()
        '3 × 0.5 samples/s: 1 Gbit/s up, 100 Mbit/s down'
        """
        up, down = (show_rate(1e6 * megabits, "bit") for megabits in (self.up_megabits, self.down_megabits))
        link = f"{up} up, {down} down"
        if self.samples_per_second is not None:
            return f"{self.count:,} × {show_number(self.samples_per_second)} samples/s: {link}"
        device = device_named(self.gpu)
        speed = show_rate(1e12 * utilisation * device.teraflops, "FLOP")
        return (
            f"{self.count:,} × {device.title}: {speed} ({100 * utilisation:.3g} % of its peak), "
            f"{show_bytes(device.usable_bytes)} usable, {link}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Collaboration(ExchangeSettings):
    """A run and its volunteers. Every field is a key of a request and a flag of `python -m calculator swarm`."""

    volunteers: tuple[Kind, ...]
    model: str | None = None
    """Name of a preset; None if `config` or `parameters` is given."""
    config: Mapping[str, object] | None = None
    """A config.json of a family whose operations are counted (`calculator.choose.flops`), in place of `model`."""
    sequence_length: int | None = None
    """Tokens of a sample; None: the model's own."""
    optimizer: str | None = None
    """Optimizer on the host; newcomers download its state. None: one with two moments in 8 bits."""
    lora_rank: int | None = None
    """Rank of the adapters that are trained and exchanged in place of the model; None: the whole model is trained."""
    lora_targets: str = ALL_LINEAR
    """See `calculator.step.setups.Setup`."""
    lora_freeze_a: bool = False
    """See `calculator.step.setups.Setup`."""
    parameters: int | None = None
    """Number of parameters, in place of a model, if all volunteers give their samples per second."""
    target_batch_size: int = BATCH_OF_2021
    epochs: int = EPOCHS_OF_2021
    utilisation: float = UTILISATION
    """Share of a GPU's published peak."""
    compression_threshold: int = COMPRESSION_THRESHOLD

    def exchange(self) -> ExchangedVectors:
        """The vectors that peers exchange."""
        if self.architecture() is None:
            parameters, small, kept = self.parameters, 0, None
        else:
            tensors = self._trained()
            parameters = sum(tensor.count * tensor.copies for tensor in tensors)
            small = sum(t.count * t.copies for t in tensors if t.count < self.compression_threshold)
            kept = self._optimizer_bytes(tensors)
        named = {field.name for field in fields(ExchangedVectors)} & {field.name for field in fields(self)}
        given = {name: getattr(self, name) for name in named} | {"parameters": parameters}
        return ExchangedVectors(small_parameters=small, optimizer_bytes=kept, **given)

    def _trained(self) -> tuple[ParameterTensor, ...]:
        """Every kind of tensor that is trained."""
        architecture = self.architecture()
        if self.lora_rank is None:
            return tuple(parameter_tensors(architecture, architecture.shared_groups))
        model = {"model": self.model, "config": self.config}
        adapters = {name: getattr(self, name) for name in ("lora_rank", "lora_targets", "lora_freeze_a")}
        setup = Setup(**model, **adapters)
        return adapter_tensors(architecture, lora_of(setup, resolve(setup)))

    def _optimizer_bytes(self, tensors: tuple[ParameterTensor, ...]) -> int | None:
        """Bytes of the optimizer's state; None if no optimizer is given."""
        if self.optimizer is None:
            return None
        kept = OPTIMIZERS[self.optimizer].state_bytes
        return sum(tensor.copies * kept(tensor, 4) for tensor in tensors)

    def architecture(self) -> Architecture | None:
        """The model; None if only the number of parameters is given."""
        if self.config is not None:
            return from_config(self.config)
        return None if self.model is None else preset(self.model)

    def kinds(self) -> list[Volunteers]:
        """The volunteers with their speeds."""
        architecture = self.architecture()
        made = []
        for kind in self.volunteers:
            speed = kind.samples_per_second
            if speed is None:
                if architecture is None:
                    raise BadSetup("Without a model, each kind of volunteers needs samples_per_second.")
                speed = samples_per_second(
                    architecture,
                    device_named(kind.gpu),
                    self.utilisation,
                    kind.micro_batch_size,
                    length=self.sequence_length,
                    frozen=self.lora_rank is not None,
                )
            made.append(
                Volunteers(
                    count=kind.count,
                    samples_per_second=speed,
                    link=Link(
                        up_bytes_per_second=kind.up_megabits * 1e6 / 8,
                        down_bytes_per_second=kind.down_megabits * 1e6 / 8,
                        latency_seconds=kind.latency_milliseconds / 1e3,
                        client_mode=kind.client_mode,
                    ),
                    micro_batch_size=kind.micro_batch_size,
                    present=kind.present,
                    session_seconds=math.inf if kind.session_hours is None else kind.session_hours * 3600,
                )
            )
        return made

    def forecast(self) -> Forecast:
        """The throughput that the volunteers reach together."""
        return forecast(self.kinds(), self.exchange())


def collaboration_from(request: object) -> Collaboration:
    """Reads a collaboration from the object of a request.

    Without `average_state_every`, mode `sparse` takes the least that a recipe accepts.

    Raises:
        BadSetup: If a key is unknown or a value has the wrong type; the message names it.
    """
    given = _read(Collaboration, request, "a collaboration")
    if given.get("mode") == "sparse":
        given.setdefault("average_state_every", SPARSE_STATES_EVERY)
    listed = given.get("volunteers")
    if not isinstance(listed, (list, tuple)) or not 1 <= len(listed) <= MOST_KINDS:
        raise BadSetup(f"volunteers is a list of 1 to {MOST_KINDS} kinds of volunteers.")
    kinds = tuple([Kind(**_read(Kind, kind, "a kind of volunteers")) for kind in listed])
    for kind in kinds:
        if (kind.gpu is None) == (kind.samples_per_second is None):
            raise BadSetup("A kind of volunteers has either a gpu or samples_per_second.")
    made = Collaboration(**given | {"volunteers": kinds})
    if sum(value is not None for value in (made.model, made.config, made.parameters)) != 1:
        raise BadSetup("A collaboration has either a model, a config or a number of parameters.")
    if made.lora_rank is not None and made.parameters is not None:
        raise BadSetup("lora_rank needs a model or a config, beside which adapters stand; omit parameters.")
    if made.gradient_codec not in CODECS:
        raise BadSetup(f"gradient_codec is one of {', '.join(CODECS)}, not {made.gradient_codec!r:.60}.")
    if made.mode not in MODES:
        raise BadSetup(f"mode is one of {', '.join(MODES)}, not {made.mode!r:.60}.")
    if made.mode == "sparse" and made.average_state_every < SPARSE_STATES_EVERY:
        raise BadSetup(
            f"average_state_every is at least {SPARSE_STATES_EVERY} with mode sparse, not {made.average_state_every}: "
            "an average of all parameters sends many times the bytes of an exchange; give more or omit it."
        )
    if made.delay_outer_step and not made.local_updates:
        raise BadSetup(
            f'delay_outer_step needs mode diloco or sparse, not {made.mode}; for gradients, use mode = "delayed".'
        )
    if made.optimizer is not None and made.optimizer not in OPTIMIZERS:
        raise BadSetup(f"optimizer is one of {', '.join(OPTIMIZERS)}, not {made.optimizer!r:.60}.")
    _check_length(made)
    if not 1 <= made.epochs <= 10**9:
        raise BadSetup("epochs is a whole number from 1 to 1,000,000,000.")
    return made


def _check_length(collaboration: Collaboration) -> None:
    architecture, length = collaboration.architecture(), collaboration.sequence_length
    if length is None:
        return
    if architecture is None or (architecture.fixed_length and not architecture.diffuses):
        raise BadSetup("sequence_length is for language models; omit it.")
    longest = most_tokens(architecture)
    if not 1 <= length <= longest:
        raise BadSetup(f"sequence_length is a whole number from 1 to {longest}, not {length}.")


def answer(collaboration: Collaboration) -> dict:
    """Computes the forecast as plain numbers, for JSON."""
    made = collaboration.forecast()
    exchange = collaboration.exchange()
    return {
        **{name: value for name, value in asdict(made).items() if name not in ("shares", "limits")},
        "parameters": exchange.parameters,
        "gradient_bytes": exchange.gradient_bytes,
        "state_bytes": exchange.state_bytes,
        "newcomer_bytes": exchange.newcomer_bytes,
        "samples_per_second": made.samples_per_second,
        "days": made.days(collaboration.epochs),
        "works": made.works,
        "shares": asdict(made.shares),
        "limits": [asdict(limit) for limit in made.limits],
    }


def _read(kind: type, request: object, what: str) -> dict[str, Any]:
    """Returns a request's entries after a check: the dataclass `kind` must have their keys and types."""
    if not isinstance(request, Mapping):
        raise BadSetup(f"A description of {what} is an object.")
    known = {field.name: field for field in fields(kind)}
    for name, value in request.items():
        if name not in known:
            raise BadSetup(f"{name!r:.60} is not a key of {what}; the keys are: {', '.join(known)}.")
        # Annotations are texts in this module, such as "int | None".
        wanted = str(known[name].type)
        if name in ("volunteers", "config") or (value is None and "None" in wanted):
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER
        sound = {
            "int": number and value == int(value),
            "float": number,
            "bool": isinstance(value, bool),
            "str": isinstance(value, str),
        }[wanted.split(" ")[0]]
        if not sound:
            words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
            raise BadSetup(f"{name} of {what} is {words[wanted.split(' ')[0]]}, not {value!r:.60}.")
    given = {name: int(value) if str(known[name].type).startswith("int") and value is not None else value
             for name, value in request.items()}  # fmt: skip
    missing = [name for name in ("volunteers", "count") if name in known and name not in given]
    if missing:
        raise BadSetup(f"{missing[0]} of {what} is missing.")
    return given
