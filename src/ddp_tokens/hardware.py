"""What this machine computes with, as its kernel tells it. No torch."""

import os
import platform
from pathlib import Path

CPU_FACTS = Path("/proc/cpuinfo")
MEMORY_FACTS = Path("/proc/meminfo")


def gibibytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


def in_words(number: int) -> str:
    """A size in the unit that leaves it a short number."""
    if number >= 2**30:
        return gibibytes(number)
    return f"{number / 2**20:,.0f} MiB" if number >= 2**20 else f"{number / 2**10:,.0f} KiB"


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_memory() -> int:
    """Bytes of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cpu_memory_available() -> int | None:
    """Bytes that programs can take without swapping; None where the kernel does not tell."""
    lines = MEMORY_FACTS.read_text().splitlines() if MEMORY_FACTS.is_file() else []
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def cpu_name() -> str:
    """As the kernel tells it; on machines where it does not, the architecture."""
    lines = CPU_FACTS.read_text().splitlines() if CPU_FACTS.is_file() else []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
