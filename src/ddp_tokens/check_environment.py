"""What this machine has, and whether the experiment can run here; --dual tries two processes as well.

python -m ddp_tokens.cli check-environment --config config/minimum.yaml --dual

Tables on the terminal, results/NAME/environment.json, and exit code 1 where something fails, with one sentence on what
to repair first. A case is inconclusive where it cannot be told; that fails nothing.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ddp_tokens import dual
from ddp_tokens.checks.environment import check_environment, first_repair
from ddp_tokens.checks.verdict import INCONCLUSIVE, Verdict
from ddp_tokens.config import Experiment
from ddp_tokens.environment_tables import tables
from ddp_tokens.files import write_json
from ddp_tokens.layout import Layout
from ddp_tokens.machine_facts import machine_facts
from ddp_tokens.options import parse
from ddp_tokens.probing import ask
from ddp_tokens.steps import dump

STEP = "environment"
FAILED = 1


def main(program: str, arguments: Sequence[str]) -> int:
    experiment, at, own = parse(program, arguments, STEP, add_arguments, description=__doc__)
    machine, verdicts = examine(experiment, at, own.dual)
    print(tables(machine, verdicts))
    if machine["results_refused"] is None:
        write_json(at.environment, document(experiment, machine, verdicts))
        print(f"\nwrote {at.environment}", flush=True)
    repair = first_repair(verdicts)
    if repair:
        print(f"{program}: {repair}", file=sys.stderr)
    return FAILED if repair else 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dual",
        action="store_true",
        help="start two processes, whatever world_size is, each on its own device, and let them sum numbers",
    )


def examine(experiment: Experiment, at: Layout, with_two: bool) -> tuple[dict[str, Any], list[Verdict]]:
    """The machine's facts and the verdicts."""
    with dual.ending_by_signal():
        machine = machine_facts(at.root, os.environ) | ask()
        machine["dual"] = dual.start(experiment, machine["torch"]) if with_two else None
    machine["weights_bytes"] = at.initial.stat().st_size if at.initial.is_file() else None
    return machine, check_environment(experiment, machine, machine["dual"])


def document(experiment: Experiment, machine: Mapping[str, Any], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What results/EXP/environment.json holds."""
    judged = [asdict(verdict) for verdict in verdicts]
    return {"check": STEP, "settings": dump(experiment), "machine": machine, "verdicts": judged}


def conclusion(verdicts: Sequence[Verdict]) -> str:
    """One sentence, for a log."""
    unsure = sum(verdict.outcome == INCONCLUSIVE for verdict in verdicts)
    told = f", {unsure} of {len(verdicts)} cases cannot be told" if unsure else f", all {len(verdicts)} cases pass"
    return first_repair(verdicts) or f"nothing is seen to stand in the way{told}"
