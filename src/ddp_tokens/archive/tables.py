"""Print the tables of an archive for a paper: every verdict, and the published run beside what was measured.

LaTeX is one tabular for each table and needs the package booktabs. Numbers have three significant digits; those of csv
have all.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddp_tokens.archive.arguments import add_archives
from ddp_tokens.archive.markup import latex_table, markdown_table
from ddp_tokens.archive.recorded import PublishedRow, RecordedVerdict, Run, opened
from ddp_tokens.archive.told import shown
from ddp_tokens.errors import ArchiveError
from ddp_tokens.report import number_text

VERDICTS, PUBLISHED = "verdicts", "published"
# Column -> the names under which checks observe it; a verdict has at most one of them.
NUMBERS: Mapping[str, tuple[str, ...]] = {
    "error": ("error",),
    "tolerance": ("tolerance",),
    "power": ("power",),
    "max abs difference": ("max_abs_difference", "max_abs_error"),
}
PUBLISHED_COLUMNS = ("quantity", "published", "measured", "comparable")
Table = tuple[Sequence[str], Sequence[Sequence[Any]]]


def main(program: str, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add_archives(parser)
    parser.add_argument("--format", choices=list(FORMATS), default="markdown", help="default: markdown")
    parser.add_argument("--table", choices=(VERDICTS, PUBLISHED), help="default: both, one after the other")
    asked = parser.parse_args(arguments)
    with opened(asked.archive, asked.limit) as run:
        tables = tables_of(run)
    names = [asked.table] if asked.table else list(tables)
    if PUBLISHED not in tables:
        sentence = f"{asked.archive}: no published values are known for an experiment of this kind"
        if asked.table == PUBLISHED:
            raise ArchiveError(f"{sentence}: ask for --table {VERDICTS}")
        print(f"{program}: {sentence}", file=sys.stderr)
    print("\n".join(FORMATS[asked.format](tables[name]) for name in names), end="")
    return 0


def tables_of(run: Run) -> dict[str, Table]:
    """By name; without PUBLISHED where there is nothing published to compare with."""
    summary = run.summary()
    published = {PUBLISHED: published_table(summary.published)} if summary.published else {}
    return {VERDICTS: verdict_table(summary.verdicts), **published}


def verdict_table(verdicts: Sequence[RecordedVerdict]) -> Table:
    """Numbers as they are. A column that would be empty is left out, but for those that every verdict has."""
    columns: dict[str, Callable[[RecordedVerdict], Any]] = {
        "check": lambda verdict: verdict.check,
        "case": lambda verdict: verdict.case,
        "expected": lambda verdict: verdict.expected,
        "outcome": lambda verdict: verdict.outcome,
    }
    further: dict[str, Callable[[RecordedVerdict], Any]] = {
        "diagnosis": lambda verdict: " or ".join(verdict.diagnosis) or None,
        **{column: _observed(names) for column, names in NUMBERS.items()},
    }
    columns |= {name: of for name, of in further.items() if any(of(verdict) is not None for verdict in verdicts)}
    return list(columns), [[of(verdict) for of in columns.values()] for verdict in verdicts]


def _observed(names: Sequence[str]) -> Callable[[RecordedVerdict], Any]:
    return lambda verdict: next((verdict.observed[name] for name in names if name in verdict.observed), None)


def published_table(rows: Sequence[PublishedRow]) -> Table:
    return PUBLISHED_COLUMNS, [[getattr(row, column) for column in PUBLISHED_COLUMNS] for row in rows]


def as_markdown(table: Table) -> str:
    return markdown_table(table[0], as_texts(table), NUMBERS) + "\n"


def as_latex(table: Table) -> str:
    return latex_table(table[0], as_texts(table), NUMBERS) + "\n"


def as_csv(table: Table) -> str:
    import pandas

    headers = table[0]
    rows = [[shown(cell) if isinstance(cell, str) else cell for cell in row] for row in table[1]]
    return str(pandas.DataFrame(rows, columns=list(headers), dtype=object).to_csv(index=False, lineterminator="\n"))


def as_texts(table: Table) -> list[list[str]]:
    return [["" if cell is None else number_text(cell) for cell in row] for row in table[1]]


FORMATS: Mapping[str, Callable[[Table], str]] = {"latex": as_latex, "markdown": as_markdown, "csv": as_csv}
