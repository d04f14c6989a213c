"""What a volunteer wants to know of their peer, in words, put together from its events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import fmean

from calculator.units import show_number, show_rate, show_time
from training.recipe import RunConfig
from training.volunteer.manners.manners import Manners

TREND_EPOCHS = 10
"""The trend compares the mean loss of this many epochs with that of as many before; of fewer at the beginning."""
LEVEL_SHARE = 0.005
"""A loss that changes by a smaller share counts as level."""
SHOWN_SECONDS = 600.0
"""Time for which a problem is shown."""
KEPT_NEWS = 20
LOADING = "loading PyTorch and hivemind"
LEAVING = "leaving: the last average ends, the weights are kept (at most ten seconds)"
FINISHING = "computing until this epoch ends; then this peer leaves"


class View:
    """Follows the events of a peer, and tells what they mean for its volunteer.

    Give `note` to the event log as its listener.

    Args:
        run: The recipe.
        site: Address of the run's site, if that is known.
        epochs: Epoch after which the peer leaves; None: the schedule's last.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        site: str | None = None,
        epochs: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._clock, self._begun = clock, clock()
        self.run_id, self.title, self.site = run.run_id, run.title, site
        self.total_epochs = min(epochs or run.schedule.total_epochs, run.schedule.total_epochs)
        self._stage, self._rest = LOADING, ""
        self.greeting = f"Joining {run.run_id} ({run.title}). PyTorch and hivemind take some seconds to load."
        """The first line."""
        self.news: deque[str] = deque([self.greeting], maxlen=KEPT_NEWS)
        """Sentences that a reader of plain lines has not seen yet."""
        self.asked_to_leave: Callable[[], bool] = lambda: False
        self.manners = Manners()
        """What the volunteer has asked for."""
        self.has_keys = False
        """True if the terminal's keys command the peer."""
        self.problem, self._problem_at = "", 0.0
        self.notice = ""
        """What the peer has told since the last epoch ended."""
        self.epoch: int | None = None
        """Updates that the run has done; None before this peer has joined."""
        self.epochs, self.samples = 0, 0
        """Epochs and samples of this peer since it joined."""
        self._credit_before, self._losses = 0, deque(maxlen=2 * TREND_EPOCHS)
        self._last: dict = {}
        self._last_at = 0.0
        self._reach, self._link = "", "not measured yet"

    def imported(self) -> None:
        """Notes that the libraries are loaded."""
        self._stage = "looking for the run"

    def note(self, event: dict) -> None:
        """Takes an event as the log has it; unknown events change nothing."""
        if (take := getattr(self, f"_on_{event['event']}", None)) is not None:
            take(event)

    # -- events --------------------------------------------------------------------------------------------------------

    def _on_ready(self, event: dict) -> None:
        self._stage = "in touch with the run; choosing settings for this machine"

    def _on_chosen(self, event: dict) -> None:
        self._stage = "getting the run's weights"

    def _on_joined(self, event: dict) -> None:
        self.epoch, self._credit_before = event["epoch"], event["credit_samples"] - self.samples
        self._last_at = self._clock()
        self._stage = "training"
        self._reach, self._link = event["link"]["reach"], link_words(event["link"])
        self.news.append(
            f"{event['name']} takes part in {self.run_id} from epoch {self.epoch} on, with {event['state']}."
        )

    def _on_epoch(self, event: dict) -> None:
        self.epoch, self._last, self._last_at = event["epoch"], event, self._clock()
        self.notice = ""
        self.epochs += 1
        self.samples += 0 if event.get("missed") else event["samples"]
        self._losses.append(event["loss"])
        self._stage = f"training with {_counted(event['senders'] - 1, 'other')}" if event["senders"] > 1 else "training"

    def _on_paused(self, event: dict) -> None:
        self._rest = f"paused: {event['reason']}"
        self.news.append(f"This peer computes nothing now: {event['reason']}.")

    def _on_resumed(self, event: dict) -> None:
        self._rest = ""
        self.news.append("This peer computes again.")

    def _on_reach(self, event: dict) -> None:
        self._reach = event["reach"]

    def _on_notice(self, event: dict) -> None:
        self._stage = self.notice = event["text"]
        self.news.append(event["text"])

    def _on_warning(self, event: dict) -> None:
        self.problem, self._problem_at = event["text"], self._clock()
        self.news.append(event["text"])

    @property
    def stage(self) -> str:
        """What the peer does now."""
        if self.asked_to_leave():
            return LEAVING
        return self._rest or (FINISHING if self.manners.is_finishing else self._stage)

    # -- words ---------------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds since the command began."""
        return self._clock() - self._begun

    def progress(self) -> str:
        """Epoch of how many."""
        return "not in the run yet" if self.epoch is None else f"{self.epoch:,} of {self.total_epochs:,}"

    def loss(self) -> str:
        """The last loss, and whether it falls."""
        return f"{self._losses[-1]:.3f}{self._trend()}" if self._losses else "known when the next epoch ends"

    def _trend(self) -> str:
        losses = list(self._losses)
        span = min(len(losses) // 2, TREND_EPOCHS)
        if span < 2:
            return ""
        before, now = fmean(losses[-2 * span : -span]), fmean(losses[-span:])
        change = now - before
        word = "level" if abs(change) < LEVEL_SHARE * abs(before) else "falling" if change < 0 else "rising"
        return f", {word} ({change:+.3f} in {span} epochs)"

    def own_part(self) -> str:
        """This peer's speed, and its share of the last update."""
        if not self._last:
            return "known when the next epoch ends"
        seconds = self._last["step_seconds"]
        rate = self._last["samples"] / seconds if seconds else 0.0
        share = self._last["own_share"]
        return f"{show_number(rate)} samples/s" + ("" if share is None else f", {share:.0%} of the last update")

    def credit(self) -> str:
        """Samples since the start, and in all."""
        if self.epoch is None:
            return "counted once you take part"
        in_all = self._credit_before + self.samples
        return f"{self.samples:,} samples since you joined, {in_all:,} in all"

    def link(self) -> str:
        """How others connect to this peer (`direct`, `relay` or `client`), and the network link as it was measured."""
        return f"{self._reach}; {self._link}" if self._reach else self._link

    def next_exchange(self) -> str:
        """When the next average is due, by the length of the last epoch."""
        if self.epoch is None:
            return "after the first epoch here"
        if self._rest:
            return "when this peer computes again"
        if not self._last:
            return "as soon as the volunteers have computed an epoch together"
        left = self._last["step_seconds"] - (self._clock() - self._last_at)
        return f"in about {show_time(round(left))}" if left >= 1 else "due now"

    def recent_problem(self) -> tuple[str, str] | None:
        """The last problem and how long ago it was; None if there was none lately."""
        ago = self._clock() - self._problem_at
        if not self.problem or ago > SHOWN_SECONDS:
            return None
        return self.problem, "now" if ago < 10 else f"{show_time(ago)} ago"

    def summary(self) -> str:
        """The state in one line."""
        stage = self.stage.removesuffix(".")  # a notice is a sentence
        if not self._last:
            return f"{stage[:1].upper()}{stage[1:]}; {show_time(round(self.seconds))} since the start."
        return f"Epoch {self.progress()}, loss {self.loss()}; you: {self.own_part()}; credit: {self.credit()}; {stage}."

    def farewell(self) -> str:
        """The sum, when the peer has left."""
        took = show_time(round(self.seconds))
        if not self.epochs:
            return f"You left after {took}, before an epoch ended. Thank you for coming!"
        return (
            f"You took part for {took}: {_counted(self.epochs, 'epoch')}, {self.samples:,} samples. "
            f"Your credit in {self.run_id} is now {self._credit_before + self.samples:,} samples. Thank you!"
        )


def link_words(link: dict) -> str:
    """A measured link in a few words.

    >>> link_words({"answer_seconds": [0.012], "download_bytes": 50_000_000, "download_seconds": 20.0,
    ...     "told_mbits": 2.0})
    'a peer answers in 12 ms, 20 Mbit/s down, at most 2 Mbit/s up'
    """
    answers = link["answer_seconds"]
    words = [f"a peer answers in {show_time(min(answers))}"] if answers else []
    if link["download_seconds"]:
        words.append(f"{show_rate(8 * link['download_bytes'] / link['download_seconds'], 'bit')} down")
    words.append("up not measured" if link["told_mbits"] is None else f"at most {link['told_mbits']:g} Mbit/s up")
    return ", ".join(words)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
