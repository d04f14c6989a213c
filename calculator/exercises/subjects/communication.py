"""Exercises on communication: bytes of a gradient, what an all-reduce sends, and how long a home link needs."""

from __future__ import annotations

from random import Random

from calculator.exercises.exercise import Exercise, Number, Program, Question, Subject, choice
from calculator.exercises.quantities import shown
from calculator.figures.rules.all_reduce import ring_steps, sent_share
from calculator.figures.thousandfold import exchange_seconds, gradient_bytes, steps_of
from calculator.models.architectures import PRESETS
from calculator.parts.parameters import count_parameters
from calculator.swarm.exchange import BLOCK_SIZE, Link, all_reduce_seconds, encoded_bytes, even_parts
from calculator.units import show_count, show_time

MODELS = ("bert-large", "gpt2-large", "gpt2-xl", "t5-3b", "gpt-j-6b")
LINKS = ((10, 50), (20, 100), (40, 250), (50, 100), (10, 100))
"""Upload and download of home connections, in Mbit/s."""


def _gradient(random: Random) -> Question:
    model, bits = random.choice(MODELS), random.choice((16, 32))
    count, size = count_parameters(PRESETS[model]), gradient_bytes(model, shared=False, bits=bits)
    return Question(
        text="A volunteer has computed the gradient of a whole model. How large is it when it is sent as it is?",
        given=(("Model", model), ("Parameters", show_count(count)), ("Bits of a value", str(bits))),
        answer=Number(
            value=size,
            unit="MB",
            mistakes=(
                (count, "That is one byte a parameter; look at the bits of a value again."),
                (count * bits, "Those are bits; 8 of them are a byte."),
            ),
        ),
        hints=("A gradient has one value for each parameter.", "8 bits are a byte, and 1 MB is 10**6 bytes."),
        solution=(
            f"{show_count(count)} values × {bits} bits ÷ 8 = {show_count(size)} bytes",
            f"That is {shown(size, 'MB')}.",
        ),
        remember="A gradient is as large as the model, and every update needs one from everybody.",
    )


def _all_reduce(random: Random) -> Question:
    peers, size = random.choice((3, 4, 5, 6, 8)), random.choice((100, 200, 250, 400, 500)) * 10**6
    sent = size * sent_share(peers)
    return Question(
        text="Peers sum their gradients by an all-reduce: each collects one part from all others and returns the sum. "
        "How much does each peer send?",
        given=(("Peers", str(peers)), ("Gradient", shown(size, "MB"))),
        answer=Number(
            value=sent,
            unit="MB",
            mistakes=(
                (sent / 2, "That is only one of the two halves: parts go out to be summed, and sums come back."),
                (2 * size, "Nearly: a peer sends nothing to itself, so it is a little less than twice the gradient."),
                (size, "That is the gradient once. Count what goes out to be summed, and the sums that come back."),
                ((peers - 1) * size, "That is what a peer sends if each gets the whole gradient from each other."),
                (2 * (peers - 1) * size, "That is a server's traffic, which sends to and hears from all others."),
            ),
        ),
        hints=(
            f"Each peer is responsible for 1/{peers} of the gradient and needs the other parts summed elsewhere.",
            "It sends the others' parts to them, and later its own summed part to each of them.",
        ),
        solution=(
            f"Out to be summed: {peers - 1} parts of 1/{peers}, which is {shown(sent / 2, 'MB')}.",
            f"Back as sums: its own part to {peers - 1} peers, again {shown(sent / 2, 'MB')}.",
            f"Together 2 × ({peers} − 1) / {peers} × {shown(size, 'MB')} = {shown(sent, 'MB')}.",
        ),
        remember="Each peer sends less than twice the gradient, however many peers there are.",
    )


def _steps(random: Random) -> Question:
    peers = random.randint(5, 40)
    steps = len(ring_steps(peers))
    return Question(
        text="In a ring, each peer sends one part to the next peer in each step: first the partial sums travel around "
        "and grow, then the complete sums do. After how many steps do all peers have all sums?",
        given=(("Peers in the ring", str(peers)),),
        answer=Number(
            value=steps,
            unit="steps",
            tolerance=0,
            mistakes=(
                (peers - 1, "After these steps each sum is complete, but only one peer has it. They travel on."),
                (peers, "A part needs no step to the peer that already has it; and it travels around twice."),
                (2 * peers, "Nearly: each of the two rounds ends one step before the part is where it began."),
            ),
        ),
        hints=("How many steps does a partial sum need to visit all peers?", "Then it does the same as a whole sum."),
        solution=(
            f"A partial sum visits {peers} peers in {peers - 1} steps.",
            f"The whole sum visits all others in {peers - 1} more.",
            f"2 × ({peers} − 1) = {steps}.",
        ),
        remember="Each step waits for the network's delay, so long rings are slow; hivemind sends directly, in 2 "
        "steps.",
    )


