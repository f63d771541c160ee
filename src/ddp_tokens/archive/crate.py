"""ro-crate-metadata.json: what the archive is, in the words of Workflow RO-Crate, written by the library rocrate.

It names no digest and no time of a build, so that it is the same for the same results: SHA256SUMS holds the digests.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from ddp_tokens.archive.layout import (
    CHECKLIST,
    CONTROLS,
    DOCUMENT,
    INPUTS,
    MACHINE,
    README,
    REPORT,
    RESULTS,
    SOURCE,
    SUMS,
    Document,
    results_of,
)

VERSION = "1.1"
WORKFLOW = f"{SOURCE}/Snakefile"
PERSON_OR_TEAM = ("given-names", "name-particle", "family-names", "name")
# Not those of the system that it is written on.
TYPES = {
    ".csv": "text/csv",
    ".html": "text/html",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".safetensors": "application/octet-stream",
    ".svg": "image/svg+xml",
    ".yaml": "application/yaml",
}
# Described by their folder, since there are too many of them to be read one by one.
TOGETHER = (f"{SOURCE}/", *(f"{RESULTS}/{CONTROLS}/{folder}/" for folder in ("cases", "ranks", "trained")))
TOLD = {
    DOCUMENT: "What this archive is: format, comparison digest, commit, and what was left out as too large",
    README: "What is claimed, by which criterion, how to verify and how to rebuild",
    CHECKLIST: "Answers to the questions of artifact evaluation and reproducibility checklists",
    REPORT: "The report: verdicts, figures, scores, settings and machine; opens offline",
    SUMS: "SHA-256 of every file, as sha256sum checks them",
    "CITATION.cff": "How to cite",
    "LICENSE": "The licence",
}
FOLDERS = {
    RESULTS: "What the verdicts were reached on, the verdicts, scores and figures",
    f"{RESULTS}/{CONTROLS}": "Known mistakes made on purpose, and how each was judged",
    MACHINE: "What differs each time: machine, versions, wall times, scaling, Snakemake's provenance of each file",
    INPUTS: "Own data that the experiment reads",
    SOURCE: "The project as it was used",
}


def crate_metadata(names: Iterable[str], document: Document, citation: Mapping[str, Any]) -> str:
    """JSON-LD. `names`: of all files of the archive. `citation`: what CITATION.cff holds.

    Files of which there are too many, as of the source, are described by their folder, all others one by one.
    """
    # Here, since it loads a client for the web, which nothing else needs.
    from rocrate.model.contextentity import ContextEntity
    from rocrate.rocrate import ROCrate

    crate = ROCrate(version=VERSION)
    crate.name = f"ddp-tokens: {document.experiment}"
    crate.description = describe(document)
    crate.root_dataset["datePublished"] = document.source["date"] or str(citation["date-released"])
    crate.root_dataset["version"] = document.comparison_digest
    crate.license = [
        crate.add(ContextEntity(crate, f"https://spdx.org/licenses/{name}", {"@type": "CreativeWork", "name": name}))
        for name in licences_of(citation)
    ]
    crate.root_dataset["author"] = [crate.add(ContextEntity(crate, *_author(of))) for of in citation["authors"]]
    workflow = crate.add_workflow(dest_path=WORKFLOW, main=True, lang="snakemake", properties={"name": "Snakefile"})
    workflow["version"] = document.source["commit"] or document.version
    names = sorted(names)
    files = [name for name in names if not name.startswith(TOGETHER)]
    for folder, told in _folders(names, document.experiment).items():
        crate.add_dataset(dest_path=f"{folder}/", properties={"name": folder, "description": told})
    for name in files:
        crate.add_file(dest_path=name, properties=_file(name))
    return json.dumps(crate.metadata.generate(), indent=2, sort_keys=True) + "\n"


def licences_of(citation: Mapping[str, Any]) -> list[str]:
    """SPDX identifiers: CITATION.cff names one, or a list of which one may choose."""
    stated = citation["license"]
    return stated if isinstance(stated, list) else [stated]


def describe(document: Document) -> str:
    judged = "every verdict is as expected" if document.as_expected else "NOT every verdict is as expected"
    return (
        f"Evidence for the experiment {document.experiment}: whether the gradient that torch's DistributedDataParallel "
        "leaves is the gradient of the mean over all supervised units, whether a resumed run is the uninterrupted one "
        f"bit for bit, and whether the checks refuse known mistakes; {judged}."
    )


def _folders(files: Iterable[str], experiment: str) -> dict[str, str]:
    """Those that hold a file."""
    known = FOLDERS | {results_of(experiment): f"The experiment {experiment}"}
    present = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    return {folder: known[folder] for folder in sorted(known) if folder in present}


def _file(name: str) -> dict[str, str]:
    path = PurePosixPath(name)
    kind = TYPES.get(path.suffix, "text/plain")
    told = {"description": TOLD[name]} if name in TOLD else {}
    return {"name": path.name, "encodingFormat": kind, **told}


def authors_of(citation: Mapping[str, Any]) -> list[str]:
    return [_name_of(author) for author in citation["authors"]]


def _name_of(author: Mapping[str, str]) -> str:
    return " ".join(author[part] for part in PERSON_OR_TEAM if part in author) or author.get("alias", "unnamed")


def _author(author: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Identifier and properties, from an entry of CITATION.cff: a person has a family name, a team only a name."""
    kind, name = "Person" if "family-names" in author else "Organization", _name_of(author)
    return author.get("orcid") or f"#{name.replace(' ', '-').lower()}", {"@type": kind, "name": name}
