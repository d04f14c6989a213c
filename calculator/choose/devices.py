"""GPUs that volunteers have: how much of their memory a program can use, their speed, and the source of each figure.

PyTorch can use less than the memory in a card's name: the driver reserves a part, and newer drivers reserve more. The
figures are the smallest `total capacity` that PyTorch reported for a card on Linux in the cited source. Without such a
report, the driver's part is assumed to be `DRIVER_BYTES`. An unlisted card is named by its memory, as in `cuda-20gb`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from calculator.errors import BadSetup

GIB = 2**30
MIB = 2**20
DRIVER_BYTES = 768 * MIB
"""The most that a driver reserves in the reports cited here: an A100 has 81 920 MiB by nvidia-smi and 79.25 GiB by
PyTorch (modal-labs/modal-client pull request 2797, HiDream-ai/VAREdit issue 6)."""
MOST_CARD_GIB = 1024
"""The largest memory by which a card may be named: several times the largest on sale."""
MPS_HIGH_WATERMARK = 1.7
"""PyTorch allows this multiple of Metal's recommended working set (aten/src/ATen/mps/MPSAllocator.h,
default_high_watermark_ratio); the `max allowed` that it reports is divided by it here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A GPU as a setup names it."""

    name: str
    title: str
    memory_bytes: int
    """The memory in the product's name."""
    usable_bytes: int
    """Memory that PyTorch and the CUDA context together can use."""
    capability: tuple[int, int] | None
    """CUDA compute capability; None where there is no CUDA (developer.nvidia.com/cuda-gpus)."""
    source: str
    """The source of `usable_bytes`."""
    unified: bool = False
    """True if host and GPU share this memory, so that offloading frees nothing."""
    assumed: bool = False
    """True if only the memory is known, and `capability` is assumed."""

    @property
    def teraflops(self) -> float | None:
        """Peak in training, in 10**12 FLOP/s; see `TERAFLOPS`. None if no peak is published."""
        return TERAFLOPS.get(self.name)

    @property
    def bfloat16(self) -> bool:
        """True if the GPU has bfloat16 units: NVIDIA's from Ampere (8.0) on, and the listed GPUs without CUDA."""
        return self.capability is None or self.capability >= (8, 0)


def _reported(
    name: str, title: str, memory_gib: int, usable_gib: float, capability: tuple[int, int] | None, source: str
) -> Device:
    return Device(
        name=name,
        title=title,
        memory_bytes=memory_gib * GIB,
        usable_bytes=round(usable_gib * 1024) * MIB,
        capability=capability,
        source=f"total capacity by PyTorch: {source}",
    )


def _less_driver(
    name: str, title: str, memory_gib: int, total_mib: int, capability: tuple[int, int], source: str
) -> Device:
    return Device(
        name=name,
        title=title,
        memory_bytes=memory_gib * GIB,
        usable_bytes=total_mib * MIB - DRIVER_BYTES,
        capability=capability,
        source=f"{source}, less the driver's part ({DRIVER_BYTES // MIB} MiB)",
    )


def _apple(memory_gib: int, allowed_gib: float, source: str) -> Device:
    return Device(
        name=f"apple-{memory_gib}gb",
        title=f"Apple M series, {memory_gib} GB unified",
        memory_bytes=memory_gib * GIB,
        usable_bytes=round(allowed_gib / MPS_HIGH_WATERMARK * 1024) * MIB,
        capability=None,
        source=f"max allowed by PyTorch / {MPS_HIGH_WATERMARK}, Metal's recommended working set: {source}",
        unified=True,
    )


_NVIDIA_SMI = "nvidia-smi: modal-labs/modal-client pull request 2797"

