"""The document of `compare` for a terminal, and as Markdown for a pull request or a paper."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ddp_tokens.archive.markup import in_markdown, markdown_table, text_table
from ddp_tokens.archive.told import more, shown
from ddp_tokens.report import exact_text, number_text

ABSENT = "absent"
SHOWN, ROWS_SHOWN = 20, 60
ROWS_LEFT_OUT = "And {} more rows, which --format json has."
PAIR = ("before", "after")
COUNTS = {"identical": "identical", "differing": "differ", "only_before": "only before", "only_after": "only after"}
Document = Mapping[str, Any]
TableWriter = Callable[[Sequence[str], Sequence[Sequence[str]], Collection[str]], str]


@dataclass(frozen=True)
class Section:
    """`empty`: what is said where there is no row. `notes`: lines below the table."""

    title: str
    empty: str
    headers: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    numbers: Collection[str] = ()
    notes: Sequence[str] = ()


def as_text(document: Document) -> str:
    parts = [*map(shown, opening(document))]
    for section in sections(document):
        parts.append(f"{section.title}\n\n{_body(section, text_table, shown)}")
    return "\n\n".join(parts) + "\n"


def as_markdown(document: Document, figures: Mapping[str, Collection[str]] | None = None) -> str:
    """`figures`: name -> the sides that have it, of figures in figures/before and figures/after beside the file."""
    parts = [*map(in_markdown, opening(document))]
    parts[0] = f"# {parts[0]}"
    for section in sections(document):
        parts.append(f"## {section.title}\n\n{_body(section, markdown_table, in_markdown)}")
    if figures:
        parts.append("## Figures\n\n" + _figures(figures))
    return "\n\n".join(parts) + "\n"


def _body(section: Section, table: TableWriter, escaped: Callable[[str], str]) -> str:
    rows, others = section.rows[:ROWS_SHOWN], more(len(section.rows) - ROWS_SHOWN, ROWS_LEFT_OUT)
    first = table(section.headers, rows, section.numbers) if rows else escaped(section.empty)
    return "\n\n".join([first, *map(escaped, [*[others] * bool(others), *section.notes])])


def _figures(figures: Mapping[str, Collection[str]]) -> str:
    lines = ["| figure | before | after |", "|:--|:--|:--|"]
    for name, sides in figures.items():
        cells = [f"![{side}: {in_markdown(name)}]({figure_path(side, name)})" if side in sides else "" for side in PAIR]
        lines.append(f"| {in_markdown(name)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figure_path(side: str, name: str) -> str:
    return str(quote(f"figures/{side}/{name}.png"))


def opening(document: Document) -> list[str]:
    """The heading, and the sentences that a reader needs first."""
    before, after = (document[side] for side in PAIR)
    parts = [f"{before['name']} ({before['experiment']}) against {after['name']} ({after['experiment']})"]
    if not document["same_experiment"]:
        parts.append(f"Two experiments: {before['experiment']} before, {after['experiment']} after.")
    if document["same_results"]:
        parts.append(f"The results are the same, byte for byte: comparison digest {before['comparison_digest']}.")
    else:
        digests = " and ".join(of["comparison_digest"] for of in (before, after))
        parts.append(f"The results are not the same byte for byte: comparison digests {digests}.")
    told = [f"{side}, {'all are' if document[side]['as_expected'] else 'NOT all are'} as expected" for side in PAIR]
    return [*parts, f"Verdicts: {'; '.join(told)}."]


def sections(document: Document) -> list[Section]:
    """In the order in which a reader asks."""
    controls = document["controls"]
    return [
        _named("Settings", document["settings"], "setting", "All settings are the same."),
        _verdicts("Verdicts", document["verdicts"], "Every case has the same outcome and diagnosis in both."),
        _numbers("Numbers", document["numbers"], "No error, tolerance or power differs."),
        _scores(document["scores"]),
        _verdicts("Controls", controls["verdicts"], _on_controls(controls), _headlines(controls)),
        _numbers("Numbers of the controls", controls["numbers"], "No error, tolerance or power differs."),
        _files(document["files"]),
        _named("Environment", document["environment"], "what", "Nothing that was recorded differs."),
        _named("Source", document["source"], "what", "The same."),
    ]


def _named(title: str, rows: Iterable[Document], what: str, empty: str) -> Section:
    return Section(title, empty, (what, *PAIR), [[row["name"], *_pair(row, exact_text)] for row in rows])


def _verdicts(title: str, rows: Iterable[Document], empty: str, notes: Sequence[str] = ()) -> Section:
    shown = [[row["check"], row["case"], *_pair(row, _judged)] for row in rows]
    return Section(title, empty, ("check", "case", *PAIR), shown, notes=notes)


def _judged(verdict: Document) -> str:
    told = str(verdict["outcome"])
    if verdict["outcome"] != verdict["expected"]:
        told += f", expected {verdict['expected']}"
    return told + (f" ({' or '.join(verdict['diagnosis'])})" if verdict["diagnosis"] else "")


def _numbers(title: str, rows: Iterable[Document], empty: str) -> Section:
    shown = [[row["check"], row["case"], row["name"].replace("_", " "), *_rounded(row)] for row in rows]
    return Section(title, empty, ("check", "case", "number", *PAIR), shown, numbers=PAIR)


def _scores(rows: Iterable[Document]) -> Section:
    shown = [[row["split"], row["name"], *_rounded(row)] for row in rows]
    return Section("Scores", "None of the two was scored.", ("split", "score", *PAIR), shown, numbers=PAIR)


def _on_controls(controls: Document) -> str:
    held = [side for side in PAIR if controls[side] is not None]
    if len(held) == 2:
        return "Every case has the same outcome and diagnosis in both."
    return f"Only {held[0]}." if held else "None of the two holds controls."


def _headlines(controls: Document) -> list[str]:
    told = {side: controls[side] for side in PAIR if controls[side] is not None}
    if len(set(told.values())) < len(told):
        return [f"Both: {controls['before']}."]
    return [f"{side.capitalize()}: {headline}." for side, headline in told.items()]


def _files(files: Document) -> Section:
    rows = [[row["folder"], *(str(row[count]) for count in COUNTS)] for row in files["folders"]]
    kinds = {"differing": "Differ", "only_before": "Only before", "only_after": "Only after"}
    notes = [f"{told}: {bounded(files[kind])}." for kind, told in kinds.items() if files[kind]]
    return Section("Files", "There are none.", ("folder", *COUNTS.values()), rows, tuple(COUNTS.values()), notes)


def bounded(names: Sequence[str], shown: int = SHOWN) -> str:
    """Names in a sentence, at most so many of them."""
    return ", ".join(names[:shown]) + more(len(names) - shown)


def _pair(row: Document, told: Callable[[Any], str]) -> list[str]:
    return [told(row[side]) if side in row else ABSENT for side in PAIR]


def _rounded(row: Document) -> list[str]:
    """All digits where the two differ and would look alike."""
    texts = _pair(row, number_text)
    alike = texts[0] == texts[1] and row["before"] != row["after"]
    return _pair(row, exact_text) if alike else texts
