"""What the Snakefile asks of the trainers while it is parsed. No torch."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ddp_tokens.files import to_json
from ddp_tokens.trainers.cases import Case
from ddp_tokens.workflow import AUDIT, RESULTS, file_by_content

TABLE = f"{RESULTS}/{AUDIT}/trainers.json"


def script_file(case: Case) -> str:
    """The script that makes a row of the table."""
    return f"examples/{case.script}"


def installed_file(case: Case) -> str:
    """A file with the version of the case's package: another one when another is installed, or one at all."""
    try:
        installed: str | None = version(case.package)
    except PackageNotFoundError:
        installed = None
    document = to_json({"package": case.package, "version": installed})
    return file_by_content(AUDIT, f"package-{case.package}", document)


def audited() -> list[str]:
    """The table, where it was made before: it needs packages that nothing else needs, so no report asks for it."""
    return [TABLE] if Path(TABLE).is_file() else []
