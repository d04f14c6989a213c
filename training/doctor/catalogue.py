"""All checks in the order in which they are shown, and all faults by name."""

from __future__ import annotations

from training.doctor import examination
from training.doctor.checks import (
    clock,
    compute,
    files,
    membership,
    memory,
    peers,
    processor,
    programs,
    recipe,
    shards,
)
from training.doctor.examination import Check
from training.doctor.facts import addresses, web
from training.doctor.facts import recipe as recipe_facts
from training.doctor.facts import shards as shard_facts
from training.doctor.finding import Fault

CHECKS = (
    Check("system", programs.check_system),
    Check("Python", programs.check_python),
    Check("packages", programs.check_packages),
    Check("PyTorch", compute.check_torch, None, compute.TORCH_HANGS),
    Check("GPU", compute.check_gpu, None, compute.TORCH_HANGS),
    Check("compiler", compute.check_compiler, None),
    Check("averaging", compute.check_codecs, None),
    Check("cores", processor.check_cores),
    Check("processor speed", processor.check_speed),
    Check("other programs", processor.check_load),
    Check("priority", processor.check_priority),
    Check("memory", memory.check_memory, None),
    Check("addresses", memory.check_address_space),
    Check("swap", memory.check_swap),
    Check("shared memory", memory.check_shared_memory, None),
    Check("open files", files.check_open_files),
    Check("temporary files", files.check_temp_folder),
    Check("cache", files.check_cache),
    Check("state folder", files.check_state_folder),
    Check("recipe", recipe.check_recipe),
    Check("membership", membership.check_membership, None),
    Check("shards", shards.check_shards, None),
    Check("link", shards.check_link, None),
    Check("clock", clock.check_clock, None),
    Check("port", peers.check_port),
    Check("network node", peers.check_node, None),
    Check("peers", peers.check_peers, None),
    Check("reachability", peers.check_reachable, None),
    Check("run", recipe.check_run, None),
    Check("tokens", shards.check_tokens, None),
)


def all_faults() -> tuple[Fault, ...]:
    """Every fault that the doctor knows."""
    subjects = (programs, compute, processor, memory, files, web, recipe, membership)
    subjects += (shards, clock, peers, examination, recipe_facts, shard_facts, addresses)
    return tuple(fault for subject in subjects for fault in subject.FAULTS)
