"""The origin of each number: its formula with the setup's own values, and the source of the rule."""

from __future__ import annotations

from calculator.choose.devices import Device
from calculator.parts.optimizers import chosen
from calculator.step.answer import Estimate
from calculator.step.resolve import lora_of, resolve
from calculator.step.setups import DEEPSPEED, DIVIDED, PCIE_BYTES_PER_SECOND, Setup
from calculator.tape.tensor_parallel import TENSOR_SHARDINGS
from calculator.units import show_bytes, show_count

ALLOCATOR = "Source of the rounding: PyTorch's CUDA allocator, c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize."
KEPT = "Source: the tensors that each operation saves for backward in PyTorch, tools/autograd/derivatives.yaml."
MOVED = "What each node of the graph keeps for backward, copies of weights too"
NOT_MOVED = "Nothing: the GPU keeps what backward needs"
HIVEMIND = "Source: hivemind, optim/state_averager.py: offload_optimizer keeps 32-bit copies on the host."
CONTEXT = (
    "Source: pytorch, aten/src/ATen/cuda/CUDAContextLight.h (workspace), c10/cuda/CUDACachingAllocator.cpp (segments)."
)


def explanations(setup: Setup, result: Estimate, device: Device | None) -> dict[str, str]:
    """A text for every number in the two tables and the verdict, by the name of its place."""
    optimizer = chosen(setup.optimizer, implementation=setup.optimizer_impl, rank=setup.optimizer_rank)
    count = show_count(result.trained_parameters)
    if setup.offload_optimizer:
        state = "Nothing stays on the GPU: the optimizer runs on the host."
    else:
        state = f"{optimizer.title}: {_per_parameter(result.optimizer_state_bytes, result.trained_parameters)}."
    host_state = _per_parameter(result.host.optimizer_state, result.trained_parameters)
    copies = f"{count} parameters × 4 bytes" if setup.offload_optimizer else "Nothing: the optimizer is on the GPU"
    return {
        "gpu-weights": (
            f"{_weights(setup, result)}, every tensor rounded up to 512 bytes, and the model's buffers. {ALLOCATOR}"
        ),
        "gpu-gradients": (
            f"{_gradients(setup)}: {show_bytes(result.gradient_bytes)} in total. At the peak "
            f"{show_bytes(result.gpu.gradients)} are allocated. "
            "Source: PyTorch's autograd makes a gradient when backward reaches its weight and keeps it for "
            "the optimizer."
        ),
        "gpu-optimizer_state": f"{state} Source: {optimizer.source}.",
        "gpu-activations": (
            f"At the end of forward, {show_bytes(result.saved_activations)} are kept for backward, and "
            f"{show_bytes(result.autocast_weight_copies)} of 16-bit copies of weights; at the peak, "
            f"{show_bytes(result.gpu.activations)} are allocated, including the inputs. {KEPT}"
        ),
        "gpu-temporary": (f"Memory that the operation at the peak frees when it is done. {result.peak.instant} {KEPT}"),
        "gpu-total": (
            f"The highest sum of the parts at any instant of the step, which has {len(result.timeline)} stretches. "
            "Source: the lifetime of each tensor in PyTorch's autograd, simulated from the first operation to the "
            "update."
        ),
        "overhead": (
            "Nothing: this GPU has no CUDA, and the host's part is in the same memory."
            if device and device.unified
            else f"{_overhead(result)} {CONTEXT}"
        ),
        "usable": f"{show_bytes(device.usable_bytes)}. Source: {device.source}." if device else "No GPU is chosen.",
        "host-total": f"The sum of the parts, without the process itself and its network buffers. {HIVEMIND}",
        "transfer": (
            f"{show_bytes(result.transfer.bytes_per_step)} ({_crossing(setup)}) / "
            f"{show_bytes(PCIE_BYTES_PER_SECOND[setup.pcie_generation])} per second. Source: PCI-SIG base "
            f"specification {setup.pcie_generation}.0, 16 lanes, one direction."
        ),
        "host-parameters": f"{copies}. {HIVEMIND}",
        "host-gradients": f"{copies}. {HIVEMIND}",
        "host-optimizer_state": f"{optimizer.title}: {host_state}. Source: {optimizer.source}.",
        "host-delta_rule": (
            f"{f'An additional copy: {copies}' if setup.delta_rule else 'Nothing: the delta rule is off'}. "
            "Source: hivemind, optim/state_averager.py, delta_rule_averaging."
        ),
        "host-activations": (
            f"{MOVED if setup.offload_activations else NOT_MOVED}. Source: PyTorch, autograd/graph.py, save_on_cpu."
        ),
    }


