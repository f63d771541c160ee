"""The chain of an unpacked project, run by the Python and the packages that it asks for."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ddp_tokens.archive.layout import CONTROLS, RESULTS, results_of
from ddp_tokens.errors import ArchiveError

ENVIRONMENT_LOG, LOG = "rebuild-environment.log", "rebuild.log"
INSTALLED = ".venv/installed"
LOOK_EVERY_S, ENDS_WITHIN_S = 0.2, 60.0
# Beginnings of names of what would change the chain from outside, or belongs to another environment or launch.
NOT_PASSED_ON = (
    *("SNAKEMAKE", "PYTHON", "PIP_", "VIRTUAL_ENV", "CONDA_", "MPL", "MATPLOTLIBRC"),
    *("MAKE", "GNUMAKE", "MFLAGS"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_"),
)
# Where packages come from, by which way, and where pip keeps them.
PASSED_ON = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_CONFIG_FILE", "PIP_PROXY"),
    *("PIP_CERT", "PIP_CLIENT_CERT", "PIP_TRUSTED_HOST", "PIP_KEYRING_PROVIDER"),
    *("PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES", "PIP_CACHE_DIR", "PIP_NO_CACHE_DIR"),
)
CACHE = ".cache"
STAGE = re.compile(r"Job \d+: (?!\S+: settings of )(.+)")
RAISED = re.compile(r"(\w+(?:Error|Exception)) in file .*")
BAR = re.compile(r"={40,}")
LINES_TOLD = 3  # of a log
NOT_TOLD = ("CalledProcessError",)
WRITE_SETTINGS = (
    "import sys; from ddp_tokens.archive.collect import config_file; "
    "from ddp_tokens.config_reading import load_experiment; "
    "sys.stdout.write(config_file(load_experiment(sys.argv[1])))"
)
Told = Callable[[str], None]


@dataclass(frozen=True)
class Chain:
    """`python`: what runs it, in `folder`."""

    folder: Path
    python: Path
    environment: Mapping[str, str]

    def build(self, experiment: str, with_controls: bool, cores: int, told: Told) -> list[str]:
        """Tell each stage. Returns what Snakemake says went wrong; nothing where all was built."""
        targets = [f"{results_of(experiment)}/{name}" for name in ("summary.json", "gate.txt")]
        if with_controls:
            targets += [f"{RESULTS}/{CONTROLS}/{name}" for name in ("controls.json", "gate.txt")]
        command = [str(self.python), "-m", "snakemake", "--cores", str(cores), "--keep-going", *targets]

        def tell(line: str) -> None:
            stage = STAGE.fullmatch(line.strip())
            if stage:
                told(stage[1])

        log = self.folder / LOG
        return sentences_in(_said(log)) if run_logged(command, self.folder, self.environment, log, tell) else []

    def settings(self, experiment: str) -> str:
        """Every setting as the project itself reads config/EXP.yaml."""
        command = [str(self.python), "-c", WRITE_SETTINGS, f"config/{experiment}.yaml"]
        done = subprocess.run(
            command, cwd=self.folder, env=dict(self.environment), capture_output=True, text=True, errors="replace"
        )
        if done.returncode:
            raise ArchiveError(f"{self.folder}/config/{experiment}.yaml cannot be read: {last_line(done.stderr)}")
        return done.stdout


def with_this_python(folder: Path) -> Chain:
    """What is installed beside the Python that runs this, with the project's own source before it."""
    folder, python = folder.resolve(), Path(sys.executable)
    return Chain(folder, python, _of_chain(folder, python.parent) | {"PYTHONPATH": str(folder / "src")})


def with_own_environment(folder: Path) -> Chain:
    """The project's Makefile installs the packages of its lock below the folder.

    Raises ArchiveError with the last that it said.
    """
    folder = folder.resolve()
    if not (folder / "Makefile").is_file():
        raise ArchiveError("the archived source has no Makefile to install with: give --use-this-python")
    if shutil.which("make") is None:
        raise ArchiveError("make is not installed: install it, or give --use-this-python to install nothing")
    base = getattr(sys, "_base_executable", sys.executable)
    environment = passed_on(os.environ)
    log = folder / ENVIRONMENT_LOG
    if run_logged(["make", INSTALLED, f"PYTHON={base}"], folder, environment, log, lambda line: None):
        raise ArchiveError(
            f"the environment could not be made: {last_line(_said(log))} ({log} has all of it): the packages come "
            "over the network; give --use-this-python to install nothing, with the folder emptied first"
        )
    binaries = folder / ".venv" / "bin"
    return Chain(folder, binaries / "python", _of_chain(folder, binaries))


def _of_chain(folder: Path, binaries: Path) -> dict[str, str]:
    """Programs in `binaries` come before others; what Snakemake and matplotlib keep for later lies in the folder."""
    return passed_on(os.environ) | {
        "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}",
        "XDG_CACHE_HOME": str(folder / CACHE),
        "MPLCONFIGDIR": str(folder / CACHE / "matplotlib"),
    }


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Of an environment, what a rebuild may see."""
    return {
        name: value
        for name, value in environment.items()
        if name in PASSED_ON or not name.upper().startswith(NOT_PASSED_ON)
    }


def run_logged(command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, told: Told) -> int:
    """Run it, with all that it says in `log` and each line of it told. It ends with this process's being interrupted.

    It has a session of its own, so that Ctrl-C reaches it once, from here.
    """
    with open(log, "w") as written, open(log, errors="replace") as said, interruptible():
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with _ending(process):
            begun, ended = "", False
            while not ended:
                with suppress(subprocess.TimeoutExpired):
                    ended = process.wait(LOOK_EVERY_S) is not None
                *lines, begun = (begun + said.read()).split("\n")
                for line in lines:
                    told(line)
            return process.returncode


@contextmanager
def _ending(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Where the block is interrupted, the process ends too, and what it has started."""
    try:
        yield
    except BaseException:
        _signal(process, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN_S)
        _signal(process, signal.SIGKILL)
        process.wait()
        raise


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, unless they are ignored, as by nohup. For the main thread."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def sentences_in(output: str) -> list[str]:
    """What a failed Snakemake says went wrong: the logs of failed jobs that it shows, and errors of the Snakefile."""
    lines = output.splitlines()
    bars = [index for index, line in enumerate(lines) if BAR.fullmatch(line)]
    found = [_end_of(lines[start + 1 : end]) for start, end in zip(bars[::2], bars[1::2], strict=False)]
    for index, line in enumerate(lines[:-1]):
        raised = RAISED.fullmatch(line.strip())
        if raised and raised[1] not in NOT_TOLD:
            found.append(lines[index + 1].strip())
    return list(dict.fromkeys(filter(None, found))) or [last_line(output)]


def _end_of(lines: Sequence[str]) -> str:
    told = [" ".join(line.split()) for line in lines if line.strip()]
    return "; ".join(told[-LINES_TOLD:])


def _said(log: Path) -> str:
    return log.read_text(errors="replace")


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")
