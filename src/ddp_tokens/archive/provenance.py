"""How Snakemake made each file, from the records that it keeps below .snakemake/metadata."""

import json
from base64 import urlsafe_b64decode
from binascii import Error
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RECORDS = Path(".snakemake/metadata")


def provenance(records: Path, names: Iterable[str]) -> dict[str, Any]:
    """Output -> rule, inputs, log, command, start and end (UTC), for each output that is one of the files `names` or a
    folder above one. What was made by hand has no record.
    """
    known, names = read_records(records), list(names)
    wanted = {str(parent) for name in names for parent in (Path(name), *Path(name).parents)}
    return {output: _told(known[output]) for output in sorted(known) if output in wanted}


def read_records(records: Path) -> dict[str, Mapping[str, Any]]:
    """Output -> record. Snakemake names a record by its output in base64, long names cut into folders with an @."""
    found = {}
    for path in sorted(records.rglob("*")):
        name = "".join(part.removeprefix("@") for part in path.relative_to(records).parts)
        if not path.is_file():
            continue
        try:
            found[urlsafe_b64decode(name).decode()] = json.loads(path.read_text())
        except (Error, ValueError):  # not a record, or one that was being written
            continue
    return found


def _told(record: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is long and stands elsewhere: the conda environment is envs/environment.yaml."""
    command = record.get("shellcmd") or str(record.get("code", "")).strip().strip('"').removeprefix("../")
    return {
        "rule": record.get("rule"),
        "inputs": record.get("input", []),
        "log": record.get("log", []),
        "command": command,
        "started": _time(record.get("starttime")),
        "ended": _time(record.get("endtime")),
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
