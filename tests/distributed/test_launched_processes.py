"""ddp_tokens.launch, ddp_tokens.spawn and torchrun: exit codes, what is printed, and that nobody is left behind."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ddp_tokens.errors import ConfigError
from ddp_tokens.faults import OUTLIVE_S, wait_until_gone
from ddp_tokens.files import read_json, sha256
from ddp_tokens.options import run_as_program
from tests.distributed.tiny import STEPS, Tiny

# Rank 1 says through a pipe that it waits, for ever; only then does rank 0 do what is under test.
# Where both ranks refuse, they wait for each other and ignore the launcher's wish to end the slower one, so that both
# always speak.
MODULE = """
import os, signal, time
from pathlib import Path
from ddp_tokens.errors import ConfigError

def main(arguments):
    what, folder = arguments
    rank, pipe = int(os.environ["RANK"]), Path(folder) / "pipe"
    if what == "refuse":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (Path(folder) / f"here-{rank}").touch()
        while len(list(Path(folder).glob("here-*"))) < 2:
            time.sleep(0.01)
        raise ConfigError("this is not allowed")
    if rank == 1:
        (Path(folder) / "session").write_text(str(os.getsid(0)))
        (Path(folder) / "waiting").write_text(str(os.getpid()))
        pipe.write_text("waiting")
        signal.pause()
    pipe.read_text()
    if what.startswith("SIG"):
        os.kill(os.getppid(), getattr(signal, what))
        signal.pause()
    if what == "leave":
        return 7
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ArithmeticError("rank 0 went wrong")
"""
TIME_LIMIT_S = 100
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nnodes=1", "--nproc-per-node=2"],
    "fork": ["ddp_tokens.launch", "--nproc-per-node=2"],
    "spawn": ["ddp_tokens.spawn", "--nproc-per-node=2"],
}


@pytest.fixture(scope="module", params=["fork", "spawn"])
def launched(request, tmp_path_factory):
    """What the ranks do -> the launcher's end and the folder; launched once for each."""
    done: dict[str, tuple[subprocess.CompletedProcess[str], Path]] = {}

    def of(what: str) -> tuple[subprocess.CompletedProcess[str], Path]:
        if what not in done:
            folder = tmp_path_factory.mktemp(what)
            (folder / "faults.py").write_text(MODULE)
            os.mkfifo(folder / "pipe")
            command = ["-m", *LAUNCHERS[request.param], "-m", "faults", what, str(folder)]
            done[what] = run(command, folder), folder
        return done[what]

    return of


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
        start_new_session=True,
    )


def assert_waiting_rank_ended(folder: Path) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "waiting").read_text()), 0)


def test_a_user_error_is_one_sentence_per_rank_and_exit_code_2(launched):
    done, _ = launched("refuse")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("faults: this is not allowed") == 1
    assert done.stderr.count("faults, rank 1: this is not allowed") == 1


