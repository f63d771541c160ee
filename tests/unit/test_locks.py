"""A lock is seen by other processes and ends with its holder, also when that is killed."""

import errno
import os
import subprocess
import sys
import time

import pytest

from ddp_tokens import locks
from ddp_tokens.errors import LaunchError
from ddp_tokens.locks import holders, lock_alone, lock_shared, share
from ddp_tokens.machine import this_machine

HOLD = """
import sys, time
from pathlib import Path
from ddp_tokens.locks import lock_alone, share
held = lock_alone(Path(sys.argv[1]))
if sys.argv[2] == "shared":
    assert share(held)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds the lock, alone or shared."""
    started = []

    def start(how="alone"):
        command = [sys.executable, "-c", HOLD, str(tmp_path / "lock"), how]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_one_process_at_a_time(tmp_path, holder):
    process = holder()
    assert lock_alone(tmp_path / "lock") is None
    assert lock_shared(tmp_path / "lock") is None
    assert holders(tmp_path / "lock") == f"process {process.pid}"


def test_the_lock_of_a_killed_process_is_free(tmp_path, holder):
    process = holder()
    process.kill()
    process.wait()
    with lock_alone(tmp_path / "lock") as held:
        assert held is not None
        assert len((tmp_path / "lock").read_text().split()) == 1  # the dead process is named no more


def test_several_that_share_keep_out_one_alone(tmp_path, holder):
    process = holder("shared")
    with lock_shared(tmp_path / "lock") as held:
        assert held is not None
        process.kill()
        process.wait()
        assert lock_alone(tmp_path / "lock") is None
    with lock_alone(tmp_path / "lock") as held:
        assert held is not None


def test_waiting_ends_when_the_holder_ends(tmp_path, holder):
    process = holder()
    ends = subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(0.5); os.kill({process.pid}, 9)"])
    asked = time.monotonic()
    with lock_alone(tmp_path / "lock", wait_s=60) as held:
        assert held is not None
    assert time.monotonic() - asked > 0.2  # it was held at first
    ends.wait()


def test_a_lock_file_that_its_holder_removes_locks_nobody_out_and_nobody_in(tmp_path):
    """The second process opened the file that the first removed: its lock would be seen by no third."""
    path = tmp_path / "lock"
    first = lock_alone(path)
    path.unlink()
    second = lock_alone(path)
    assert second is not None
    first.close()
    assert lock_alone(path) is None
    second.close()


def test_a_program_that_the_holder_starts_does_not_inherit_the_lock(tmp_path):
    held = lock_alone(tmp_path / "lock")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    held.close()
    with lock_alone(tmp_path / "lock") as again:
        assert again is not None
    child.communicate(b"\n")


def test_others_cannot_be_let_in_when_one_has_come_in_between(tmp_path, holder):
    """A shared lock is not given to who holds none while another process is alone."""
    holder()
    with open(tmp_path / "lock", "a+") as mine:
        assert not share(mine)


def test_a_file_system_without_locks_is_named_with_what_to_do(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(locks.fcntl, "flock", no_locks)
    with pytest.raises(LaunchError) as raised:
        lock_alone(tmp_path / "lock")
    assert str(raised.value) == (
        f"{tmp_path / 'lock'}: Function not implemented; its file system has no locks (flock), which keep two runs "
        "apart: use another, or mount it so"
    )


def test_holders_on_another_machine_are_named_with_it(tmp_path):
    (tmp_path / "lock").write_text(f"1@{this_machine()}\n12@b/boot\n99999999@{this_machine()}\n")
    assert holders(tmp_path / "lock") == "processes 1, 12 on host b"