TERAFLOPS = {
    "t4": 65.0,  # data sheet
    "p100": 18.7,  # data sheet, PCIe; 16 bit, it has no matrix units
    "v100-16gb": 112.0,  # data sheet, PCIe
    "v100-32gb": 112.0,
    "gtx-1080-ti": 11.3,  # NVIDIA's product page, 32 bit; in 16 bit it is slower
    "rtx-2060": 25.8,  # 240 matrix units x 64 x 2 x 1.68 GHz, halved by 32-bit sums (Turing whitepaper, appendix B)
    "rtx-2080-ti": 53.8,  # Turing whitepaper, table 1
    "rtx-3060": 25.5,  # twice the 32-bit rate, as for all of GA10x (GA102 whitepaper, table 2)
    "rtx-3070": 40.6,  # GA102 whitepaper, table 2
    "rtx-3080": 59.5,
    "rtx-3090": 71.0,
    "rtx-4060": 30.2,  # twice the 32-bit rate, as for all of AD10x (Ada whitepaper, table 2)
    "rtx-4070-ti": 80.2,
    "rtx-4080": 97.5,  # Ada whitepaper, appendix A
    "rtx-4090": 165.2,
    "rtx-5070": 61.7,  # Blackwell RTX whitepaper, appendix A
    "rtx-5080": 112.6,
    "rtx-5090": 209.5,
    "rtx-a6000": 154.8,  # half of the data sheet's 309.7, which is with sparsity
    "rtx-6000-ada": 364.2,  # a quarter of the data sheet's 1457.0, which is in 8 bits with sparsity
    "a10": 125.0,  # data sheet
    "l4": 121.0,  # data sheet
    "l40s": 362.05,  # data sheet
    "a100-40gb": 312.0,  # data sheet
    "a100-80gb": 312.0,
    "h100-80gb": 989.4,  # data sheet, SXM
    "h200": 989.4,  # data sheet
    "b200": 2250.0,  # data sheet of HGX B200: 36 000 for 8 GPUs with sparsity
    "mi300x": 1307.4,  # AMD's data sheet
    "cpu": 0.38,  # assumed, 32 bit: 4 cores of 3 GHz, each with two 8-wide units that multiply and add (AVX2)
}
"""Published peak of each GPU in 10**12 FLOP/s: dense 16-bit matrix products with 32-bit sums, as in autocast."""

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _reported("t4", "Tesla T4 (Colab)", 16, 14.56, (7, 5), "Zheng-Chong/CatVTON issue 133"),
        _reported("p100", "Tesla P100", 16, 15.90, (6, 0), "googlecolab/colabtools issue 950"),
        _reported("v100-16gb", "Tesla V100, 16 GB", 16, 15.77, (7, 0), "nomic-ai/gpt4all issue 544"),
        _reported("v100-32gb", "Tesla V100, 32 GB", 32, 31.74, (7, 0), "haotian-liu/LLaVA issue 812"),
        _reported("gtx-1080-ti", "GeForce GTX 1080 Ti", 11, 10.92, (6, 1), "Rubics-Xuan/TransBTS issue 45"),
        _reported("rtx-2060", "GeForce RTX 2060", 6, 5.79, (7, 5), "facebookresearch/meshrcnn issue 92"),
        _reported("rtx-2080-ti", "GeForce RTX 2080 Ti", 11, 10.76, (7, 5), "JDAI-CV/image-captioning issue 11"),
        _reported("rtx-3060", "GeForce RTX 3060, 12 GB", 12, 11.75, (8, 6), "Kunhao-Liu/StyleGaussian issue 12"),
        _reported("rtx-3070", "GeForce RTX 3070", 8, 7.78, (8, 6), "akshitac8/OW-DETR issue 46"),
        _reported("rtx-3080", "GeForce RTX 3080, 10 GB", 10, 9.78, (8, 6), "zai-org/CogVideo issue 34"),
        _reported("rtx-3090", "GeForce RTX 3090", 24, 23.70, (8, 6), "xiaoxiangAQ/GAS-Net issue 7"),
        _reported("rtx-4060", "GeForce RTX 4060", 8, 7.72, (8, 9), "longxiang-ai/TSGS issue 6"),
        _reported("rtx-4070-ti", "GeForce RTX 4070 Ti", 12, 11.70, (8, 9), "Kwai-Kolors/Kolors issue 11"),
        _less_driver("rtx-4080", "GeForce RTX 4080", 16, 16 * 1024, (8, 9), "16 GB by NVIDIA"),
        _reported("rtx-4090", "GeForce RTX 4090", 24, 23.52, (8, 9), "Soul-AILab/SoulX-FlashTalk issue 5"),
        _less_driver("rtx-5070", "GeForce RTX 5070", 12, 12 * 1024, (12, 0), "12 GB by NVIDIA"),
        _less_driver("rtx-5080", "GeForce RTX 5080", 16, 16 * 1024, (12, 0), "16 GB by NVIDIA"),
        _reported("rtx-5090", "GeForce RTX 5090", 32, 31.36, (12, 0), "TrajectoryCrafter/TrajectoryCrafter issue 20"),
        _reported("rtx-a6000", "RTX A6000", 48, 47.54, (8, 6), "google-research/semivl issue 18"),
        _reported("rtx-6000-ada", "RTX 6000 Ada", 48, 44.43, (8, 9), "DINGYANB/MTVCrafter issue 21, with ECC"),
        _less_driver("a10", "A10", 24, 23_028, (8, 6), _NVIDIA_SMI),
        _less_driver("l4", "L4 (Colab)", 24, 23_034, (8, 9), _NVIDIA_SMI),
        _reported("l40s", "L40S", 48, 44.42, (8, 9), "stepfun-ai/Step-Video-T2V issue 8"),
        _reported("a100-40gb", "A100, 40 GB", 40, 39.50, (8, 0), "TianheWu/CoSeR issue 10"),
        _reported("a100-80gb", "A100, 80 GB", 80, 79.25, (8, 0), "HiDream-ai/VAREdit issue 6"),
        _less_driver("h100-80gb", "H100, 80 GB", 80, 81_559, (9, 0), _NVIDIA_SMI),
        Device(
            name="h200",
            title="H200",
            memory_bytes=141 * 10**9,
            usable_bytes=141 * 10**9 - DRIVER_BYTES,
            capability=(9, 0),
            source=f"141 GB (10**9 bytes) by NVIDIA's data sheet, less the driver's part ({DRIVER_BYTES // MIB} MiB)",
        ),
        Device(
            name="b200",
            title="B200",
            memory_bytes=180 * GIB,
            usable_bytes=round(178.35 * 1024) * MIB,
            capability=(10, 0),
            source="total global memory by CUDA: pytorch/ao pull request 4002",
        ),
        Device(
            name="mi300x",
            title="AMD Instinct MI300X",
            memory_bytes=192 * GIB,
            usable_bytes=201_310_208 * 1024,
            capability=None,
            source="device memory by rocminfo: ROCm/vllm issue 397",
        ),
        _apple(8, 9.07, "lllyasviel/Fooocus issue 1139"),
        _apple(16, 18.13, "pinokiocomputer/pinokio issue 941"),
        _apple(32, 36.27, "robbyant-research/MagicQuill issue 120"),
        _apple(64, 81.60, "BoBo0037/bobo-fun issue 8"),
    )
}
"""Every GPU that is listed, older and smaller ones first."""
PROCESSOR = Device(
    name="cpu",
    title="computer without a GPU",
    memory_bytes=8 * GIB,
    usable_bytes=4 * GIB,
    capability=None,
    source="assumed: 8 GiB, half of which other programs use",
    unified=True,
)
"""Volunteer's computer without a GPU, for forecasts of a run; lists of GPUs to choose from do not have it."""


