"""The figure of access tickets: the messages, and the check at which an attack fails."""

from __future__ import annotations

from calculator.figures.kit.controls import Choice, Range, Values
from calculator.figures.kit.drawing import Canvas
from calculator.figures.kit.figure import Drawn, Figure, Source
from calculator.figures.rules.admission import CASES, CHECKS, TICKET_SECONDS, failed_check

STEPS = (
    "The volunteer signs in and gives the authority a public key; the private key never leaves the machine.",
    f"The authority knows the member and signs a ticket: name, public key, valid for {TICKET_SECONDS // 3600} hours.",
    "A request to a peer contains the ticket, the time, a number used once and the receiver's key, all signed.",
    "The peer makes all checks itself, without asking the authority, and accepts the request only if each one passes.",
    "The answer is signed too, with the peer's own ticket and the same number, so the volunteer can check the peer.",
)
ATTACKS = {
    "honest": "none: a member's request",
    "forged": "a ticket that the attacker signed",
    "expired": "a ticket from yesterday",
    "stolen": "somebody else's ticket",
    "altered": "a tensor changed in transit",
    "redirected": "a request forwarded to another peer",
    "delayed": "a request delayed for a minute",
    "replayed": "the same request a second time",
}
ARROWS = (
    (0, 1, "public key"),
    (1, 0, "signed ticket"),
    (0, 2, "ticket and signed request"),
    (2, 2, "checks"),
    (2, 0, "signed answer"),
)
"""(from, to, words); lane 0 is the volunteer's, 1 the authority's, 2 the peer's."""


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws three lanes with an arrow for each step so far, and lists the peer's checks."""
    step, attack = int(values["step"]), str(values["attack"])
    case = CASES[attack]()
    failed = failed_check(case.request, peer=case.peer, now=case.now, seen=case.seen)
    bottom, results = 236, _results(failed, step)
    _messages(canvas, step, bottom, refused=failed is not None)
    canvas.text(0, bottom + 28, "What the peer checks", "strong")
    for number, (check, result) in enumerate(zip(CHECKS, results, strict=True)):
        y = bottom + 52 + 22 * number
        look = {"passes": "fill-4", "fails": "fill-accent"}.get(result, "shade")
        canvas.circle(8, y - 4, 6, look)
        canvas.text(22, y, f"{check}: {result}" if result != "–" else check, "ink" if result != "–" else "soft")
    return Drawn(
        caption=_caption(step, attack, failed),
        label=f"Messages of volunteer, authority and peer up to step {step} of {len(STEPS)}, and the peer's checks",
        canvas=canvas,
        height=bottom + 56 + 22 * len(CHECKS),
        head=("Check", "Result"),
        rows=list(zip(CHECKS, results, strict=True)),
    )


def _messages(canvas: Canvas, step: int, bottom: float, *, refused: bool) -> None:
    """Draws a lane for each party, down to `bottom`, and the messages up to a step."""
    margin = 50 if canvas.narrow else 90
    lanes = (margin, canvas.width / 2, canvas.width - margin)
    top = 34
    for x, name in zip(lanes, ("Volunteer", "Authority", "Peer"), strict=True):
        canvas.text(x, 16, name, "strong", anchor="middle")
        canvas.line(x, top - 8, x, bottom, "axis")
    for number, (start, end, words) in enumerate(ARROWS[:step]):
        y = top + 24 + 40 * number
        look = "line-1" if number == step - 1 else "line-6"
        if number == 2 and refused:
            words, look = "what the attacker sends", "line-accent"
        if number == 4 and refused:
            words = "no answer"
        if start == end:
            canvas.circle(lanes[start], y - 6, 6, "fill-accent" if refused else "fill-1")
            canvas.text(lanes[start] - 14, y, "refused" if refused else "all checks pass", "ink", anchor="end")
            continue
        sense = 1 if end > start else -1
        if not (number == 4 and refused):
            canvas.arrow(lanes[start] + 6 * sense, y, lanes[end] - 6 * sense, y, look)
        canvas.text((lanes[start] + lanes[end]) / 2, y - 8, words, "soft", anchor="middle")


def _results(failed: int | None, step: int) -> list[str]:
    """The result of each check; “–” before the peer has the request, and after a check that fails."""
    if step < 4:
        return ["–"] * len(CHECKS)
    if failed is None:
        return ["passes"] * len(CHECKS)
    return ["passes"] * failed + ["fails"] + ["–"] * (len(CHECKS) - failed - 1)


def _caption(step: int, attack: str, failed: int | None) -> str:
    said = f"Step {step} of {len(STEPS)}: {STEPS[step - 1]}"
    if failed is None:
        end = "Tickets prove who takes part; they do not prove that a member's gradient is right."
        return f"{said} {end if step == len(STEPS) else ''}".strip()
    told = f"Attack: {ATTACKS[attack]}."
    if step < 4:
        return f"{told} {said}"
    return f"{told} It fails at check {failed + 1} of {len(CHECKS)}, “{CHECKS[failed]}”: the peer does not answer."


FIGURE = Figure(
    name="tickets",
    title="Tickets, step by step",
    controls=(
        Range(name="step", label="Step", low=1, high=len(STEPS), default=4),
        Choice(name="attack", label="Attack", options=tuple(ATTACKS.items()), default="honest"),
    ),
    draw=draw,
    sources=(
        Source(
            text="Diskin et al., Distributed deep learning in open collaborations, 2021, on access by tickets",
            address="https://arxiv.org/abs/2106.10207",
        ),
        Source(
            text="hivemind, TokenAuthorizerBase",
            address="https://github.com/learning-at-home/hivemind/blob/master/hivemind/utils/auth.py",
        ),
    ),
)
