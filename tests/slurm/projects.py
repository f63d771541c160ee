"""Snakemake as the README has it for SLURM: the profile, from the project's folder."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.workflow.projects import environment_of

# Enough updates to be cancelled in their midst.
EXPERIMENT = """\
corpus: {train: 64, validation: 8, test: 8, min_length: 3, short_max_length: 8, max_length: 16}
model: {width: 8, layers: 1, heads: 2, feed_forward: 16, dropout: 0.1}
steps: 300
interrupt_at: 100
checkpoint_every: 10
batch: 2
"""
GATE = "results/tiny/gate.txt"
PROFILE = ("--profile", "profiles/slurm")
# There is no accounting here, and a job takes seconds.
QUICK = ("--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "10")
SUBMITTED = r"has been submitted with SLURM jobid (\d+) \(log: .*/rule_(\w+)/"
TIME_LIMIT_S = 600


def environment_with(plugin: Path, project: Path) -> dict[str, str]:
    own = environment_of(project)
    return own | {"PYTHONPATH": f"{own['PYTHONPATH']}{os.pathsep}{plugin}"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", *PROFILE, *QUICK, *arguments]


def snakemake(project: Path, environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT_S,
    )


def submitted(output: str) -> dict[str, list[str]]:
    """Rule -> the numbers that SLURM gave to its jobs."""
    found: dict[str, list[str]] = {}
    for job, rule in re.findall(SUBMITTED, output):
        found.setdefault(rule, []).append(job)
    return found
