"""Kill training at random instants, start it again by the same command, and compare what it leaves in the end.

python -m ddp_tokens.faults --kills 100 --config config/controls.yaml --steps 40 --checkpoint-every 5

Each start is the launcher with its ranks, as a copy of one process that has imported torch. The experiment is prepared
and trained in a temporary folder; nothing is written into results/. CPU only.
"""

import argparse
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ddp_tokens import launch, train
from ddp_tokens.checkpoint_files import verify
from ddp_tokens.config import Experiment
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.errors import CheckpointError
from ddp_tokens.files import digests, write_json
from ddp_tokens.layout import Layout
from ddp_tokens.options import parse, run_as_program
from ddp_tokens.prepare import prepare
from ddp_tokens.reference import write_references
from ddp_tokens.steps import dump

PROGRAM = "ddp_tokens.faults"
RUN = "continuous"
ONE_RANK, ALL_RANKS, LAUNCHER = "one rank", "all ranks", "launcher"
VICTIMS = (ONE_RANK, ALL_RANKS, LAUNCHER)
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)
MOST_KILLS_OF_A_RUN = 3
OUTLIVE_S = 10.0
LONGEST_S = 300.0
PRELOADED = ["torch._dynamo", "ddp_tokens.launch", "ddp_tokens.reference", "ddp_tokens.train"]
AT_UPDATE = re.compile(r"^update (\d+) of", re.MULTILINE)
CONTINUED = re.compile(r"^continuing after update (\d+) of", re.MULTILINE)


@dataclass(frozen=True)
class Kill:
    """One row of the table. `update`: the last that was done, None before training began. `kept`: the update of the
    newest whole working checkpoint after the kill, 0 for none. `continued`: the update after which the next start went
    on, None when it was killed before it began. `equal`: are the run's outputs, in the end, those of the undisturbed
    one?
    """

    victim: str
    signal: str
    update: int | None
    kept: int = 0
    continued: int | None = None
    equal: bool = False


@dataclass(frozen=True)
class Trial:
    """One run of an experiment that is prepared at `at`, and how it is started."""

    context: ForkServerContext
    config: Path
    at: Layout
    world_size: int

    @property
    def command(self) -> list[str]:
        """The launcher's arguments: the same for every start."""
        own = ["--config", str(self.config), "--results", str(self.at.root.parent), "--continuous"]
        return [f"--nproc-per-node={self.world_size}", "-m", train.PROGRAM, *own]

    @property
    def output(self) -> Path:
        return self.config.with_name("output.txt")

    @contextmanager
    def started(self) -> Iterator[BaseProcess]:
        """The launcher's process. Raises TimeoutError when it, or a rank of it, is there much longer than it may be."""
        process = self.context.Process(target=launch_writing_to, args=(str(self.output), self.command))
        process.start()
        try:
            yield process
            process.join(LONGEST_S)
            if process.is_alive():
                raise TimeoutError(f"the launcher did not end within {LONGEST_S:.0f} s:\n{self.output.read_text()}")
        finally:
            process.kill()

    def outcome(self) -> dict[str, str]:
        """Path -> digest of what the run delivered, and of what it should have removed."""
        return digests(path for path in (self.at.root / "runs").rglob("*") if path.is_file())


