"""Is an archive what it says it is? Every file against SHA256SUMS, and the comparison digest where it is stated."""

import re
from collections.abc import Mapping

from ddp_tokens.archive.layout import DOCUMENT, README, REPORT, SUMS, Document, comparison_digest, sums

LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def problems_of_sums(sha256: Mapping[str, str], stated_sums: bytes | None) -> list[str]:
    """`sha256`: of every file of the archive. `stated_sums`: what SHA256SUMS holds, None where it is not there."""
    if stated_sums is None:
        return [f"{SUMS} is missing: nothing says what the files must be"]
    present = {path: digest for path, digest in sha256.items() if path != SUMS}
    if stated_sums == sums(present).encode():
        return []
    lines = stated_sums.decode(errors="replace").splitlines()
    matches = [LINE.fullmatch(line) for line in lines]
    stated = {match[2]: match[1] for match in matches if match}
    problems = [f"{SUMS}, line {number} is no digest and path" for number, of in enumerate(matches, start=1) if not of]
    for path in sorted({*stated, *present}):
        if path not in present:
            problems.append(f"{path} is missing, and {SUMS} states it")
        elif path not in stated:
            problems.append(f"{path} is there, and {SUMS} does not state it")
        elif present[path] != stated[path]:
            problems.append(f"{path}: SHA-256 is {present[path]}, {SUMS} says {stated[path]}")
    return problems or [f"{SUMS} states these files, but not once each, sorted by path, as sha256sum writes them"]


def digest_of(document: Document, sha256: Mapping[str, str]) -> str:
    """The comparison digest that archive.json has to state. `sha256`: of every file of the archive, here and below."""
    return comparison_digest({**sha256, **document.omitted_sha256})


def problems_of_digest(document: Document, sha256: Mapping[str, str]) -> list[str]:
    """Of archive.json alone: one or none."""
    digest = digest_of(document, sha256)
    if document.comparison_digest == digest:
        return []
    return [f"{DOCUMENT}: comparison_digest is {document.comparison_digest}, of the files it is {digest}"]


def problems_of_comparison(
    document: Document, sha256: Mapping[str, str], texts: Mapping[str, bytes | None]
) -> list[str]:
    """`texts`: what README.md and report.html hold, by name, None where one is not there."""
    digest, problems = digest_of(document, sha256), problems_of_digest(document, sha256)
    for name in (README, REPORT):
        text = texts.get(name)
        if text is None:
            problems.append(f"{name} is missing")
        elif digest.encode() not in text:
            problems.append(f"{name} does not state the comparison digest {digest}")
    return problems
