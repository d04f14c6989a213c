"""One pass over a set that all peers of a run share: each sample is taken by one of them.

The order is common: the permutation of the recipe's seed (`training.data.order`), pass after pass, whose samples are
counted on through all passes. Each peer announces which samples are done, as far as it knows, and which it has claimed;
it claims the lowest that are free. So a pass ends with what others have left behind, and the next one begins behind it.

1. A peer looks what others announce. It adds what they say is done to what it knows, and says so itself: what a peer
   has done stays known when it has left.
2. It wishes for some of the lowest free pieces, chosen at random so that others seldom wish for the same, and announces
   that.
3. After a moment it looks again. Of two peers that wish for the same sample, the one with the lower id keeps it. The
   others drop it and choose another.
4. It trains on the samples that it keeps, and announces how far it has come. If it disappears, its claim ends soon, and
   somebody goes on where it stopped.

A piece is a window of the order, and towards the end of a pass a part of one that takes its peer a small share of the
time left: otherwise the others would have nothing to do while a slow peer trains on its last window ("guided
self-scheduling", Polychronopoulos and Kuck 1987). Who finds nothing free in a pass takes what a peer holds of which
nothing was heard lately, and then begins the next pass, with small pieces as long as something is left of this one.

A peer that cannot reach the others goes on from a random place of its own. Nobody checks what a peer says. One that
lies about what is done makes the others leave samples out, in one look at most those of `HORIZON_PASSES`. If it goes
on, they are no better off than with orders of their own. It cannot make them train on other samples. What a peer has
claimed counts for `MOST_CLAIMS` pieces, and for `STALE_SECONDS` if it does not come further.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from training.data.order import Order, Place, Window
from training.data.ranges import Ranges
from training.errors import reason_of
from training.storage.whole import write_whole

PIECES = 4096
"""Windows of a pass, if the set has so many row groups: what peers hold at a pass's end is a small share of it."""
CLAIM_SECONDS = 45.0
"""A claim ends so long after its peer has announced it last."""
REPORT_SECONDS = 10.0
"""How often a peer announces how far it has come. If it is killed, what it has done since then is done again."""
LATE_SECONDS = 15.0
"""A peer that has announced nothing for so long may be gone; at the end of a pass others take what it holds."""
SETTLE_SECONDS = 1.5
"""Between a wish and the look whether somebody else has the same; every node answers within this time."""
AHEAD_SECONDS = 15.0
"""A peer claims what it needs for so long, and at least `LEAST_AHEAD` pieces: row groups are fetched beforehand."""
LEAST_AHEAD = 2
MOST_CLAIMS = 48
"""Pieces that a peer may claim, those included that it has computed and not yet averaged with the others. If a peer
announces more, the rest is ignored."""
CHOICES_PER_PEER = 2
"""A peer chooses among so many free pieces for each peer."""
PARTS_LEFT = 8
"""A piece takes its peer at most one of so many parts of the time that is left of the pass."""
LEAST_SECONDS, FIRST_SAMPLES = 0.5, 8
"""A piece takes its peer at least so long: each costs a look at what others announce. Those of a newcomer, whose speed
is not known, have at least so many samples."""
LARGE_SAMPLES = 100_000
"""From so many samples on, a pass takes so long that its end is shared with care."""
SLOWER = 10
"""How many times slower than the mean of all peers a newcomer may be."""
PIECES_IN_STREAM = 2
"""One that the stream gives, and one that it fetches meanwhile."""
MOST_RANGES = 400
"""Ranges of done samples that a peer announces, the lowest; five bytes each, or less."""
STALE_SECONDS = 1800.0
"""A claim whose peer has not come further for so long does not count."""
HORIZON_PASSES, HORIZON_SAMPLES = 2, 1 << 20
"""How much further than a third of the others, and than this peer, somebody's word of what is done counts: so many
passes, or so many samples if these are more."""
FIRST_SECONDS, PATIENCE_SECONDS = 15.0, 5.0
"""Longest wait for the first piece, and for further ones; then a peer takes one without asking."""