def launch_writing_to(output: str, command: Sequence[str]) -> None:
    """In the launcher's own process."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    sys.exit(launch.main(command))


def make_trial(experiment: Experiment, folder: Path) -> Trial:
    """Prepare the experiment in a folder of its own."""
    context = multiprocessing.get_context("forkserver")
    at, config = Layout(folder / "results" / experiment.name), folder / f"{experiment.name}.yaml"
    write_json(config, dump(experiment) | {"log_interval": 1})  # the table shows at which update the kill came
    prepare(experiment, at.rows, at.lock, at.plan)
    process = context.Process(target=_write_references, args=(str(config), str(at.root)))
    process.start()
    process.join()
    return Trial(context, config, at, experiment.world_size)


def _write_references(config: str, root: str) -> None:
    write_references(load_experiment(config), Layout(Path(root)))


def undisturbed(trial: Trial) -> tuple[dict[str, str], float]:
    """What the run delivers when nobody kills it, and the seconds from its start to its end."""
    began = time.monotonic()
    with trial.started() as process:
        pass
    if process.exitcode:
        raise ChildProcessError(f"the undisturbed run failed:\n{trial.output.read_text()}")
    return trial.outcome(), time.monotonic() - began


def kill_one_run(trial: Trial, kills: int, draw: random.Random, seconds: float, expected: dict[str, str]) -> list[Kill]:
    """Start the run from nothing, kill it `kills` times, each after up to `seconds`, and let it end."""
    shutil.rmtree(trial.at.root / "runs", ignore_errors=True)
    rows: list[Kill] = []
    while True:
        with trial.started() as process:
            killed = None
            if len(rows) < kills:
                process.join(draw.uniform(0, seconds))
                killed = kill_random(process, draw) if process.is_alive() else None
        said = trial.output.read_text()
        at_update, continued = _last(AT_UPDATE, said), _last(CONTINUED, said)
        if rows and rows[-1].continued is None and (at_update is not None or killed is None):
            rows[-1] = replace(rows[-1], continued=continued or 0)
            if rows[-1].continued != rows[-1].kept:
                raise ChildProcessError(f"update {rows[-1].kept} was kept, but the run went on otherwise:\n{said}")
        if killed is not None:
            rows.append(Kill(*killed, update=continued if at_update is None else at_update, kept=newest(trial.at)))
        elif process.exitcode == 0:
            break
        else:
            raise ChildProcessError(f"the run did not continue:\n{said}")
    found = trial.outcome()
    equal = found == expected
    for path in sorted(path for path in {*found, *expected} if found.get(path) != expected.get(path)):
        print(f"not as in the undisturbed run: {path}", file=sys.stderr)
    return [replace(row, equal=equal) for row in rows]


def kill_random(launcher: BaseProcess, draw: random.Random) -> tuple[str, str]:
    """Kill one of `VICTIMS`, the launcher while there is no rank. Raises TimeoutError when a rank outlives it."""
    assert launcher.pid is not None
    ranks = children_of(launcher.pid)
    victim = draw.choice(VICTIMS) if ranks else LAUNCHER
    number = draw.choice(SIGNALS)
    hit = {ONE_RANK: ranks[-1:] if draw.random() < 0.5 else ranks[:1], ALL_RANKS: ranks, LAUNCHER: [launcher.pid]}
    for process in hit[victim]:
        with suppress(ProcessLookupError):
            os.kill(process, number)
    launcher.join(LONGEST_S)
    left = wait_until_gone(ranks, OUTLIVE_S)
    if left:
        raise TimeoutError(f"{len(left)} ranks are there {OUTLIVE_S:.0f} s after {number.name} of {victim}")
    return victim, number.name


def newest(at: Layout) -> int:
    """The update of the newest whole working checkpoint, 0 for none."""
    steps = [0]
    for checkpoint in (at.root / "runs").glob(f".{RUN}.*/step-*"):
        with suppress(CheckpointError):
            steps.append(verify(checkpoint)["step"])
    return max(steps)


def children_of(parent: int) -> list[int]:
    return sorted(number for number, status in _processes() if status["PPid"] == str(parent))


def wait_until_gone(processes: Sequence[int], seconds: float) -> list[int]:
    """Those that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        running = {number for number, status in _processes() if not status["State"].startswith("Z")}
        left = [number for number in processes if number in running]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def _processes() -> Iterator[tuple[int, dict[str, str]]]:
    for path in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            lines = [line.partition(":") for line in path.read_text().splitlines()]
            yield int(path.parent.name), {name: value.strip() for name, _, value in lines}


def _last(pattern: re.Pattern[str], said: str) -> int | None:
    found = pattern.findall(said)
    return int(found[-1]) if found else None


def report(rows: Sequence[Kill]) -> int:
    """The table and its sentence; 1 when a run did not end as the undisturbed one."""
    columns: dict[str, Callable[[Kill], Any]] = {
        "victim": lambda row: row.victim,
        "signal": lambda row: row.signal,
        "update at the kill": lambda row: "starting" if row.update is None else row.update,
        "kept": lambda row: row.kept,
        "continued after": lambda row: "killed again" if row.continued is None else row.continued,
        "equal": lambda row: "yes" if row.equal else "NO",
    }
    print(tabulate([[show(row) for show in columns.values()] for row in rows], headers=list(columns)))
    equal = sum(row.equal for row in rows)
    print(f"\n{equal} of {len(rows)} bit-equal, {'none' if equal == len(rows) else len(rows) - equal} lost")
    return 0 if equal == len(rows) else 1


def main(arguments: Sequence[str]) -> int:
    experiment, _, own = parse(PROGRAM, arguments, "summary", _add_arguments, __doc__)
    draw = random.Random(own.seed)
    multiprocessing.set_forkserver_preload(PRELOADED)
    rows: list[Kill] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        trial = make_trial(experiment, Path(folder))
        expected, seconds = undisturbed(trial)
        while len(rows) < own.kills:
            kills = draw.randint(1, min(MOST_KILLS_OF_A_RUN, own.kills - len(rows)))
            rows += kill_one_run(trial, kills, draw, seconds, expected)
            print(f"{len(rows)} of {own.kills} kills", file=sys.stderr)
    return report(rows)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=100, help="number of kills (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="of victims, signals and instants (default: 0)")


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
