"""Signals leave a wish and end nothing."""

import os
import signal
import subprocess
import sys

import pytest

from ddp_tokens.stopping import SIGNALS, Stop, Stopped, stop_on_signals


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_leaves_a_wish(number):
    stop = Stop()
    with stop_on_signals(stop):
        assert stop.signal == 0
        os.kill(os.getpid(), number)
        assert stop.signal == number


def test_the_first_signal_counts():
    stop = Stop()
    with stop_on_signals(stop):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGUSR1


def test_afterwards_signals_do_what_they_did_before():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with stop_on_signals(Stop()):
            pass
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


WAITING = """
import signal, time
from ddp_tokens.stopping import end_on_signals
signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
end_on_signals()
print("waiting", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_before_there_is_anything_to_save_a_signal_ends_the_process(number):
    """Whatever handler it has inherited from its launcher."""
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(number)
        assert process.wait(60) == -number
        assert process.stdout.read() == ""


def test_what_is_said(tmp_path):
    stopped = Stopped(signal.SIGTERM, 7, 50, tmp_path / "step-0007")
    assert stopped.exit_code == 143
    assert stopped.sentence == (
        f"stopped by SIGTERM after update 7 of 50, kept in {tmp_path}/step-0007: run the same command again to continue"
    )


def test_an_orphan_says_why(tmp_path):
    stop = Stop()
    stop.orphaned()
    stopped = Stopped(stop.signal, 7, 50, tmp_path)
    assert stopped.exit_code == 129
    assert stopped.sentence.startswith(
        "stopped by SIGHUP (what started one of the ranks has ended) after update 7 of 50"
    )
