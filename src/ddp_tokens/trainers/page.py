"""The audited trainers as one page that needs nothing else: problems first, then every setting. No torch."""

from typing import Any

from ddp_tokens.report import number_text, render
from ddp_tokens.trainers.rows import Row
from ddp_tokens.trainers.table import Trainers, headline, problems, row_of

OF_MACHINE = {"cpu": "CPU", "cores": "cores", "python": "Python", "torch": "torch"}


def trainers_page(trainers: Trainers) -> str:
    settings = {row.case.name: f"{row.case.trainer}: {row.case.setting}" for row in trainers.rows}
    return render(
        "trainers",
        "audit",
        headline=headline(trainers.rows),
        problems=problems(trainers.rows),
        rows=[_row(row) for row in trainers.rows],
        settings=settings,
        machine={OF_MACHINE.get(name, name): text for name, text in trainers.machine.items()},
    )


def _row(row: Row) -> dict[str, Any]:
    return row_of(row) | {
        "package": row.case.package,
        "is_run": row.is_run,
        "verdict": row.verdict,
        "where": _where(row),
        "of_tolerance": number_text(float(f"{row.of_tolerance:.2g}")),
        "notes": row.notes,
    }


def _where(row: Row) -> str:
    """Which of the numbers of a run the row states."""
    parameter = row.verdict.observed.get("parameter")
    of_windows = f"window {row.window} of {row.windows}" if row.is_run else ""
    return f"{of_windows}, {parameter}" if parameter else of_windows
