"""Chaos: a run of real programs, each on a network of its own, to which accidents happen that a seed draws.

    nox -s chaos                          five minutes, of which nearly three are full of faults
    nox -s chaos -- --seed 7              other faults, at other times, and the same ones each time
    nox -s chaos -- --hours 1             the long form
    nox -s chaos -- --only cut,bootstrap  only faults of these kinds
    nox -s chaos -- --soak 500            no accidents, but half of the rounds fail: memory, files and disk stay flat

A bootstrap peer and a monitor share one machine, and five volunteers have one each: a network namespace, with a link of
100 Mbit/s to all others. The first part of a run is free of faults; its throughput is what the rest is compared with.
Then come the faults (`plan` draws them, `faults` does them), and a part in which the run may recover. At the end,
`judging.verdict` compares what each peer has logged with what the others have, and with the monitor's history.

The programs are those that people start. A volunteer's one, `volunteer`, differs in three points: its device computes
at a set speed, so that five of them fit on two cores; its clock can be set wrong; and it notes some of its weights.
"""
