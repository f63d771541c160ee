"""Tables for papers and pull requests, with what they hold escaped."""

import re
from collections.abc import Collection, Sequence

from tabulate import tabulate

from ddp_tokens.archive.told import shown

Rows = Sequence[Sequence[str]]
# Everywhere in GitHub's Markdown; an underscore inside a word, as in token_mean, stands for itself.
IN_MARKDOWN = re.compile(r"([\\`|*<>~\[\]$]|(?<![^\W_])_|_(?![^\W_]))")
POWER_OF_TEN = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]\d+)(?![\w.])")
# What LaTeX takes, at the start of a row, for an option of the line break before it.
OPTION = re.compile(r"^( *)([\[*])", re.MULTILINE)
# What pdflatex has no letter for, or shows as another: "|" as a dash, "--" as one.
IN_LATEX = {
    "|": r"\textbar{}",
    "--": "-{}-",
    "≤": r"\ensuremath{\leq}",
    "≥": r"\ensuremath{\geq}",
    "±": r"\ensuremath{\pm}",
    "→": r"\ensuremath{\to}",
    "\N{MULTIPLICATION SIGN}": r"\ensuremath{\times}",
    "\N{MINUS SIGN}": r"\ensuremath{-}",
}


def text_table(headers: Sequence[str], rows: Rows, numbers: Collection[str] = ()) -> str:
    """`numbers`: the columns to align on the right, here and below."""
    return _table(list(map(shown, headers)), [list(map(shown, row)) for row in rows], headers, numbers, "simple")


def markdown_table(headers: Sequence[str], rows: Rows, numbers: Collection[str] = ()) -> str:
    escaped = [[in_markdown(cell) for cell in row] for row in rows]
    return _table(list(map(in_markdown, headers)), escaped, headers, numbers, "pipe")


def in_markdown(text: str) -> str:
    """As one line, and shown as it is."""
    return IN_MARKDOWN.sub(r"\\\1", _line(text))


def latex_table(headers: Sequence[str], rows: Rows, numbers: Collection[str] = ()) -> str:
    """A tabular of the package booktabs; 2.98e-08 becomes a power of ten."""
    lines = [list(map(_line, row)) for row in rows]
    table = _table(list(map(_line, headers)), lines, headers, numbers, "latex_booktabs")
    for letter, command in IN_LATEX.items():
        table = table.replace(letter, command)
    table = OPTION.sub(r"\1{}\2", table)
    return POWER_OF_TEN.sub(lambda found: f"${found[1]} \\times 10^{{{int(found[2])}}}$", table)


def _line(text: str) -> str:
    """Line breaks become spaces: what acts otherwise than as a space is told."""
    return shown(" ".join(text.split()))


def _table(titles: Sequence[str], rows: Rows, columns: Sequence[str], numbers: Collection[str], form: str) -> str:
    aligned = ["right" if column in numbers else "left" for column in columns] if rows else None
    return str(tabulate(rows, headers=titles, tablefmt=form, disable_numparse=True, colalign=aligned))
