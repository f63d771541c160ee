"""The pages of an archive, made of what else it holds; so that who verifies it can make them again and compare."""

from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ddp_tokens.archive.contents import Contents, content_of
from ddp_tokens.archive.crate import authors_of
from ddp_tokens.archive.documents import checklist, readme
from ddp_tokens.archive.layout import CHECKLIST, README, REPORT, SOURCE, Document
from ddp_tokens.archive.report_page import report_page
from ddp_tokens.config import Experiment
from ddp_tokens.files import sha256_of_bytes
from ddp_tokens.machine_facts import locked_versions
from ddp_tokens.sources import PACKAGE, SOURCE_ROOT

IN_ARCHIVE = f"{SOURCE}/src/"
LOCK = f"{SOURCE}/envs/requirements.lock"
RENDERED_BY = ("docutils", "jinja2", "markupsafe", "pygments", "pyyaml")
OF_PACKAGE = (".py", ".html", ".md")


def pages(
    contents: Contents, document: Document, experiment: Experiment, citation: Mapping[str, Any]
) -> dict[str, bytes]:
    texts = {
        README: readme(contents, document, experiment),
        CHECKLIST: checklist(contents, document, experiment, citation),
        REPORT: report_page(contents, document, experiment, authors_of(citation)),
    }
    return {name: text.encode() for name, text in texts.items()}


def why_not_comparable(contents: Contents) -> str | None:
    """Pages are the same bytes only where the same source and the same packages make them."""
    own, archived = (
        dict(_own_source()),
        {
            name.removeprefix(IN_ARCHIVE): sha256_of_bytes(content_of(contents, name))
            for name in contents
            if name.startswith(f"{IN_ARCHIVE}{PACKAGE}/") and name.endswith(OF_PACKAGE)
        },
    )
    if own != archived:
        return "the archived source is not the one that verifies"
    locked = locked_versions_in(contents)
    other = [name for name in RENDERED_BY if locked.get(name) != _installed(name)]
    return f"{other[0]} is installed in another version than the archived lock names" if other else None


def locked_versions_in(contents: Contents) -> dict[str, str]:
    source = contents.get(LOCK)
    return locked_versions(source) if isinstance(source, Path) else {}


def _own_source() -> Iterator[tuple[str, str]]:
    for path in sorted((SOURCE_ROOT / PACKAGE).rglob("*")):
        if path.suffix in OF_PACKAGE and path.is_file():
            yield str(path.relative_to(SOURCE_ROOT)), sha256_of_bytes(path.read_bytes())


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