def _weights(setup: Setup, result: Estimate) -> str:
    """Counts of parameters and their bytes."""
    lora = lora_of(setup, resolve(setup))
    trained = show_count(result.trained_parameters)
    if lora is None:
        whole = f"{trained} parameters × {2 if setup.precision in ('bf16', 'fp16') else 4} bytes"
        if setup.sharding in DEEPSPEED:
            halves = f"{trained} parameters × 2 bytes, and " if setup.precision != "fp32" else f"{whole}, and "
            return f"{halves}1 / {setup.gpus} of them × 4 bytes, which the optimizer updates"
        if setup.sharding in TENSOR_SHARDINGS:
            return f"{whole} / {setup.gpus} GPUs, norms and biases of sums whole"
        if setup.sharding not in DIVIDED:
            return whole
        return f"{whole} / {setup.gpus} GPUs, in whole rows, and the weights that are gathered from them at the peak"
    frozen = show_count(result.parameters - result.trained_parameters)
    adapters = f"{trained} parameters of adapters × {lora.adapter_itemsize} bytes"
    if lora.base_bits == 4:
        scales = f"in linear layers half a byte and scales (NF4, double quantization), else {lora.rest_itemsize} bytes"
        return f"{frozen} frozen parameters: {scales}; {adapters}"
    return f"{frozen} frozen parameters × {lora.rest_itemsize} bytes, {adapters}"


def _gradients(setup: Setup) -> str:
    if setup.sharding in DEEPSPEED:
        return "The bucket of 500 million values that DeepSpeed sums over the GPUs, and the gradients that it keeps"
    if setup.optimizer_in_backward:
        return "As many values as the largest tensor has, since each is updated and its gradient freed in backward"
    if setup.sharding in DIVIDED:
        return "As many values as this GPU's share of the weights, and whole ones until they are summed over the GPUs"
    if setup.sharding in TENSOR_SHARDINGS:
        return "As many values as this GPU's part of the weights, and the embedding's whole gradient"
    buckets = ", and as many in DDP's buckets" if setup.gpus > 1 else ""
    return f"As many values as {'adapters have' if setup.lora_rank else 'weights'}{buckets}"


def _overhead(result: Estimate) -> str:
    """The memory that no figure of PyTorch's allocator includes, part by part."""
    parts = result.overhead
    return (
        f"{show_bytes(parts['cuda_context'])} for the driver's own context (300 MiB to 1 GiB, depending on GPU and "
        f"driver) + {show_bytes(parts['cublas_workspace'])} for cuBLAS's workspace + "
        f"{show_bytes(parts['allocator_rounding'])} that weights and gradients leave unused in memory segments."
    )


def _crossing(setup: Setup) -> str:
    """The bytes that cross the bus in an update."""
    both = "activations of each micro-batch both ways"
    if setup.offload_optimizer:
        return f"gradients to the host, parameters back{f', {both}' if setup.offload_activations else ''}"
    return both if setup.offload_activations else "nothing is on the host"


def _per_parameter(size: int, parameters: int) -> str:
    return f"{show_bytes(size)}, {size / parameters:.2f} bytes per parameter"