def smallest_first(also: Device | None = None) -> list[Device]:
    """Lists all listed GPUs, and `also` if it is given, by rising usable memory."""
    others = [also] if also and also.name not in DEVICES else []
    return sorted([*DEVICES.values(), *others], key=lambda device: device.usable_bytes)


def device_named(name: object) -> Device:
    """The GPU of that name: a listed one, any CUDA card by its memory in GiB, or `cpu` for a computer without a GPU.

    Raises:
        BadSetup: If no GPU has this name; the message lists all names.

    >>> device_named("t4").usable_bytes
    15633219584
    >>> device_named("cuda-20gb").title
    'CUDA card with 20 GB'
    """
    if not isinstance(name, str):
        raise _unknown(name)
    if name == PROCESSOR.name:
        return PROCESSOR
    if name in DEVICES:
        return DEVICES[name]
    if not name.startswith("cuda-"):
        raise _unknown(name)
    named = re.fullmatch("cuda-([1-9][0-9]{0,3})gb", name)
    if named is None or int(named[1]) > MOST_CARD_GIB:
        accepted = f"a whole number of GiB from 1 to {MOST_CARD_GIB}"
        raise BadSetup(f"gpu is cuda-Ngb, where N is {accepted}, not {name!r:.60}.")
    return _card(int(named[1]))


def _unknown(name: object) -> BadSetup:
    said = str(name).lower()
    near = [one for one in DEVICES if said and one.startswith(said)] or get_close_matches(
        said, DEVICES, n=2, cutoff=0.7
    )
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    return BadSetup(
        f"gpu is one of {', '.join(DEVICES)}, or cuda-20gb for any card with 20 GiB, not {name!r:.60}.{meant}"
    )


@lru_cache(maxsize=64)
def _card(memory_gib: int) -> Device:
    """A card of unknown model with this memory, assumed to have the features of Ampere."""
    return Device(
        name=f"cuda-{memory_gib}gb",
        title=f"CUDA card with {memory_gib} GB",
        memory_bytes=memory_gib * GIB,
        usable_bytes=memory_gib * GIB - DRIVER_BYTES,
        capability=(8, 0),
        source=f"{memory_gib} GiB as the setup says, less the most that drivers keep ({DRIVER_BYTES // MIB} MiB)",
        assumed=True,
    )
