"""Ask torch in a process of its own: a driver or a GPU can make the process that asks hang or die.

python -m ddp_tokens.probing FILE writes a JSON line per fact, each at once; torch is imported there only.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddp_tokens.files import from_json, json_line
from ddp_tokens.options import run_as_program
from ddp_tokens.watching import SNAKEMAKE, end_with, sign_as, snakemake_of

PROGRAM = "ddp_tokens.probing"
# Importing torch takes seconds, a GPU's first use some more: tens of each on a busy machine with many GPUs.
WITHIN_S = 300
ENDED_WITHIN_S = 5


def main(arguments: Sequence[str]) -> int:
    """In the process of its own."""
    end_with(snakemake_of(os.environ))
    from ddp_tokens.torch_facts import facts

    with open(arguments[0], "w") as stream:
        for kind, values in facts():
            stream.write(json_line({"kind": kind, **values}))
            stream.flush()
    return 0


def ask(within_s: float = WITHIN_S, command: Sequence[str] = (sys.executable, "-m", PROGRAM)) -> dict[str, Any]:
    """`torch`: facts, or only `error`, the text of what went wrong; `gpus`: a list of facts, by index."""
    with tempfile.TemporaryDirectory(prefix="ddp-tokens-") as folder:
        path = Path(folder) / "facts.jsonl"
        problem = _run([*command, str(path)], within_s)
        lines = path.read_text().split("\n")[:-1] if path.exists() else []  # the rest may be half a line
    return concluded([from_json(line) for line in lines], problem)


def concluded(told: Sequence[dict[str, Any]], problem: str | None) -> dict[str, Any]:
    """`problem`: how the process ended where that was no good end: the fault of what was being tried."""
    by_kind: dict[str, list[dict[str, Any]]] = {"torch": [], "trying": [], "gpu": []}
    for fact in told:
        by_kind[fact["kind"]].append({name: value for name, value in fact.items() if name != "kind"})
    torch, gpus = by_kind["torch"], by_kind["gpu"]
    if not torch:
        return {"torch": {"error": problem or "it said nothing"}, "gpus": []}
    if problem and len(by_kind["trying"]) > len(gpus):
        gpus.append({"index": by_kind["trying"][-1]["index"], "error": problem})
    untried = range(len(gpus), torch[0]["gpus"])
    gpus += [{"index": index, "error": "not tried, since the GPU before it ended the trial"} for index in untried]
    return {"torch": torch[0], "gpus": gpus}


def _run(command: Sequence[str], within_s: float) -> str | None:
    """What went wrong, in one line. The process ends with this one."""
    environment = dict(os.environ)
    sign_as(SNAKEMAKE, environment)
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    try:
        _, said = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # a driver that hangs holds it even so
            process.communicate(timeout=ENDED_WITHIN_S)
        return f"no answer within {within_s:g} s"
    except BaseException:
        process.kill()
        raise
    if process.returncode < 0:
        return f"the process that used it was ended by signal {-process.returncode}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return (lines[-1] if lines else f"exit code {process.returncode}") if process.returncode else None


if __name__ == "__main__":
    raise SystemExit(run_as_program(PROGRAM, main, sys.argv[1:]))
