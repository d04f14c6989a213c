"""The doctor's child that uses torch: looks at the devices, compiles the optimizer's loops, and plans the memory.

Argument: how many seconds it may live. Standard input: one line of JSON with the recipe and the device that the
volunteer wants, which may come late. Standard output: one line of JSON for each step.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from training.doctor.probes.telling import hear, live_briefly, tell

if TYPE_CHECKING:
    from training.recipe import RunConfig


def main() -> None:
    """Runs all steps."""
    live_briefly()
    import torch

    tell("torch", version=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip)
    tell("gpus", **_gpus())
    tell("kernels", fault=_kernels())
    told = hear()
    if told.get("recipe") is not None:
        from training.recipe import run_of

        tell("plan", **plan_of(run_of(told["recipe"]), told["device"]))


def _gpus() -> dict[str, object]:
    """The GPUs that torch can use, or why it can use none."""
    import torch

    from training.errors import first_line

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
        reason = ""
        if not usable and torch.version.cuda is not None:
            try:
                torch.cuda.init()
            except (RuntimeError, AssertionError) as error:
                reason = str(error)
    reason = reason or " ".join(str(one.message) for one in said)
    gpus = []
    for number in range(torch.cuda.device_count() if usable else 0):
        one = torch.cuda.get_device_properties(number)
        free, total, fault = 0, one.total_memory, None
        try:
            free, total = torch.cuda.mem_get_info(number)
        except RuntimeError as error:  # to ask already takes some memory, or the GPU is another program's alone
            fault = first_line(error)
        told = {"title": one.name, "capability": [one.major, one.minor], "fault": fault}
        gpus.append({**told, "free_bytes": free, "total_bytes": total})
    return {"usable": usable, "reason": reason, "gpus": gpus, "built_for": torch.cuda.get_arch_list()}


def _kernels() -> str | None:
    """Why the optimizer's loops cannot be compiled here; None if they are."""
    from training.native import NotNative, cache_folder, compiled
    from training.optim.eight_bit.kernels import SOURCE

    try:
        compiled(SOURCE, cache_folder())
    except (NotNative, OSError) as error:
        return str(error)
    return None


def plan_of(run: RunConfig, device: str | None) -> dict[str, object]:
    """What training takes on this machine with one sample at a time."""
    from training.compute.machine import this_machine
    from training.compute.plan import make_plan
    from training.errors import TrainingError
    from training.tasks.known import task_of

    try:
        machine = this_machine(device)
        plan = make_plan(task_of(run), machine, micro_batch_size=1, activation_budget_bytes=0)
    except TrainingError as error:
        return {"fault": str(error)}
    return {
        "fault": None,
        # What peers exchange and processes share; frozen weights are neither.
        "trained_parameters": plan.trained_parameters,
        "device_bytes": plan.need_bytes,
        "usable_bytes": machine.usable_bytes,
        "host_bytes": plan.need_bytes if machine.unified else plan.host_bytes,
    }


if __name__ == "__main__":
    main()
