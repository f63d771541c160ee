"""The wish to stop after the current update: by a signal, or because whoever started this process has ended."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
SIGNALLED = 128


@dataclass
class Stop:
    """`signal`: the first that asked to stop; 0 while nobody has."""

    signal: int = 0

    def wish(self, number: int, frame: FrameType | None = None) -> None:
        self.signal = self.signal or number

    def orphaned(self) -> None:
        self.wish(signal.SIGHUP)


@dataclass(frozen=True)
class Stopped:
    """A run that has stopped early. `checkpoint` holds all that it did, `step` updates of `until`."""

    signal: int
    step: int
    until: int
    checkpoint: Path

    @property
    def exit_code(self) -> int:
        return SIGNALLED + self.signal

    @property
    def sentence(self) -> str:
        name = signal.Signals(self.signal).name
        why = " (what started one of the ranks has ended)" if self.signal == signal.SIGHUP else ""
        return (
            f"stopped by {name}{why} after update {self.step} of {self.until}, kept in {self.checkpoint}: "
            "run the same command again to continue"
        )


def end_on_signals() -> None:
    """While there is nothing to save, end at once, even while waiting for other ranks. For the main thread."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """Inside the block SIGTERM, SIGUSR1, SIGINT and SIGHUP only leave a wish. For the main thread."""
    before = {number: signal.signal(number, stop.wish) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
