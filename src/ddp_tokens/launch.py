"""Start the ranks of one host by torch's elastic agent, as forked copies of one process that has imported torch.

    python -m ddp_tokens.launch --nproc-per-node=2 -m ddp_tokens.train --config config/minimum.yaml

sets the same variables as `torchrun --standalone` does, and passes SIGTERM and SIGUSR1 on to the ranks. torchrun
imports torch once per rank and once for itself, and each rank imports torch's compiler when it first makes an
optimizer; here that happens once. CPU only: a forked process cannot use CUDA.
"""

import argparse
import importlib
import logging
import math
import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Mapping, Sequence
from multiprocessing import synchronize
from types import FrameType

from ddp_tokens.launchers import HOST
from ddp_tokens.options import run_as_program
from ddp_tokens.stopping import SIGNALLED
from ddp_tokens.watching import LAUNCHER, end_with, sign_as, snakemake_of

PROGRAM = "ddp_tokens.launch"
AWAKE_EVERY_S = 0.02
# A rank has said what is wrong by itself; these would add a page about the same exit code.
SILENCED_LOGGERS = ("torch.distributed.elastic.multiprocessing.api", "torch.multiprocessing.spawn")
# Else torch warns of each connection whose other end has no name, and of each try to reach a host that is late. It
# reads this when it is imported.
QUIETER = {"TORCH_CPP_LOG_LEVEL": "ERROR"}


def main(arguments: Sequence[str]) -> int:
    own = parsed(PROGRAM, arguments, __doc__)
    return launch(own.module, own.arguments, own.nproc_per_node)


def parsed(program: str, arguments: Sequence[str], description: str | None) -> argparse.Namespace:
    """A launcher's command line: `nproc_per_node`, `module`, `arguments`. From here on it ends with its Snakemake."""
    parser = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
    parser.add_argument("--nproc-per-node", type=int, required=True, help="number of ranks")
    parser.add_argument("-m", action="store_true", required=True, help="run a module, as with torchrun")
    parser.add_argument("module", help="a module with main(arguments) -> exit code")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to the module")
    own = parser.parse_args(arguments)
    if own.nproc_per_node < 1:
        parser.error(f"--nproc-per-node must be 1 or more, not {own.nproc_per_node}")
    end_with(snakemake_of(os.environ), first=lambda: os.kill(os.getpid(), signal.SIGTERM))
    for name, value in QUIETER.items():
        os.environ.setdefault(name, value)
    return own


def launch(module: str, arguments: Sequence[str], ranks: int) -> int:
    """Run `module`.main(arguments) in `ranks` processes; return the exit code of the first that failed, or 0."""
    import torch._dynamo  # noqa: F401  (imported once here, instead of by the optimizer in every rank)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    importlib.import_module(module)
    signal.signal(signal.SIGUSR1, pass_on)  # torch's agent passes SIGTERM, SIGINT and SIGHUP on by itself
    sign_as(LAUNCHER, os.environ)
    for name in SILENCED_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint=f"{HOST}:0",
        local_addr=HOST,
        start_method="fork",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, run_rank)(module, list(arguments))
    except ChildFailedError as error:
        name_killed_ranks(PROGRAM, {rank: failure.exitcode for rank, failure in error.failures.items()})
        return max(1, int(error.get_first_failure()[1].exitcode))
    except SignalException as stop:
        return SIGNALLED + int(stop.sigval)
    return 0


def pass_on(number: int, frame: FrameType | None) -> None:
    """The agent answers this exception by sending the signal to its ranks and waiting for them."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    raise SignalException(f"signal {number}", sigval=signal.Signals(number))


def name_killed_ranks(program: str, exit_codes: Mapping[int, int], told: int = signal.SIGTERM) -> None:
    """Say for ranks that could not: a signal ended them, neither SIGTERM nor `told`, by which launchers end ranks."""
    for rank, code in sorted(exit_codes.items()):
        if code < 0 and -code not in (signal.SIGTERM, told):
            print(f"{program}: rank {rank} was ended by signal {-code}", file=sys.stderr)


def run_rank(module: str, arguments: Sequence[str]) -> None:
    """In a rank: `module`.main(arguments), and end with its exit code where that is not 0."""
    try:
        code = run_as_program(module, importlib.import_module(module).main, arguments)
    except Exception as error:
        told = getattr(error, "sigval", None)  # of the SignalException by which torch's agent ends a rank
        if told is None:
            traceback.print_exc()
        code = 1 if told is None else SIGNALLED + told
    sys.stderr.flush()
    if code:
        sys.exit(code)
    # Now torch lets the rank sleep until the launcher has its result; if it were killed there, that would never go on.
    synchronize.Event.wait = wait_awake  # type: ignore[assignment, method-assign]


def wait_awake(event: synchronize.Event, timeout: float | None = None) -> bool:
    """As Event.wait, without its sleep: who sets an event waits for each process that sleeps there to wake up."""
    deadline = time.monotonic() + (math.inf if timeout is None else timeout)
    while not event.is_set():
        if time.monotonic() >= deadline:
            return False
        time.sleep(AWAKE_EVERY_S)
    return True


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
