import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import PROJECT
from tests.slurm.cluster import Cluster, started, why_not


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with what envs/slurm.lock names, installed here and nowhere else."""
    folder = tmp_path_factory.mktemp("plugin")
    if importlib.util.find_spec("snakemake_executor_plugin_slurm"):
        return folder
    lock = PROJECT / "envs" / "slurm.lock"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*pip, "--requirement", str(lock)], capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"pip cannot install envs/slurm.lock: {done.stderr.strip().splitlines()[-1]}")
    return folder


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if problem := why_not():
        pytest.skip(problem)
    with started(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster
