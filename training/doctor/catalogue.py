"""All checks in the order in which they are shown, and all faults by name."""

from __future__ import annotations

from training.doctor import examination
from training.doctor.checks import compute, machine, network, programs, recipe
from training.doctor.examination import Check
from training.doctor.finding import Fault

_OPEN_IT = "Open its address in a browser of this machine: a firewall, a proxy or a login page may be in the way."

CHECKS = (
    Check("system", programs.check_system),
    Check("Python", programs.check_python),
    Check("packages", programs.check_packages, doing="reading the versions of the installed packages"),
    Check("PyTorch", child="compute", broken=compute.TORCH, doing="loading PyTorch"),
    Check(
        "GPU",
        child="compute",
        doing="asking the GPU's driver",
        advice="`nvidia-smi` must answer at once; if it does not, restart this machine.",
    ),
    Check("compiler", child="compute", doing="compiling the optimizer's loops"),
    Check("averaging", child="network", broken=network.CODECS, doing="loading hivemind and trying its codecs"),
    Check("cores", machine.check_cores),
    Check("other programs", machine.check_load, doing="looking at what other programs do"),
    Check("memory", child="compute", doing="computing what the recipe's model takes"),
    Check("shared memory", child="compute"),
    Check("open files", child="network"),
    Check("temporary files", machine.check_temp_folder, doing="writing a file into the folder for temporary files"),
    Check("state folder", machine.check_state_folder, doing="writing a file into the state folder"),
    Check("recipe", recipe.check_recipe, doing="reading the recipe", advice=_OPEN_IT),
    Check("membership", recipe.check_membership, doing="asking the recipe's membership server", advice=_OPEN_IT),
    Check(
        "shards",
        child="compute",
        doing="reading the shards and comparing them with their manifest",
        advice="Copy their folder to a disk of this machine; if they come over the network, open their address in a "
        "browser here.",
    ),
    Check("cache", child="compute", doing="looking at the folder that keeps fetched shards"),
    Check("link", child="compute", doing="downloading a part of a shard", advice="Stop other traffic on this link."),
    Check("port", child="network", doing="listening on a port"),
    Check("network node", child="network", doing="starting the network node"),
    Check(
        "peers",
        child="network",
        doing="calling the run's peers",
        advice="Try another network, such as a phone's: a firewall may be in the way.",
    ),
    Check("clock", child="network", doing="comparing the clock with those of the run's peers"),
    Check("reachability", child="network", doing="waiting for a peer to connect back"),
    Check("run", child="network", doing="asking the run's peers for its recipe"),
    Check("tokens", child="network", doing="asking the run's peers for their tokens"),
)


def all_faults() -> tuple[Fault, ...]:
    """Every fault that the doctor knows."""
    return tuple(
        fault for subject in (programs, machine, compute, network, recipe, examination) for fault in subject.FAULTS
    )
