"""What `rebuild` prints in the end."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_tokens.archive.comparison_texts import bounded
from ddp_tokens.archive.markup import text_table
from ddp_tokens.archive.rebuilt import ADDED, DIFFERS, MISSING, STATES, WITHIN
from ddp_tokens.archive.told import more, plural, shown

Document = Mapping[str, Any]
SHOWN = 20


def as_text(document: Document) -> str:
    return "\n\n".join([_folders(document), *_files(document), *_judged(document), conclusion(document)]) + "\n"


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
    for state in (DIFFERS, MISSING, ADDED):
        told = [_told(of) for of in document["files"] if of["state"] == state]
        parts += [_listed(state.capitalize(), told)] if told else []
    return parts


def _told(of: Document) -> str:
    return shown(f"{of['name']} ({of['why']})" if of["why"] else str(of["name"]))


def _judged(document: Document) -> list[str]:
    if not document["verdicts"]:
        return ["Verdicts: none was reached again."]
    verdicts = [(f"{of['check']}/{of['case']}", of["problem"]) for of in document["verdicts"]]
    scores = [(f"{of['split']}.{of['name']}", of["problem"]) for of in document["scores"]]
    within = f"as archived, to {document['tolerances']['scores']:g} of themselves or of 1"
    return [
        _counted("Verdicts", verdicts, "as archived and as expected"),
        *([_counted("Scores", scores, within)] if scores else []),
    ]


def _counted(title: str, judged: Sequence[tuple[str, str | None]], right: str) -> str:
    told = [shown(f"{name} {problem}") for name, problem in judged if problem]
    if told:
        return _listed(f"{title}: {len(told)} of {len(judged)} are not {right}", told)
    return f"{title}: all {len(judged)} are {right}."


def conclusion(document: Document) -> str:
    archived, rebuilt = document["archived_digest"], document["rebuilt_digest"]
    if document["same_results"]:
        digests = f"the results are the same, byte for byte: comparison digest {archived}"
    else:
        digests = f"not the same byte for byte: comparison digest archived {archived}, rebuilt {rebuilt}"
    return f"{_confirmed(document)}; {digests}."


def _confirmed(document: Document) -> str:
    unkept, farther = document["unkept"], document["farther"]
    if not document["holds"]:
        return "The rebuild does NOT confirm the archive" + (f" ({shown(bounded(unkept, 1))})" if unkept else "")
    if not farther:
        return "The rebuild confirms the archive"
    first = next(_told(of) for of in document["files"] if of["name"] == farther[0])
    differ = f"{plural(len(farther), 'file')} differ{'s' * (len(farther) == 1)}"
    which = "it is" if len(farther) == 1 else "the first is"
    return f"The verdicts and scores are confirmed; {differ} by more than the tolerance, {which} {first}"


def _listed(title: str, lines: Sequence[str]) -> str:
    others = more(len(lines) - SHOWN, "  and {} more, in rebuild.json")
    return "\n".join([f"{title}:", *(f"  {line}" for line in lines[:SHOWN]), *[others] * bool(others)])