_ENDLESS = 1 << 62
Piece = tuple[int, int]
"""The samples from the first number to the second, counted through all passes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """What a peer announces."""

    peer: str
    """Its id."""
    done: Ranges
    """As far as it knows, by whomever."""
    claims: tuple[Piece, ...]
    """That it trains on, or will."""
    wishes: tuple[Piece, ...]
    """That it will claim if nobody else does."""
    claimed_until: float
    """When its claims and wishes end, in seconds since 1970."""


class Board(Protocol):
    """Where peers announce their words."""

    peer: str
    """This peer's id."""

    def look(self) -> list[Word]:
        """The words of the others; any exception means that they cannot be had now."""

    def post(self, word: Word) -> None:
        """Replaces this peer's word; raises as `look`."""


class Ledger:
    """What a peer knows of the pass: what is done, what others hold, what it holds itself.

    Args:
        order: Common to all.
        seed: Of the order.
        peer: This peer's id.
        chance: Draws pieces.
    """

    def __init__(self, order: Order, *, seed: int, peer: str, chance: random.Random):
        self.order, self.seed, self.peer, self.chance = order, seed, peer, chance
        self.done = Ranges()
        self.given: deque[Piece] = deque()
        """Pieces that the stream has, in order, each from the first sample that is not done."""
        self.claims: deque[Piece] = deque()
        """Those that it will get."""
        self.wishes: list[Piece] = []
        self.reached = 0
        """Samples that this peer has done."""
        self.computed = 0
        """Samples that it has computed, those included that are not yet averaged with the others."""
        self._handed: deque[int] = deque()
        self._done_before: int | None = None
        self._others: dict[str, Word] = {}
        self._late: set[str] = set()
        self._changed: dict[str, tuple[tuple[Piece, ...], float]] = {}

    @property
    def held(self) -> int:
        """Pieces that this peer holds or wishes for."""
        return len(self.given) + len(self.claims) + len(self.wishes)

    @property
    def peers(self) -> int:
        """That hold pieces, this one included."""
        return 1 + len(self._others)

    def hear(self, words: Iterable[Word], now: float) -> None:
        """Takes in what others announce. A peer whose word is missing holds what it has claimed for as long as it
        said."""
        words = [word for word in words if word.peer != self.peer]
        floor = max(self.done.floor, _agreed([word.done.floor for word in words]))
        horizon = floor + max(HORIZON_PASSES * self.order.samples, HORIZON_SAMPLES)
        self.done.update(*(word.done.below(horizon) for word in words))
        self._done_before = self.done.total - self.reached if self._done_before is None else self._done_before
        known = self._others | {word.peer: word for word in words}
        self._others = {name: word for name, word in known.items() if self._is_held(word, now)}
        self._late = {
            name for name, word in self._others.items() if word.claimed_until < now + CLAIM_SECONDS - LATE_SECONDS
        }
        self._changed = {name: self._changed[name] for name in known}
        words = [word for word in self._others.values() if word.peer not in self._late]
        held = [word for word in words if word.peer < self.peer]
        # Two peers may both have claimed a piece if one's look was late; the lower id keeps it then as well.
        self.claims = deque(_without(self.claims, self.done, self._pieces(held, "claims")))
        all_claimed = self._pieces(words, "claims")
        self.wishes = _without(self.wishes, self.done, all_claimed, self._pieces(held, "wishes"))

    def wish(self, samples: int, *, least: int, start: int | None = None) -> None:
        """Wishes for free pieces of so many samples together, the lowest of all, or the lowest behind `start`; for one
        at least, and for no more than a peer may announce. A piece has `least` samples, or fewer if a window ends."""
        taken = self._taken()
        if taken.floor // self.order.samples > self.done.floor // self.order.samples:  # nothing is free in this pass
            taken = self._taken(but=self._late)
        while samples > 0:
            choices = self._free(taken, taken.floor if start is None else start, least)
            piece = self.chance.choice(choices)
            self.wishes.append(piece)
            taken.add(*piece)
            samples -= piece[1] - piece[0]
            if self.held >= MOST_CLAIMS:
                return

    @property
    def is_careful(self) -> bool:
        """Whether the end of a pass is worth some care: looks would take longer than the pass of a small set."""
        return self.order.samples >= LARGE_SAMPLES

    def own_part(self) -> float:
        """Samples that this peer will compute of those that are free in the pass, if all keep their speed."""
        taken = self._taken()
        return self._rest(taken, taken.floor) * self._share

    def keep(self) -> None:
        """Claims what it wished for; what is left of an earlier pass comes first."""
        self.claims = deque(sorted((*self.claims, *self.wishes), key=lambda piece: piece[0] // self.order.samples))
        self.wishes = []

    def give(self) -> Piece:
        """The next piece for the stream; there must be one."""
        piece = self.claims.popleft()
        # The stream fetches one piece while it gives another, so those before have been given.
        self._handed.append(piece[1] - piece[0])
        if len(self._handed) > PIECES_IN_STREAM:
            self.computed += self._handed.popleft()
        self.given.append(piece)
        return piece

    def reach(self, sample: int) -> None:
        """Notes that all given samples before this one are done, in the order in which they were given."""
        if not any(begin <= sample <= end for begin, end in self.given):
            return
        before = self.done.total
        while not (piece := self.given.popleft())[0] <= sample <= piece[1]:
            self.done.add(*piece)
        begin, end = piece
        self.done.add(begin, sample)
        if sample < end:
            self.given.appendleft((sample, end))
        self.reached += self.done.total - before

    def word(self, claimed_until: float) -> Word:
        """What this peer announces."""
        held, wishes = (*self.given, *self.claims), tuple(self.wishes)
        return Word(peer=self.peer, done=self.done.copy(), claims=held, wishes=wishes, claimed_until=claimed_until)

    def _is_held(self, word: Word, now: float) -> bool:
        """Whether a peer's claims count: they have not ended, and it has come further lately."""
        claims, since = self._changed.get(word.peer, ((), now))
        if claims != word.claims or not claims:
            since = now
        self._changed[word.peer] = word.claims, since
        return now < word.claimed_until <= now + 2 * CLAIM_SECONDS and now - since < STALE_SECONDS

    def _pieces(self, words: Iterable[Word], what: Literal["claims", "wishes"]) -> Ranges:
        """What peers have claimed or wish for, as much of it as each may."""
        most = self.order.largest_window
        return Ranges(
            (begin, min(end, begin + most)) for word in words for begin, end in getattr(word, what)[:MOST_CLAIMS]
        )

    @property
    def _share(self) -> float:
        """This peer's share of all samples that were done since its first look. That of a newcomer is not known: it may
        be much slower than the others."""
        if self._done_before is None or not self.computed:
            return 1 / (SLOWER * self.peers)
        by_others = self.done.total - self._done_before - self.reached
        return self.computed / max(self.computed + by_others, 1)

    def _taken(self, but: Collection[str] = ()) -> Ranges:
        """What is done, or claimed or wished for by a peer that is none of some."""
        taken, words = self.done.copy(), [word for name, word in self._others.items() if name not in but]
        for what in ("claims", "wishes"):
            taken.update(self._pieces(words, what))
        taken.update((*self.given, *self.claims, *self.wishes))
        return taken

    def _rest(self, taken: Ranges, start: int) -> int:
        """Free samples from the first behind `start` to the end of its pass."""
        first, samples = next(taken.gaps(start, _ENDLESS))[0], self.order.samples
        return sum(end - begin for begin, end in taken.gaps(first, (first // samples + 1) * samples))

    def _free(self, taken: Ranges, start: int, least: int) -> list[Piece]:
        """The lowest free pieces behind a sample, as many as a peer chooses among."""
        samples, found = self.order.samples, []
        first = next(taken.gaps(start, _ENDLESS))[0]
        # As long as something is left of the pass before, this peer may be needed for it soon.
        is_early = self.is_careful and first // samples > self.done.floor // samples
        most = least if is_early else max(least, round(self._rest(taken, start) * self._share / PARTS_LEFT))
        for begin, end in taken.gaps(first, (first // samples + 1) * samples):
            while begin < end:
                stop = min(end, begin + most, self.order.window_around(self.seed, begin)[1])
                found.append((begin, stop))
                if len(found) >= CHOICES_PER_PEER * self.peers:
                    return found
                begin = stop
        return found


def _agreed(floors: Sequence[int]) -> int:
    """The furthest that more of the others say than may lie: fewer than a third of all; of two, one may lie."""
    liars = 0 if len(floors) < 2 else max(1, len(floors) // 3)
    return sorted(floors, reverse=True)[liars] if floors else 0


def _without(pieces: Iterable[Piece], *taken: Ranges) -> list[Piece]:
    for one in taken:
        pieces = [part for begin, end in pieces for part in one.gaps(begin, end)]
    return list(pieces)


class SharedPass:
    """Gives a peer's stream its windows of the shared pass. `start` starts the thread that looks and announces.

    Args:
        ledger: Fresh.
        board: Of the run.
        file: Keeps what the ledger knows, for a restart of this peer; None: nothing is kept.
        tell: Called with a sentence when the others cannot be asked, when they can be again, or if the file cannot be
            written.
        now: The time that all peers go by, in seconds since 1970.
    """

    def __init__(
        self,
        ledger: Ledger,
        board: Board,
        *,
        file: Path | None,
        tell: Callable[[str], None] = lambda sentence: None,
        now: Callable[[], float] = time.time,
    ):
        self.order = ledger.order
        self._ledger, self._board, self._file, self._tell, self._now = ledger, board, file, tell, now
        self._lock, self._came, self._hurry = threading.Lock(), threading.Condition(), threading.Event()
        self._closed, self._is_first = threading.Event(), True
        self._alone_from: int | None = None
        self._cannot_write = False
        self._began = now()
        if file is not None:
            self._read()

    def start(self) -> SharedPass:
        """Starts the thread."""
        threading.Thread(target=self._work, daemon=True, name="shared-pass").start()
        return self

    def close(self) -> None:
        """Ends the thread, and lets others have what was claimed."""
        self._closed.set()
        self._hurry.set()
        with self._lock:
            self._keep()
            word = self._ledger.word(self._now())
        with suppress(Exception):  # the network may be gone already; the claims end by themselves
            self._board.post(word)

    @property
    def share_done(self) -> float:
        """Of the pass in which the lowest sample is that is not done, as far as this peer knows."""
        samples, done = self.order.samples, self._ledger.done.copy()
        begin = done.floor // samples * samples
        return 1 - sum(end - start for start, end in done.gaps(begin, begin + samples)) / samples

    # -- for the stream and the trainer --------------------------------------------------------------------------------

    def windows(self) -> Iterator[Window]:
        """The windows of the pieces that this peer gets, for ever."""
        while True:
            yield from self.order.between(self._ledger.seed, *self.piece())

    def piece(self, patience: float | None = None) -> Piece:
        """The next piece. It waits for one that is confirmed, and then takes one that, as far as it knows, is free."""
        if patience is None:
            patience, self._is_first = FIRST_SECONDS if self._is_first else PATIENCE_SECONDS, False
        self._hurry.set()
        with self._came:
            self._came.wait_for(lambda: self._ledger.claims or self._closed.is_set(), patience)
        with self._lock:
            if not self._ledger.claims:
                self._ledger.wish(1, least=self._least, start=self._random_sample())
                self._ledger.keep()
            return self._ledger.give()

    def reached(self, place: Place) -> None:
        """All samples before this place are done."""
        with self._lock:
            self._ledger.reach(self.order.number_of(place))
            self._keep()

    # -- what others learn, and what is learnt of them -----------------------------------------------------------------

    def step(self) -> float:
        """Looks and announces; in how many seconds to do so again, unless a piece is missing before."""
        words, now = self._look(), self._now()
        with self._lock:
            if words is not None:
                self._ledger.hear(words, now)
            self._ledger.keep()  # what is left of the wishes of the last step
            if (missing := self._missing()) > 0:
                self._ledger.wish(missing, least=self._least, start=self._alone_from)
                if words is None:
                    self._ledger.keep()
            is_waiting = bool(self._ledger.wishes)
            word = self._ledger.word(now + CLAIM_SECONDS)
            self._keep()
        with self._came:
            self._came.notify_all()
        with suppress(Exception):  # posted again soon
            self._board.post(word)
        return SETTLE_SECONDS if is_waiting else REPORT_SECONDS

    def _look(self) -> list[Word] | None:
        """What others announce; None if they cannot be asked."""
        try:
            words = self._board.look()
        except Exception as error:  # of many kinds: no answer in time, a node that ends
            if self._alone_from is None:
                self._alone_from = self._random_sample()
                self._tell(
                    f"The other peers cannot be asked which samples are taken ({reason_of(error)}). This peer goes on "
                    "with samples from a random place, and asks again."
                )
            return None
        if self._alone_from is not None:
            self._alone_from = None
            self._tell("The other peers answer again: this peer shares the pass over the samples with them.")
        return words

    @property
    def _rate(self) -> float:
        """Samples that this peer computes in a second."""
        return self._ledger.computed / max(self._now() - self._began, AHEAD_SECONDS)

    @property
    def _least(self) -> int:
        """Samples of a piece, at least."""
        knows = self._ledger.computed and self._ledger.is_careful
        return max(1, round(self._rate * LEAST_SECONDS)) if knows else FIRST_SAMPLES

    def _missing(self) -> int:
        """Samples that should be claimed beyond those that are."""
        ledger = self._ledger
        if ledger.held >= MOST_CLAIMS:
            return 0
        claimed = sum(end - begin for begin, end in (*ledger.claims, *ledger.wishes))
        ahead = self._rate * AHEAD_SECONDS
        if ledger.is_careful:
            # What a peer holds at the end of a pass, the others cannot do for it; but to claim takes some time.
            ahead = min(ahead, max(ledger.own_part() / PARTS_LEFT, self._rate * SETTLE_SECONDS))
        ahead = round(ahead)
        if len(ledger.claims) + len(ledger.wishes) < LEAST_AHEAD:
            return max(1, ahead - claimed)
        return ahead - claimed

    def _random_sample(self) -> int:
        """Of the pass in which the lowest sample is that is not done."""
        samples = self.order.samples
        return self._ledger.done.floor // samples * samples + self._ledger.chance.randrange(samples)

    def _work(self) -> None:
        while not self._closed.is_set():
            pause = self.step()
            if pause == SETTLE_SECONDS:  # however much a piece is missing, the others have this time to object
                self._closed.wait(pause)
            else:
                self._hurry.wait(pause)
            self._hurry.clear()

    # -- on disk -------------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        if self._file is None:
            return
        ledger = self._ledger
        held = [*ledger.given, *ledger.claims]
        kept = {"order": self.order.digest, "seed": ledger.seed, "done": list(ledger.done), "held": held}
        try:
            write_whole(self._file, json.dumps(kept) + "\n")
        except OSError as error:
            if not self._cannot_write:
                self._tell(
                    f"What is done of the pass cannot be kept in {self._file}: {reason_of(error)}. After a restart, "
                    "this peer asks the others for it."
                )
                self._cannot_write = True

    def _read(self) -> None:
        with suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            if (kept["order"], kept["seed"]) == (self.order.digest, self._ledger.seed):
                done = Ranges((int(begin), int(end)) for begin, end in kept["done"])
                held = [(int(begin), int(end)) for begin, end in kept["held"]]
                # Others may have taken them since, so they have to be confirmed like wishes.
                self._ledger.done, self._ledger.wishes = done, held[:MOST_CLAIMS]
