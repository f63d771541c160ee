"""Standard error without one known line. C++ writes there, past Python's warnings."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

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


def first_synchronized_forward_without(model: DistributedDataParallel, text: str) -> None:
    """Keep one line off standard error in the model's next forward outside of no_sync, and in no other."""
    inside = ExitStack()

    def before(*_: object) -> None:
        if model.require_backward_grad_sync:
            starts.remove()
            inside.enter_context(stderr_without(text))
            ends.append(model.register_forward_hook(after, always_call=True))

    def after(*_: object) -> None:
        ends.pop().remove()
        inside.close()

    ends: list[RemovableHandle] = []
    starts = model.register_forward_pre_hook(before)
