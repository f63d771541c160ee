"""Standard error without one known line. C++ writes there, past Python's warnings."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

STDERR = 2


@contextmanager
def stderr_without(text: str) -> Iterator[None]:
    """What is written to file descriptor 2 inside the block appears at its end, without the lines that hold `text`."""
    sys.stderr.flush()
    saved = os.dup(STDERR)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, STDERR)
            os.close(saved)
            held.seek(0)
            for line in held:
                if text.encode() not in line:
                    os.write(STDERR, line)


def first_forward_without(model: torch.nn.Module, text: str) -> None:
    """Keep one line off standard error in the model's next forward, and in no other."""
    inside = ExitStack()

    def before(*_: object) -> None:
        inside.enter_context(stderr_without(text))
        starts.remove()

    def after(*_: object) -> None:
        inside.close()
        ends.remove()

    starts = model.register_forward_pre_hook(before)
    ends = model.register_forward_hook(after, always_call=True)
