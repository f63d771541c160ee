"""The end of a rank: what it waits for, and who waits for it."""

import multiprocessing
import os
import signal
from threading import Thread

import pytest

from ddp_tokens.launch import wait_awake

LONG_S = 30.0  # never waited for, unless something is wrong
FORK = multiprocessing.get_context("fork")


def wait(event, awake, here):
    here.set()
    wait_awake(event) if awake else event.wait()


def sets_after_a_kill(awake):
    """Whether an event can be set after one who waits for it was killed."""
    event, here = FORK.Event(), FORK.Event()
    waiting = FORK.Process(target=wait, args=(event, awake, here))
    waiting.start()
    assert here.wait(LONG_S)
    waiting.join(0.5)  # by now it waits
    os.kill(waiting.pid, signal.SIGKILL)
    waiting.join()
    setting = Thread(target=event.set, daemon=True)
    setting.start()
    setting.join(LONG_S if awake else 1.0)
    return not setting.is_alive()


def test_a_rank_that_is_killed_at_its_end_does_not_hold_up_the_launcher():
    assert sets_after_a_kill(awake=True)


def test_one_that_sleeps_there_would():
    """The fault: multiprocessing's own wait. When this fails, Python has changed, and wait_awake can go."""
    assert not sets_after_a_kill(awake=False)


def test_it_waits_until_the_event_is_set():
    event = FORK.Event()
    assert not wait_awake(event, timeout=0.1)
    waiting = FORK.Process(target=wait_awake, args=(event,))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    event.set()
    waiting.join(LONG_S)
    assert waiting.exitcode == 0
    assert wait_awake(event)


def test_a_rank_waits_so_after_its_work(monkeypatch, tmp_path):
    """In a process of its own: it is for all events of the rank, which has nothing else to wait for."""
    (tmp_path / "work.py").write_text("def main(arguments):\n    return int(arguments[0])\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [end_of("0"), end_of("3")] == [(0, True), (3, False)]


def end_of(code):
    from ddp_tokens.launch import run_rank

    receives, sends = FORK.Pipe(duplex=False)

    def rank():
        from multiprocessing import synchronize

        try:
            run_rank("work", [code])
        finally:
            sends.send(synchronize.Event.wait is wait_awake)

    process = FORK.Process(target=rank)
    process.start()
    awake = receives.recv() if receives.poll(LONG_S) else pytest.fail("the rank did not end")
    process.join(LONG_S)
    return process.exitcode, awake
