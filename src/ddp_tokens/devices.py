"""What a rank computes on, in words."""

import os
import platform
from pathlib import Path

import torch

CPU_FACTS = Path("/proc/cpuinfo")


def described_device(device: str) -> str:
    """Name and memory: of the GPU, or of this machine's CPU with the cores that this process may use."""
    if device.startswith("cuda"):
        memory = torch.cuda.get_device_properties(device).total_memory
        return f"{device}, {torch.cuda.get_device_name(device)}, {gibibytes(memory)}"
    return f"cpu, {cpu_name()}, {cores()} core{'s' if cores() > 1 else ''}, {gibibytes(cpu_memory())}"


def gibibytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


def cores() -> int:
    return len(os.sched_getaffinity(0))


def cpu_memory() -> int:
    """Bytes of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cpu_name() -> str:
    """As the kernel tells it; on machines where it does not, the architecture."""
    lines = CPU_FACTS.read_text().splitlines() if CPU_FACTS.is_file() else []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
