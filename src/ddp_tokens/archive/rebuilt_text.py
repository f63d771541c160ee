"""What `rebuild` prints in the end."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_tokens.archive.markup import text_table
from ddp_tokens.archive.rebuilt import DIFFERS, MISSING, STATES, WITHIN

Document = Mapping[str, Any]
SHOWN = 20


def as_text(document: Document) -> str:
    return "\n\n".join([_folders(document), *_files(document), *_verdicts(document), conclusion(document)]) + "\n"


def _folders(document: Document) -> str:
    rows = [[of["folder"], *(str(of[state]) for state in STATES)] for of in document["folders"]]
    return text_table(("folder", *STATES), rows, STATES)


def _files(document: Document) -> list[str]:
    parts = []
    if any(of["state"] == WITHIN for of in document["files"]):
        tensors, numbers = document["tolerances"]["tensors"], document["tolerances"]["numbers"]
        parts.append(
            f"Within tolerance: tensors differ by at most {tensors:g} of their norm, numbers by {numbers:g} of "
            "themselves, and what was concluded in a file of verdicts is the same."
        )
    for state in (DIFFERS, MISSING):
        told = [f"{of['name']} ({of['why']})" if of["why"] else of["name"] for of in _in(document["files"], state)]
        parts += ["\n".join([f"{state.capitalize()}:", *_bounded(told)])] if told else []
    return parts


def _in(files: Sequence[Document], state: str) -> list[Document]:
    return [of for of in files if of["state"] == state]


def _verdicts(document: Document) -> list[str]:
    told = [f"{of['check']}/{of['case']} {of['problem']}" for of in document["verdicts"] if of["problem"]]
    number = len(document["verdicts"])
    if not number:
        return ["Verdicts: none was reached again."]
    if told:
        return ["\n".join([f"Verdicts: {len(told)} of {number} are not as archived and as expected:", *_bounded(told)])]
    return [f"Verdicts: all {number} are as archived and as expected."]


def conclusion(document: Document) -> str:
    archived, rebuilt = document["archived_digest"], document["rebuilt_digest"]
    if document["same_results"]:
        digests = f"the results are the same, byte for byte: comparison digest {archived}"
    else:
        digests = f"not the same byte for byte: comparison digest archived {archived}, rebuilt {rebuilt}"
    if document["holds"]:
        return f"The rebuild confirms the archive; {digests}."
    unkept = document["unkept"]
    also = f" ({unkept[0]}{f' and {len(unkept) - 1} more' if len(unkept) > 1 else ''})" if unkept else ""
    return f"The rebuild does NOT confirm the archive{also}; {digests}."


def _bounded(lines: Sequence[str]) -> list[str]:
    more = [f"  and {len(lines) - SHOWN} more, in rebuild.json"] if len(lines) > SHOWN else []
    return [f"  {line}" for line in lines[:SHOWN]] + more
