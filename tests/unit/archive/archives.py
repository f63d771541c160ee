"""Small archives written by hand."""

import json
from pathlib import Path

from tests.unit.archive.made import finished, write

SOURCE = {"commit": "0" * 40, "date": "2026-01-01T00:00:00+00:00", "dirty": False}


def verdict(check, case, outcome="pass", expected=None, diagnosis=(), **observed):
    return {
        "check": check,
        "case": case,
        "expected": expected or outcome,
        "outcome": outcome,
        "criterion": "as it should be",
        "observed": observed,
        "evidence": {},
        "first_difference": None,
        "diagnosis": list(diagnosis),
        "expected_diagnosis": None,
    }


def summary(*verdicts, published=(), **evaluation):
    return {"verdicts": list(verdicts), "published": list(published), "evaluation": evaluation}


def files_of(experiment="tiny", of_summary=None, config="seed: 1\n", **further):
    """The least that an archive holds; `further`: name, with / for __, -> text, bytes or a value to write as JSON."""
    files = {
        f"results/{experiment}/config.yaml": config,
        f"results/{experiment}/summary.json": of_summary or summary(verdict("loss", "global_mean", error=0.0)),
    }
    return files | further


def write_archive(path, files, experiment="tiny", omitted=None, source=SOURCE):
    """What `files` holds, name -> text, bytes or a value to write as JSON, and what says that it is an archive."""
    contents = {name: as_bytes(value) for name, value in files.items()}
    return write(Path(path), finished(contents, experiment, omitted, source=source))


def as_bytes(value):
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()