class Pieces:
    """A stream that keeps what it is given piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def write(self, piece: str) -> None:
        self.pieces.append(piece)

    def flush(self) -> None:
        pass


def test_a_sentence_and_its_line_end_are_written_at_once(monkeypatch):
    """Otherwise two ranks that refuse at the same time end up in one line."""

    def refuse(arguments: list[str]) -> int:
        raise ConfigError("this is not allowed")

    stream = Pieces()
    monkeypatch.setattr(sys, "stderr", stream)
    assert run_as_program("program", refuse, []) == 2
    assert stream.pieces == ["program: this is not allowed\n"]


def test_any_other_error_shows_its_traceback_and_ends_the_siblings(launched):
    done, folder = launched("raise")
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "in main\n" in done.stderr
    assert "\nArithmeticError: rank 0 went wrong\n" in done.stderr
    assert_waiting_rank_ended(folder)


def test_a_rank_ended_by_a_signal_is_named_and_its_siblings_end(launched):
    done, folder = launched("die")
    assert done.returncode == 1, done.stderr
    [program] = {arguments[0] for arguments in LAUNCHERS.values()} & set(done.args)
    assert f"{program}: rank 0 was ended by signal 9\n" in done.stderr
    assert_waiting_rank_ended(folder)


@pytest.mark.parametrize("what", ["raise", "die"])
def test_siblings_that_the_launcher_ends_say_nothing(launched, what):
    done, _ = launched(what)
    assert done.stderr.count("Traceback") == {"raise": 1, "die": 0}[what]
    assert "SIGTERM" not in done.stderr


def test_the_exit_code_is_that_of_the_first_rank_that_failed(launched):
    """Rank 0 ends with 7, and then the launcher ends rank 1, which has no exit code of its own."""
    done, folder = launched("leave")
    assert done.returncode == 7, done.stderr
    assert done.stderr == ""
    assert_waiting_rank_ended(folder)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_a_signal_to_the_launcher_ends_ranks_that_have_no_answer_to_it(tmp_path, name):
    """Training has an answer, see test_killed_launches."""
    (tmp_path / "faults.py").write_text(MODULE)
    os.mkfifo(tmp_path / "pipe")
    done = run(["-m", *LAUNCHERS["spawn"], "-m", "faults", name, str(tmp_path)], tmp_path)
    assert done.returncode == 128 + getattr(signal, name)
    assert done.stderr == ""
    assert_waiting_rank_ended(tmp_path)


def of_session(session: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            found += [int(path.name)] * (os.getsid(int(path.name)) == session)
    return found


@pytest.mark.parametrize("launcher", ["fork", "spawn"])
def test_a_killed_launcher_leaves_no_process(tmp_path, launcher):
    """Nor multiprocessing's helpers. The ranks do not watch anybody: the kernel ends them."""
    (tmp_path / "faults.py").write_text(MODULE)
    os.mkfifo(tmp_path / "pipe")
    assert of_session(os.getsid(0))  # the measurement sees a session's processes
    done = run(["-m", *LAUNCHERS[launcher], "-m", "faults", "SIGKILL", str(tmp_path)], tmp_path)
    assert done.returncode == -signal.SIGKILL
    session = int((tmp_path / "session").read_text())
    assert session != os.getsid(0)
    assert wait_until_gone(of_session(session), OUTLIVE_S) == []


def test_no_rank_is_no_number_of_ranks(launched, tmp_path):
    done, _ = launched("refuse")
    refused = run([*done.args[1:3], "--nproc-per-node=0", "-m", "faults"], tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.endswith(f"{done.args[2]}: error: --nproc-per-node must be 1 or more, not 0\n")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_training_takes_the_same_path_whoever_starts_the_ranks(copy_of, launcher):
    """Against ranks that the test's helper starts and that meet at a file: the checkpoints are the same bytes."""
    tiny: Tiny = copy_of(2)
    manifest = tiny.at.checkpoint("continuous", STEPS) / "manifest.json"
    before = read_json(manifest)
    manifest.unlink()
    done = run(["-m", *LAUNCHERS[launcher], "-m", "ddp_tokens.train", *tiny.arguments("--continuous")], tiny.folder)
    assert done.returncode == 0, done.stderr
    assert read_json(manifest) == before
    assert f"update {STEPS} of {STEPS}" in done.stderr


def gradients_by(launcher: str, tiny: Tiny) -> dict[str, str]:
    """Digests of the files that ddp_tokens.gradients makes."""
    made = [tiny.at.root / "gradients", tiny.at.window, tiny.at.zero_window]
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)
    done = run(["-m", *LAUNCHERS[launcher], "-m", "ddp_tokens.gradients", *tiny.arguments()], tiny.folder)
    assert done.returncode == 0, done.stderr
    return {str(path): sha256(path) for folder in made for path in sorted(folder.rglob("*")) if path.is_file()}


def test_gradients_are_the_same_bytes_from_forked_and_spawned_ranks(copy_of):
    """Two formulas in two dtypes, and two files of each rank."""
    tiny = copy_of(2)
    forked = gradients_by("fork", tiny)
    assert len(forked) == 2 * 2 + 2 * 2
    assert gradients_by("spawn", tiny) == forked
