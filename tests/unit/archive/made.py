"""Archives made by hand: `finished` adds to some files what says that they are an archive, all of it consistent."""

import json
import struct
import zipfile
import zlib
from pathlib import Path

from ddp_tokens.archive.layout import CRATE, DOCUMENT, README, REPORT, SUMS, Document, comparison_digest, sums
from ddp_tokens.files import sha256_of_bytes, to_json

FILES = {
    "results/tiny/plan.json": b'{"plan": []}\n',
    "results/tiny/config.yaml": b"name: tiny\n",
    "results/tiny/window/rank-0.json": b"{}\n",
    "machine/environment.json": b"{}\n",
    "source/Snakefile": b"rule all:\n",
    "LICENSE": b"MIT\n",
    **{
        f"results/tiny/figures/{name}.{form}": head
        for name in ("gradients", "resume", "tokens")
        for form, head in (("png", b"\x89PNG\r\n\x1a\n"), ("svg", b"<?xml?>\n<svg>"), ("pdf", b"%PDF-1.4\n"))
    },
}
WORKFLOW = "source/Snakefile"


def crate(names, **of_root):
    """The metadata of a Workflow RO-Crate with these files."""
    entities = [{"@id": name, "@type": "File"} for name in sorted(names) if name != WORKFLOW]
    workflow = {"@id": WORKFLOW, "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"], "name": "Snakefile"}
    parts = [{"@id": entity["@id"]} for entity in (workflow, *entities)]
    profiles = ("https://w3id.org/ro/crate/1.1", "https://w3id.org/workflowhub/workflow-ro-crate/1.0")
    descriptor = {
        "@id": CRATE,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": [{"@id": profile} for profile in profiles],
    }
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": "tiny",
        "description": "a small one",
        "datePublished": "2026-01-01",
        "license": "MIT",
        "mainEntity": {"@id": WORKFLOW},
        "hasPart": parts,
        **of_root,
    }
    context = "https://w3id.org/ro/crate/1.1/context"
    return {"@context": context, "@graph": [descriptor, root, workflow, *entities]}


def finished(files, experiment="tiny", omitted=None, **of_document):
    """All files of the archive. What says so of them is right, whatever they hold."""
    omitted = omitted or {}
    digests = {name: sha256_of_bytes(data) for name, data in files.items()}
    digest = comparison_digest({**digests, **{name: of["sha256"] for name, of in omitted.items()}})
    source = {"commit": None, "date": None, "dirty": None}
    document = Document(experiment, digest, True, "0.1.0", source, omitted).as_json() | of_document
    texts = {README: f"# tiny\n{digest}\n".encode(), REPORT: f"<html>{digest}</html>".encode()}
    whole = {**files, **texts, DOCUMENT: to_json(document).encode()}
    whole[CRATE] = json.dumps(crate([*whole, SUMS])).encode()
    whole[SUMS] = sums({name: sha256_of_bytes(data) for name, data in whole.items()}).encode()
    return whole


def write(path: Path, files, method=zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def patched(path: Path, name: str, **fields) -> Path:
    """The entry's fields in the list of entries, and not in the header before it, set to other values."""
    places = {"flags": (8, "<H"), "method": (10, "<H"), "crc": (16, "<I"), "size": (24, "<I"), "offset": (42, "<I")}
    data = bytearray(path.read_bytes())
    at = data.rindex(name.encode()) - 46
    assert data[at : at + 4] == b"PK\x01\x02"
    for field, value in fields.items():
        place, form = places[field]
        struct.pack_into(form, data, at + place, value)
    path.write_bytes(data)
    return path


def crc_of(data: bytes) -> int:
    return zlib.crc32(data)
