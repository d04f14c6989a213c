"""Simulation of swarms that cannot be run here, with thousands of volunteers, event by event.

`population` draws volunteers from documented distributions, `clock` plays events in order, `accounts` records how each
peer spends its time, `swarm` has the rules by which the trainer and hivemind act, `forecast` simulates a recipe.
"""
