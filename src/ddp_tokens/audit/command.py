"""Audit a script as it is: its first optimizer, and the module that this one updates.

    torchrun --standalone --nproc-per-node=2 -m ddp_tokens.audit --loss causal-lm -- train.py ARGUMENTS

The report is printed when the script ends, however it ends. Exit codes: 0 the gradient is that of the objective; 1 it
is not; 3 that cannot be told; 2 it could not be audited; the script's own, where that is not 0.
"""

import argparse
import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ddp_tokens.audit.attach import Listener
from ddp_tokens.audit.losses import NAMED, LossSum, loss_sum_of
from ddp_tokens.audit.report import Report
from ddp_tokens.audit.searching import Search
from ddp_tokens.audit.watched import Watched
from ddp_tokens.check_settings import Tolerances
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS
from ddp_tokens.errors import AuditError

PROGRAM = "ddp_tokens.audit"
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}


class Enough(SystemExit):
    """Ends the script after the last window, where that is asked for."""


def main(arguments: Sequence[str]) -> int:
    own, script = parsed(arguments)
    loss_sum = loss_named(own.loss)

    def listen(module: nn.Module, watched: Watched) -> Listener:
        return Listener(
            module,
            None,
            loss_sum,
            own.windows,
            Tolerances(),
            own.record_mib,
            own.timeout,
            watched=watched,
            after_last=stop if own.stop else None,
        )

    search = Search(listen, own.watch, own.timeout)
    code = 1
    try:
        with search.searching():
            code = run(script)
    finally:
        if code and search.found is not None and search.found.report.windows:
            tell(search.found.report, own.output)  # what was found before the script failed
    if code:
        return code
    listener = search.require_found()
    tell(listener.report, own.output)
    return EXIT_CODES[listener.report.outcome]


def parsed(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options, and the script with its arguments."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="torchrun ... -m ddp_tokens.audit [options] -- SCRIPT.py [arguments]   (or: -- -m MODULE [arguments])",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--loss",
        default="causal-lm",
        help=f"the objective: {', '.join(NAMED)}, or FILE.py:FUNCTION or MODULE:FUNCTION (default: causal-lm)",
    )
    parser.add_argument("--windows", type=int, default=2, help="how many updates are audited (default: 2)")
    parser.add_argument("--output", type=Path, help="write the report as JSON to this file too")
    parser.add_argument("--stop", action="store_true", help="end the script after the last audited window")
    parser.add_argument(
        "--watch", action="store_true", help="labels are no input of the module: take batches from the DataLoaders"
    )
    parser.add_argument("--record-mib", type=int, default=1024, help="how much of a window's inputs a rank keeps")
    parser.add_argument("--timeout", type=int, default=300, help="seconds that a rank waits for others at its update")
    arguments = list(arguments)
    if "--" not in arguments or arguments[-1] == "--":
        if {"-h", "--help"} & set(arguments):
            parser.parse_args(["--help"])
        parser.error("no script: give it after --, as in: -- train.py --epochs 1")
    place = arguments.index("--")
    return parser.parse_args(arguments[:place]), arguments[place + 1 :]


def loss_named(name: str) -> LossSum:
    """A named loss, or the function of a file or module. Raises AuditError where there is none."""
    if ":" not in name:
        return loss_sum_of(name)
    where, _, function = name.rpartition(":")
    try:
        module = _module_of(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (ImportError, OSError) as error:
        raise AuditError(f"--loss {name}: {where} cannot be imported ({error}): give FILE.py:FUNCTION") from error
    if not hasattr(module, function):
        raise AuditError(f"--loss {name}: {where} has no function {function}: define {function}(outputs, batch)")
    return loss_sum_of(getattr(module, function))


def _module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError("no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def run(script: Sequence[str]) -> int:
    """As `python` would, in this process: its exit code. Its own errors pass through."""
    is_module = script[0] == "-m"
    name, arguments = (script[1], script[2:]) if is_module else (script[0], script[1:])
    if not is_module and not Path(name).is_file():
        raise AuditError(f"{name} is no file: give the script after --, with its path")
    before, path = sys.argv, list(sys.path)
    sys.argv = [name, *arguments]
    sys.path.insert(0, os.getcwd() if is_module else str(Path(name).resolve().parent))
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except Enough:
        return 0
    except SystemExit as end:
        return _exit_code(end)
    finally:
        sys.argv, sys.path[:] = before, path
    return 0


def _exit_code(end: SystemExit) -> int:
    if isinstance(end.code, str):
        sys.stderr.write(f"{end.code}\n")
        return 1
    return int(end.code or 0)


def stop() -> None:
    raise Enough(0)


def tell(report: Report, output: Path | None, write: Callable[[str], Any] = print) -> None:
    """Rank 0 says it for all."""
    if report.is_main:
        write(f"{PROGRAM}: {report.text()}")
        if output is not None:
            report.save(output)
            write(f"wrote {output}")
