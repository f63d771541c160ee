"""What this machine has, as plain values: software, cores, memory, disk, locks, driver. No torch: see torch_facts."""

import fcntl
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ddp_tokens.cgroups import limits
from ddp_tokens.hardware import cores, cpu_memory, cpu_memory_available, cpu_name
from ddp_tokens.steps import LOCK_FILE

DISTRIBUTION = "ddp-tokens"
# What the chain imports: the dependencies of pyproject.toml, to which a test holds this list.
IMPORTED = (
    "docutils",
    "jinja2",
    "matplotlib",
    "numpy",
    "pandas",
    "pillow",
    "pydantic",
    "pydantic-settings",
    "pygments",
    "pyyaml",
    "rocrate",
    "safetensors",
    "snakemake",
    "tabulate",
    "torch",
    "tqdm",
)
SHARED_MEMORY = Path("/dev/shm")
DRIVER = Path("/proc/driver/nvidia/version")
DEVICE_FILE = Path("/dev/nvidia0")
VISIBLE = "CUDA_VISIBLE_DEVICES"
WORK = "work"
REFUSED = 3
# By a process of its own: on some file systems a process never stands in its own way.
TRIAL = f"""
import fcntl, sys
try:
    fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit({REFUSED})
"""


def machine_facts(results: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """`results`: the experiment's folder, made where it is not there. Sizes in bytes; None: not known."""
    limit, refused = limits(), trial_of_writing(results)
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "kernel": platform.release(),
        "process_handles": has_process_handles(),
        "packages": packages(),
        "cpu": cpu_name(),
        "cores": cores(),
        "cores_of_group": limit.cores,
        "memory_bytes": cpu_memory(),
        "memory_available_bytes": cpu_memory_available(),
        "memory_of_group_bytes": limit.memory,
        "memory_left_in_group_bytes": limit.left,
        "groups_known": limit.known,
        "shared_memory_free_bytes": free_bytes(SHARED_MEMORY),
        "results_refused": refused,
        "locks": None if refused else trial_of_locks(results),
        "results": str(results),
        "disk_free_bytes": free_bytes(results),
        "driver": driver_version(),
        "gpu_device_file": DEVICE_FILE.exists(),
        "cuda_visible_devices": environment.get(VISIBLE),
    }


def has_process_handles() -> bool:
    """pidfd_open, which Linux has from 5.3 on, and which some container engines forbid."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def packages() -> dict[str, dict[str, Any]]:
    """By name: `installed` and `locked`, versions without the name of a build such as +cpu; `needed`, the range of
    pyproject.toml, and whether the version is `within` it, where that can be told.
    """
    locked, needed = locked_versions(LOCK_FILE), needed_ranges()
    return {name: _package(_installed(name), locked.get(name), needed.get(name)) for name in IMPORTED}


def locked_versions(lock: Path) -> dict[str, str]:
    lines = lock.read_text().splitlines() if lock.is_file() else []
    return dict(line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))


def needed_ranges() -> dict[str, str]:
    """From the metadata of the installed project; nothing where only its source is on the path."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    parts = [re.fullmatch(r"([A-Za-z0-9._-]+)\s*([^;]*?)\s*", text) for text in requirements if ";" not in text]
    return {part[1].lower().replace("_", "-"): part[2] for part in parts if part}


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def _package(installed: str | None, locked: str | None, needed: str | None) -> dict[str, Any]:
    within = _is_within(installed, needed) if installed is not None and needed is not None else None
    return {"installed": installed, "locked": locked, "needed": needed, "within": within}


def _is_within(version: str, needed: str) -> bool | None:
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:  # then a package that needs it is missing too, which is told
        return None
    return SpecifierSet(needed).contains(version, prereleases=True)


def free_bytes(folder: Path) -> int | None:
    """For this user. None where there is no such folder, or its file system does not say."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def trial_of_writing(folder: Path) -> str | None:
    """What goes wrong with a new file there; None where nothing does."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".trial-of-writing."):
            return None
    except OSError as error:
        return str(error.strerror)


def trial_of_locks(folder: Path) -> str:
    """WORK, or what goes wrong with flock in this folder, which is there."""
    path = folder / f".trial-of-locks.{os.getpid()}"
    try:
        with open(path, "w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                return str(error.strerror)
            done = subprocess.run([sys.executable, "-c", TRIAL, str(path)], capture_output=True, text=True)
        if done.returncode == REFUSED:
            return WORK
        last = done.stderr.strip().splitlines()[-1:]
        return last[0] if last else "two processes could lock the same file"
    finally:
        path.unlink(missing_ok=True)


def driver_version() -> str | None:
    """Of NVIDIA's kernel module, as it tells it; None where it is not loaded."""
    try:
        lines = DRIVER.read_text().splitlines()
    except OSError:
        return None
    found = re.search(r"\d+\.\d+(\.\d+)?", lines[0]) if lines else None
    return found[0] if found else "unknown"
