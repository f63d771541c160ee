"""A window without a supervised unit must be refused by every rank alike, and change nothing."""

from pathlib import Path

from ddp_tokens.checks.verdict import PASS, Verdict, outcome
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
    named = all(error and reports[messages[0]]["window"] in error for error in errors)
    refused = named and len(errors) == world_size and len(set(errors)) == 1
    moved = [report["rank"] for report in reports.values() if report["parameters_moved"]]
    difference = {"messages": errors} if not refused else {"ranks_whose_parameters_moved": moved} if moved else None
    return [
        Verdict(
            case="empty_window",
            expected=PASS,
            outcome=outcome(difference is None),
            criterion=f"all {world_size} ranks raise the same error, which names the window, and no parameter moves",
            observed={
                "ranks_that_refused": sum(error is not None for error in errors),
                "ranks_whose_parameters_moved": moved,
                "messages": {str(report["rank"]): report["error"] for report in reports.values()},
            },
            evidence=digests(messages),
            first_difference=difference,
        )
    ]
