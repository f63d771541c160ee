"""Compare two archives: whether their results are the same, and which settings, verdicts, numbers, scores, controls,
files, machines and sources differ.

--into writes compare.txt, compare.json and compare.md into a new folder, with the figures that differ side by side.
Exit code 0 when they could be compared, whatever was found.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_tokens.archive.arguments import add_archives
from ddp_tokens.archive.comparison import Side, compare
from ddp_tokens.archive.comparison_texts import PAIR, as_markdown, as_text
from ddp_tokens.archive.folders import require_new
from ddp_tokens.archive.groups import short_name
from ddp_tokens.archive.layout import ENVIRONMENT, IMPORTED
from ddp_tokens.archive.recorded import Run, opened
from ddp_tokens.files import to_json, write_bytes, write_text

FORMATS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "text": as_text,
    "json": to_json,
    "markdown": as_markdown,
}
FIGURE = re.compile(r"(?:figures/([^/]+)|controls/(controls))\.png")


def main(program: str, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add_archives(parser, ("before", "after"))
    parser.add_argument("--format", choices=list(FORMATS), default="text", help="what is printed (default: text)")
    parser.add_argument("--into", type=Path, metavar="DIR", help="a folder to make, or an empty one")
    asked = parser.parse_args(arguments)
    if asked.into is not None:
        require_new(asked.into)
    with opened(asked.before, asked.limit) as before, opened(asked.after, asked.limit) as after:
        document = compare(side_of(before), side_of(after))
        if asked.into is not None:
            write_comparison(asked.into, document, before, after)
    print(FORMATS[asked.format](document), end="")
    if asked.into is not None:
        print(f"{program}: wrote {asked.into / 'compare.md'}, compare.txt, compare.json and figures", file=sys.stderr)
    return 0


def side_of(run: Run) -> Side:
    summary, controls = run.summary(), run.controls()
    environment, document = run.mapping(ENVIRONMENT), run.archive.document
    machine = environment["machine"] if isinstance(environment.get("machine"), dict) else environment
    return Side(
        name=run.archive.path.name,
        experiment=run.experiment,
        comparison_digest=document.comparison_digest,
        as_expected=bool(summary.verdicts) and not any(verdict.problem for verdict in summary.verdicts),
        settings=run.settings(),
        verdicts=summary.verdicts,
        evaluation=summary.evaluation,
        controls=controls.headline if controls else None,
        control_verdicts=controls.as_verdicts() if controls else (),
        files={short_name(path, run.experiment): digest for path, digest in run.results.items()},
        machine=machine,
        imported=run.mapping(IMPORTED) or _installed(machine.get("packages")),
        source=dict(document.source) | {"version": document.version},
    )


def _installed(packages: Any) -> dict[str, Any]:
    """Where training has left no record of what it imported."""
    known = packages if isinstance(packages, dict) else {}
    return {name: of["installed"] for name, of in known.items() if isinstance(of, dict) and "installed" in of}


def write_comparison(folder: Path, document: Mapping[str, Any], before: Run, after: Run) -> None:
    figures = differing_figures(before, after)
    for name, paths in figures.items():
        for side, run in zip(PAIR, (before, after), strict=True):
            if side in paths:
                write_bytes(folder / "figures" / side / f"{name}.png", run.archive.read(paths[side]))
    write_text(folder / "compare.txt", as_text(document))
    write_text(folder / "compare.json", to_json(document))
    write_text(folder / "compare.md", as_markdown(document, figures))


def differing_figures(before: Run, after: Run) -> dict[str, dict[str, str]]:
    """Name -> side -> path in its archive, of figures that an archive holds and that are not the same in both."""
    found: dict[str, dict[str, str]] = {}
    for side, run in zip(PAIR, (before, after), strict=True):
        for path in run.archive.names:
            figure = FIGURE.fullmatch(short_name(path, run.experiment))
            if figure:
                found.setdefault(figure[1] or figure[2], {})[side] = path
    runs = dict(zip(PAIR, (before, after), strict=True))
    return {
        name: paths
        for name, paths in sorted(found.items())
        if len(paths) < 2 or len({runs[side].sha256[path] for side, path in paths.items()}) > 1
    }
