"""All checks in the order in which they are shown, and all faults by name."""

from __future__ import annotations

from training.doctor import examination
from training.doctor.checks import compute, machine, network, programs, recipe
from training.doctor.examination import Check
from training.doctor.finding import Fault

CHECKS = (
    Check("system", programs.check_system),
    Check("Python", programs.check_python),
    Check("packages", programs.check_packages),
    Check("PyTorch", child="compute", broken=compute.TORCH),
    Check("GPU", child="compute"),
    Check("compiler", child="compute"),
    Check("averaging", child="network", broken=network.CODECS),
    Check("cores", machine.check_cores),
    Check("other programs", machine.check_load),
    Check("memory", child="compute"),
    Check("shared memory", child="compute"),
    Check("open files", child="network"),
    Check("temporary files", machine.check_temp_folder),
    Check("cache", child="compute"),
    Check("state folder", machine.check_state_folder),
    Check("recipe", recipe.check_recipe),
    Check("membership", recipe.check_membership),
    Check("shards", child="compute"),
    Check("link", child="compute"),
    Check("port", child="network"),
    Check("network node", child="network"),
    Check("peers", child="network"),
    Check("clock", child="network"),
    Check("reachability", child="network"),
    Check("run", child="network"),
    Check("tokens", child="network"),
)


def all_faults() -> tuple[Fault, ...]:
    """Every fault that the doctor knows."""
    return tuple(
        fault for subject in (programs, machine, compute, network, recipe, examination) for fault in subject.FAULTS
    )
