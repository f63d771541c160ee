"""Run one case of the table of trainers: its script on two ranks, or say that its package is not installed.

python -m ddp_tokens.trainers.run bare_ddp --output results/audit/runs/bare_ddp.json
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import write_json
from ddp_tokens.launchers import module_and_options
from ddp_tokens.options import run_as_program
from ddp_tokens.steps import PROJECT_ROOT
from ddp_tokens.trainers.cases import BY_NAME, Case
from ddp_tokens.watching import SNAKEMAKE, end_with, sign_as, snakemake_of

PROGRAM = "ddp_tokens.trainers.run"
EXAMPLES = PROJECT_ROOT / "examples"
RANKS = 2
WITHIN_S = 600
SHOWN_LINES = 20
# One thread for each rank; and nothing of a trainer may ask its maker's servers.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
OF_LAUNCHER = re.compile(r"[EW]\d{4} .*torch/distributed/elastic/")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__, allow_abbrev=False)
    parser.add_argument("case", choices=list(BY_NAME), metavar="CASE", help="a name in trainers/cases.py")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file that is written")
    parser.add_argument("--results", type=Path, default=PROJECT_ROOT / "results" / "minimum", help="what is trained on")
    own = parser.parse_args(arguments)
    end_with(snakemake_of(os.environ))
    run(BY_NAME[own.case], own.results, own.output)
    return 0


def run(case: Case, results: Path, output: Path, examples: Path = EXAMPLES) -> None:
    """Write `output`. Raises EvidenceError, after the script's last lines on standard error, where the script fails."""
    problem = missing(case.package)
    if problem:
        write_json(output, {"version": None, "problem": problem})
        return
    output.unlink(missing_ok=True)  # what an earlier call left is no result of this one
    command = command_of(case, results, output, examples)
    with tempfile.TemporaryDirectory(prefix="ddp-tokens-") as folder, open(Path(folder) / "said", "wb") as said:
        code = _ended(command, said.fileno(), folder)
        lines = (Path(folder) / "said").read_text(errors="replace").splitlines()
    if code == 0 and output.is_file():
        return
    sys.stderr.writelines(f"{line}\n" for line in last_lines(lines))
    how = f"did not end within {WITHIN_S} s" if code is None else f"ended with exit code {code}"
    without = "" if code != 0 else " and wrote no result"
    raise EvidenceError(f"{case.name}: {examples / case.script} {how}{without}: look at its last lines above")


def missing(package: str) -> str | None:
    """One sentence where the package is not installed."""
    try:
        version(package)
    except PackageNotFoundError:
        found = False
    else:
        found = find_spec(package) is not None
    return None if found else f"{package} is not installed: install it with the other trainers by `make trainers`"


def command_of(case: Case, results: Path, output: Path, examples: Path = EXAMPLES) -> list[str]:
    launcher = [sys.executable, "-m", *module_and_options("torchrun", RANKS)]
    script = [str(examples / case.script), *case.arguments]
    return [*launcher, *script, "--results", str(results), "--output", str(output)]


def last_lines(lines: Sequence[str]) -> list[str]:
    """What the ranks wrote last, without what torchrun adds when one has failed."""
    end = next((index for index, line in enumerate(lines) if OF_LAUNCHER.match(line)), len(lines))
    return [line for line in (lines[:end] or lines) if line.strip()][-SHOWN_LINES:]


def _ended(command: Sequence[str], said: int, folder: str) -> int | None:
    """The exit code; None where the time was over. The ranks end with this process, which they take for Snakemake.
    `folder`: for temporary files, which torchrun and trainers would leave behind.
    """
    environment = dict(os.environ) | ENVIRONMENT | {"TMPDIR": folder}
    sign_as(SNAKEMAKE, environment)
    try:
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=WITHIN_S
        ).returncode
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
