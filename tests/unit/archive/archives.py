"""Small archives written by hand."""

import json
from pathlib import Path

from ddp_tokens.archive.layout import DOCUMENT, SUMS, Document, comparison_digest, sums
from ddp_tokens.archive.writing import write_zip
from ddp_tokens.files import sha256_of_bytes, to_json

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
    """What `files` holds, name -> text, bytes or a value to write as JSON, with archive.json and SHA256SUMS."""
    contents = {name: as_bytes(value) for name, value in files.items()}
    omitted = omitted or {}
    digests = {name: sha256_of_bytes(data) for name, data in contents.items()}
    compared = digests | {name: left_out["sha256"] for name, left_out in omitted.items()}
    document = Document(experiment, comparison_digest(compared), True, "0.1.0", source, omitted)
    contents[DOCUMENT] = to_json(document.as_json()).encode()
    digests[DOCUMENT] = sha256_of_bytes(contents[DOCUMENT])
    write_zip(Path(path), contents | {SUMS: sums(digests).encode()})
    return Path(path)


def as_bytes(value):
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()