def _link(random: Random) -> Question:
    up, down = random.choice(LINKS)
    peers, size = random.choice((4, 5, 8, 10)), random.choice((120, 250, 500, 800)) * 10**6
    seconds = exchange_seconds(size, peers, min(up, down))
    return Question(
        text="How long does one all-reduce take on this home connection, if it is used fully and for nothing else?",
        given=(
            ("Gradient, encoded", shown(size, "MB")),
            ("Peers", str(peers)),
            ("Upload", f"{up} Mbit/s"),
            ("Download", f"{down} Mbit/s"),
        ),
        answer=Number(
            value=seconds,
            unit="s",
            mistakes=(
                (seconds / 8, "You have divided bytes by bits: a byte has 8 bits."),
                (seconds / 2, "Parts go out and sums come back: each direction carries both."),
                (exchange_seconds(size, peers, max(up, down)), "As much is sent as received: the slower one decides."),
                (
                    8 * size / min(up, down) / 1e6,
                    "That is the gradient once; an all-reduce sends nearly twice as much.",
                ),
            ),
        ),
        hints=(
            f"Each peer sends, and receives, 2 × ({peers} − 1) / {peers} of the gradient.",
            "Both directions work at the same time, and the slower one ends last.",
            "Mbit/s counts bits; the gradient is in bytes.",
        ),
        solution=(
            f"Sent: {shown(size, 'MB')} × {sent_share(peers):g} = {shown(size * sent_share(peers), 'MB')}.",
            f"In bits: × 8 = {show_count(round(8 * size * sent_share(peers) / 1e6))} Mbit.",
            f"÷ {min(up, down)} Mbit/s = {shown(seconds, 's')}, which is {show_time(seconds)}.",
        ),
        remember="At home, the upload decides.",
    )


def _slowest(random: Random) -> Question:
    names = ("Ada", "Ben", "Cleo", "Dan")
    speeds = random.sample((8, 16, 25, 40, 60, 90), 4)
    slow = speeds.index(min(speeds))
    ups = [speed if number % 2 == slow % 2 else 5 * speed for number, speed in enumerate(speeds)]
    downs = [5 * speed if number % 2 == slow % 2 else speed for number, speed in enumerate(speeds)]
    seconds = [_all_with(up, down) for up, down in zip(ups, downs, strict=True)]
    last = seconds.index(max(seconds))
    said = [f"{ups[n]} Mbit/s up, {downs[n]} Mbit/s down" for n in range(4)]
    return Question(
        text="Four volunteers average with equal parts, and the exchange lasts as long as its slowest peer. Whose "
        "connection decides?",
        given=tuple(zip(names, said, strict=True)),
        answer=choice(
            random,
            (
                names[last],
                f"{names[last]}'s slower direction has {min(ups[last], downs[last])} Mbit/s, the least of all.",
            ),
            [
                (names[n], f"{names[n]}'s slower direction has {min(ups[n], downs[n])} Mbit/s; somebody has less.")
                for n in range(4)
                if n != last
            ],
        ),
        hints=("In an all-reduce each peer sends as much as it receives.", "Compare the slower direction of each."),
        solution=(
            "The slower directions have "
            + ", ".join(f"{min(u, d)}" for u, d in zip(ups, downs, strict=True))
            + " Mbit/s.",
            f"The least is {names[last]}'s.",
        ),
        remember="A peer counts with the slower of its two directions.",
    )


def _all_with(up: float, down: float) -> float:
    """Seconds of an all-reduce of 100 MB among four peers that all have this link, in Mbit/s."""
    links = [Link(up_bytes_per_second=up * 125e3, down_bytes_per_second=down * 125e3)] * 4
    return all_reduce_seconds(links, 10**8, even_parts(links), 1.0)


