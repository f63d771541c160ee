"""A window without a supervised unit must be refused by every rank alike, and change nothing."""

from pathlib import Path

from ddp_tokens.checks.verdict import Verdict, outcome
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests, read_json


def check_zero_window(directory: Path) -> list[Verdict]:
    """`directory`: one rank-R.json per rank, as the gradients step leaves it."""
    messages = sorted(directory.glob("rank-*.json"))
    if not messages:
        raise EvidenceError(f"{directory} holds no rank-R.json: run gradients again")
    reports = {path: read_json(path) for path in messages}
    world_size = reports[messages[0]]["world_size"]
    errors = [report["error"] for report in reports.values()]
    refused = len(reports) == world_size and None not in errors and len(set(errors)) == 1
    moved = [report["rank"] for report in reports.values() if report["parameters_moved"]]
    return [
        Verdict(
            case="empty_window",
            expected="pass",
            outcome=outcome(refused and not moved),
            criterion=f"all {world_size} ranks raise the same error, which names the window, and no parameter moves",
            observed={
                "ranks_that_refused": sum(error is not None for error in errors),
                "ranks_whose_parameters_moved": moved,
                "messages": {str(report["rank"]): report["error"] for report in reports.values()},
            },
            evidence=digests(messages),
            first_difference=None if refused else {"messages": errors},
        )
    ]
