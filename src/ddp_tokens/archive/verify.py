"""Verify an archive: that its files are whole and those it was made of, that it is a Workflow RO-Crate, that its
figures are there, and that every verdict in it is reached again from the files it was reached on. Needs no GPU and no
network.

What is in the archive is unpacked into a folder of its own below TMPDIR, which is removed again.
Exit code 0: all of that holds. 1: not all. 2: the file is no archive, or not safe to unpack, and was not. 3: what there
is holds, but some verdicts could only be reread, since files that they rest on were left out as too large.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddp_tokens.archive.arguments import add_archives
from ddp_tokens.archive.chain import interruptible
from ddp_tokens.archive.crate_check import problems_of_crate
from ddp_tokens.archive.digest_check import problems_of_comparison, problems_of_sums
from ddp_tokens.archive.figure_check import FORMS, figures_in, problems_of_figures
from ddp_tokens.archive.layout import CHECKLIST, CONTROLS, CRATE, DOCUMENT, README, REPORT, SUMS, Document, results_of
from ddp_tokens.archive.pages import pages, why_not_comparable
from ddp_tokens.archive.plain import read_plain_yaml
from ddp_tokens.archive.reading import Archive, open_archive
from ddp_tokens.archive.rejudge import Judgement, rejudge, settings_of, unexpected_in
from ddp_tokens.archive.told import plural, shown
from ddp_tokens.build import INTERRUPTED

PROBLEM, PARTLY = 1, 3
PAGES = (README, CHECKLIST, REPORT)
OF_CONTROLS = f"{results_of(CONTROLS)}/"
CITATION = "CITATION.cff"


@dataclass
class Findings:
    """What was looked at, in order, a line each. `problems`: how many of them are any. `partly`: what was not computed
    again, and why. `sums`: SHA-256 of SHA256SUMS, and so of what the comparison digest leaves aside, too.
    """

    lines: list[str] = field(default_factory=list)
    problems: int = 0
    partly: list[str] = field(default_factory=list)
    sums: str | None = None

    def add(self, holds: str, problems: Iterable[str], name: str = "", only_in_part: bool = False) -> None:
        """`holds`: what is said where there is no problem."""
        found = list(problems)
        self.problems += len(found)
        before = f"{name}: " if name else ""
        word = "part" if only_in_part else "ok"
        for start, text in [("FAIL", problem) for problem in found] or [(word, holds)]:
            self.lines.append(f"{start:4}  {shown(before + text)}")

    def note(self, text: str) -> None:
        self.lines.append(f"      {shown(text)}")


def main(program: str, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add_archives(parser)
    asked = parser.parse_args(arguments)
    try:
        with interruptible(), open_archive(asked.archive, asked.limit) as archive:
            findings = verify(archive)
            print("\n".join([*findings.lines, conclusion(archive, findings)]))
    except KeyboardInterrupt:
        print(f"{program}: interrupted, nothing is left behind", file=sys.stderr)
        return INTERRUPTED
    return PROBLEM if findings.problems else PARTLY if findings.partly else 0


def verify(archive: Archive) -> Findings:
    """Raises ArchiveError where an entry is damaged. Where files are not what SHA256SUMS states, only that is told."""
    sha256 = archive.sha256()
    findings = Findings(sums=sha256.get(SUMS))
    texts = {name: archive.read(name) if name in sha256 else None for name in (SUMS, README, REPORT, CRATE)}
    findings.add(f"{len(sha256) - 1} files have the SHA-256 that {SUMS} states", problems_of_sums(sha256, texts[SUMS]))
    document = archive.document
    findings.add(
        f"{DOCUMENT}, {README} and {REPORT} state the comparison digest of the results",
        problems_of_comparison(document, sha256, texts),
    )
    for path, of in sorted(document.omitted.items()):
        findings.note(f"not in the archive: {path} ({of['bytes']:,} bytes; {of['made_by']})")
    if findings.problems:
        findings.note("not looked at, since files are not what they should be: crate, figures, verdicts")
        return findings
    findings.add(f"{CRATE} is a Workflow RO-Crate and describes every file", problems_of_crate(texts[CRATE], sha256))
    figures = figures_in(archive.names, document.experiment)
    forms = ", ".join(form.removeprefix(".") for form in FORMS)
    findings.add(f"{len(figures)} figures, each as {forms}", problems_of_figures(figures, archive.names, archive.read))
    _add_what_follows(findings, archive, sha256)
    return findings


def _add_what_follows(findings: Findings, archive: Archive, sha256: Mapping[str, str]) -> None:
    """What is made from other files of the archive: verdicts and pages."""
    document = archive.document
    omitted = document.omitted_sha256
    with tempfile.TemporaryDirectory(prefix="ddp-tokens-verify-") as name:
        folder = Path(name)
        archive.extract(folder)
        judgements = rejudge(folder, document.experiment, {**sha256, **omitted}, omitted)
        _add_verdicts(findings, document, judgements, any(name.startswith(OF_CONTROLS) for name in sha256))
        _add_pages(findings, document, {name: folder / name for name in archive.names}, folder)


def _add_verdicts(findings: Findings, document: Document, judgements: Sequence[Judgement], with_controls: bool) -> None:
    for judgement in judgements:
        findings.add(judgement.told, judgement.problems, judgement.name, judgement.only_reread)
        findings.partly += [f"{judgement.name} (only reread)"] * judgement.only_reread
    if not with_controls:
        findings.partly.append(f"{CONTROLS} (not in the archive)")
    as_they_are = unexpected_in(judgements)
    findings.add("every verdict is as expected", as_they_are)
    if document.as_expected == bool(as_they_are):
        stated = "true, and not every verdict is" if document.as_expected else "false, and every verdict is"
        findings.add("", [f"{DOCUMENT}: as_expected is {stated}"])


def _add_pages(findings: Findings, document: Document, contents: Mapping[str, Path], folder: Path) -> None:
    why = "not all of the above holds" if findings.problems or findings.partly else why_not_comparable(contents)
    if why:
        findings.note(f"{', '.join(PAGES)} are not made again, since {why}: {SUMS} alone speaks for them")
        return
    problems: list[str] = []
    try:
        experiment = settings_of(folder / results_of(document.experiment), document.experiment)
        made = pages(contents, document, experiment, read_plain_yaml(folder / CITATION))
        unlike = [name for name in PAGES if made[name] != _of(contents, name)]
        problems += [f"{name} is not what follows from the other files" for name in unlike]
    except Exception as error:  # the files may hold anything
        problems.append(f"pages cannot be made again: {type(error).__name__} ({' '.join(str(error).split())[:200]})")
    findings.add(f"{', '.join(PAGES)} are what follows from the other files", problems)


def _of(contents: Mapping[str, Path], name: str) -> bytes | None:
    return contents[name].read_bytes() if name in contents else None


def conclusion(archive: Archive, findings: Findings) -> str:
    document = archive.document
    if findings.problems:
        return f"NOT verified: {document.experiment}, {plural(findings.problems, 'problem')} in {archive.path}"
    but = f", but for {', '.join(map(shown, findings.partly))}" if findings.partly else ""
    return "\n".join(
        [
            f"verified{but}: {document.experiment}, comparison digest {document.comparison_digest}",
            f"          SHA-256 of {SUMS}, which covers pages, source and machine too: {findings.sums}",
        ]
    )