def _batch(random: Random) -> Question:
    peers, megabits, speed = random.choice((8, 16)), random.choice((20, 50, 100)), random.choice((1, 2, 5))
    batch = random.choice((512, 1024, 2048))
    values = {
        "peers": peers, "up": megabits, "down": megabits, "model": "dalle-2021", "sharing": "groups", "bits": "8",
        "speed": speed, "batch": batch, "overlap": "off",
    }  # fmt: skip
    waiting = {step.name: step.waiting_seconds for step in steps_of(values)}["8 bit"]
    share = 1 / speed / (1 / speed + waiting)
    exchange = waiting * batch / peers
    computing = batch / peers / speed
    return Question(
        text="The peers of a run like that of 2021 compute a large batch together, then exchange gradients, and then "
        "compute the next batch. For which share of the time do they compute?",
        given=(
            ("Batch of all peers", f"{show_count(batch)} samples"),
            ("Peers, equally fast", str(peers)),
            ("Each computes", f"{speed} samples/s"),
            ("An exchange takes", shown(exchange, "s")),
        ),
        answer=Number(
            value=share,
            unit="%",
            tolerance=0.01,
            mistakes=(
                (batch / speed / (batch / speed + exchange), "The batch is divided among the peers."),
                (1 - exchange / computing, "Divide by the whole time, computing and exchange together."),
            ),
        ),
        hints=("How many samples does each peer compute?", "Share = computing ÷ (computing + exchange)."),
        solution=(
            f"Each computes {show_count(batch)} ÷ {peers} = {show_count(batch // peers)} samples in "
            f"{shown(computing, 's')}.",
            f"{shown(computing, 's')} ÷ ({shown(computing, 's')} + {shown(exchange, 's')}) = {shown(share, '%')}.",
        ),
        remember="A larger batch makes the same exchange rarer: that is the largest of all factors.",
    )


def _scales(random: Random) -> Question:
    blocks = random.choice((50, 80, 100, 150, 200))
    values = blocks * BLOCK_SIZE
    size = encoded_bytes(values, "blockwise8", of=10**9)  # all in one part
    return Question(
        text="Values are sent in 8 bits each. Each block of values has one scale, a number in 32 bits. How many bytes "
        "is that?",
        given=(("Values", show_count(values)), ("Values in a block", str(BLOCK_SIZE))),
        answer=Number(
            value=size,
            unit="bytes",
            tolerance=0,
            mistakes=(
                (values, "Those are the values alone; each block has a scale as well."),
                (values + blocks, "A scale of 32 bits takes 4 bytes."),
                (values + 32 * blocks, "A scale has 32 bits, not 32 bytes."),
            ),
        ),
        hints=("How many blocks are there?", "A value takes 1 byte and a scale 4."),
        solution=(
            f"{show_count(values)} ÷ {BLOCK_SIZE} = {blocks} blocks.",
            f"{show_count(values)} × 1 + {blocks} × 4 = {show_count(size)} bytes.",
        ),
        remember="The scales cost less than 1 %, and keep an outlier from spoiling more than its own block.",
    )


def _program(random: Random) -> Question:
    cases = tuple((random.randint(1, 900) * 10**6, random.randint(2, 64)) for _ in range(6))
    return Question(
        text="Write the function that says how many bytes each peer sends in an all-reduce of a vector of `size` "
        "bytes.",
        answer=Program(
            name="sent_bytes",
            start="def sent_bytes(size, peers):\n    ",
            solution="def sent_bytes(size, peers):\n    return size * 2 * (peers - 1) / peers",
            reference=lambda size, peers: size * sent_share(peers),
            cases=cases,
            mistakes=(
                (lambda size, peers: size * (peers - 1) / peers, "The sums come back as well: twice as much is sent."),
                (lambda size, peers: 2 * size, "A peer sends nothing to itself: take its own part off."),
                (lambda size, peers: size * (peers - 1), "Only the receiver's part goes to each peer, not the vector."),
            ),
        ),
        hints=("With 2 peers it is the size itself; with very many it is nearly twice the size.",),
        solution=("Each of the two halves moves `peers - 1` parts of `size / peers` bytes.",),
        remember="2 (n − 1) / n: the most used formula of distributed training.",
    )


SUBJECT = Subject(
    name="communication",
    title="Communication",
    page="challenges/communication/",
    exercises=(
        Exercise(name="gradient-bytes", title="How large is a gradient?", draw=_gradient),
        Exercise(name="all-reduce-bytes", title="What does each peer send?", draw=_all_reduce),
        Exercise(name="ring-steps", title="Around the ring", draw=_steps),
        Exercise(name="home-link", title="An all-reduce over a home link", draw=_link),
        Exercise(name="slowest-link", title="Whose link decides?", draw=_slowest),
        Exercise(name="large-batch", title="Computing or waiting?", draw=_batch),
        Exercise(name="block-scales", title="Eight bits and their scales", draw=_scales),
        Exercise(name="sent-bytes", title="Program: bytes of an all-reduce", draw=_program),
    ),
)
