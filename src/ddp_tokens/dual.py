"""Two processes, each on its own device, do one all-reduce of known numbers: who took which device, is the sum right?

`start` is for the one who asks; what the launcher starts as ranks is `main`, and imports torch there only.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ddp_tokens.config import Experiment
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import read_json
from ddp_tokens.launchers import module_and_options
from ddp_tokens.options import run_as_program
from ddp_tokens.progress import place_file
from ddp_tokens.stopping import SIGNALLED
from ddp_tokens.watching import SNAKEMAKE, sign_as

PROGRAM = "ddp_tokens.dual"
RANKS = 2
RESULT = "ranks.json"
# To import torch twice, and CUDA's and NCCL's first steps, on a busy machine; the experiment's timeout_s comes on top.
STARTED_WITHIN_S = 120
ENDED_WITHIN_S = 5
SHOWN_LINES = 20
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: Sequence[str]) -> int:
    """In a rank."""
    from ddp_tokens.dual_rank import take_part

    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__, allow_abbrev=False)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--backend", choices=["gloo", "nccl"], required=True)
    parser.add_argument("--timeout-s", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("folder", type=Path)
    own = parser.parse_args(arguments)
    take_part(PROGRAM, own.device, own.backend, own.timeout_s, own.threads, own.folder / RESULT)
    return 0


def start(experiment: Experiment, torch: Mapping[str, Any]) -> dict[str, Any]:
    """`torch`: of probing.ask. `processes`: what the two told about themselves, by rank; `error`: one sentence on what
    went wrong, or None; `said`: the last lines that they wrote where something did. They have ended when this returns.
    """
    asked = {"device": experiment.device, "backend": experiment.resolved_backend}
    problem = cannot_start(experiment, torch)
    if problem:
        return {**asked, "processes": [], "error": problem, "said": []}
    with tempfile.TemporaryDirectory(prefix="ddp-tokens-") as name:
        folder = Path(name)
        within_s = experiment.timeout_s + STARTED_WITHIN_S
        with open(folder / "said", "w+") as said:
            code = _run(command(experiment, folder), said.fileno(), within_s)
        lines = [line.rstrip() for line in (folder / "said").read_text().splitlines() if line.strip()]
        if code is None:
            problem = f"the two processes did not end within {within_s} s: {_whereabouts(folder)}"
        elif code:
            problem = sentence_of(lines) or f"the launcher of two processes ended with exit code {code}"
        processes, problem = ([], problem) if problem else _result(folder / RESULT)
    return {**asked, "processes": processes, "error": problem, "said": lines[-SHOWN_LINES:] if problem else []}


def cannot_start(experiment: Experiment, torch: Mapping[str, Any]) -> str | None:
    """Why nothing is to be started; told before anything is."""
    if "error" in torch:
        return "two processes cannot be tried without torch: repair torch first"
    if not torch[experiment.resolved_backend]:
        return f"two processes cannot meet over {experiment.resolved_backend}, which this torch does not have"
    if experiment.device == "cuda" and torch["gpus"] == 0:
        return "two processes on cuda need a GPU and torch sees none: set device to cpu"
    if experiment.resolved_backend == "nccl" and torch["gpus"] < RANKS:
        return "two processes over nccl need two GPUs, one each, and torch sees 1: set backend to gloo, to share it"
    return None


def command(experiment: Experiment, folder: Path) -> list[str]:
    """As the rules start the ranks of an experiment, but two, on this host."""
    launcher = [sys.executable, "-m", *module_and_options(experiment.resolved_launcher, RANKS)]
    limits = [f"--timeout-s={experiment.timeout_s}", f"--threads={experiment.threads_per_rank}"]
    work = [f"--device={experiment.device}", f"--backend={experiment.resolved_backend}"]
    return [*launcher, "-m", PROGRAM, *work, *limits, str(folder)]


def sentence_of(lines: Sequence[str]) -> str | None:
    """The first line in which a program says what happened to a rank; without one, the last line."""
    found = (re.match(r"[\w.]+(?:, rank \d+)?: (.*\brank \d.*)", line) for line in lines)
    return next((match[1] for match in found if match), lines[-1] if lines else None)


def _result(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    try:
        return read_json(path), None
    except EvidenceError:
        return [], "the two processes ended without a word about themselves"


def _whereabouts(folder: Path) -> str:
    """Of each rank that has not ended, as it told the others."""
    told = []
    for rank in range(RANKS):
        try:
            place = read_json(place_file(folder, rank))
        except EvidenceError:
            told.append(f"rank {rank} did not come")
            continue
        told.append(f"rank {rank} was {'in' if place['inside'] else 'past'} the {place['collective']}")
    return ", ".join(told)


def _run(command: Sequence[str], said: int, within_s: float) -> int | None:
    """The launcher's exit code; None where it had to be ended. What it started ends with it, and it with this process,
    which it takes for its Snakemake.
    """
    environment = dict(os.environ)
    sign_as(SNAKEMAKE, environment)
    process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ranks of a launcher that is killed end by themselves: they watch it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def ending_by_signal() -> Iterator[None]:
    """Inside the block a signal raises SystemExit, so that what was started is ended before this process is. For the
    main thread.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(SIGNALLED + number)

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
