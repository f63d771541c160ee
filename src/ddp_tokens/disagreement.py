"""What each rank says that it runs, and the sentence on the first difference. Plain values, no torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ddp_tokens.files import from_json, sha256_of_json, to_json

NOT_COMPARED = ("host", "paths")
OF_CHECKOUT = "use the same checkout on all hosts"
OF_COMMAND = "start the same command on all hosts"
OF_CONFIG = "use the same config on all hosts"
OF_VERSIONS = "install the same versions (envs/requirements.lock) on all hosts"
SHARED = "on a folder that all hosts share"
CHECKPOINT = "checkpoint"
OF_PREPARED = f"prepare once, {SHARED}"
OF_FILES = {
    "initial.safetensors": f"run reference once, {SHARED}",
    CHECKPOINT: f"resume from one checkpoint, {SHARED}",
}
RUNS, HAS = ("runs", "run"), ("has", "have")  # of one rank, of several
ABSENT = None  # a value that is null is the text "null"


@dataclass(frozen=True)
class Document:
    """What one rank runs. `sources`, `files`: digests by name; `paths`: how this host calls the files. `problem`: why
    this rank cannot begin; it then has no files.
    """

    program: str
    sources: Mapping[str, str]
    versions: Mapping[str, str]
    arguments: Mapping[str, Any]
    settings: Mapping[str, Any]
    host: str
    problem: str | None = None
    files: Mapping[str, str | None] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Of what must be the same on all ranks."""
        return sha256_of_json({name: value for name, value in vars(self).items() if name not in NOT_COMPARED})

    @property
    def text(self) -> str:
        """With names in the order in which they are compared."""
        return to_json(vars(self), sort_keys=False)


def parse_document(text: str) -> Document:
    return Document(**from_json(text))


class Odd(NamedTuple):
    """Under `name`, these ranks of one host have another value than rank 0, as JSON; ABSENT: none."""

    name: str
    ranks: list[int]
    own: str | None
    first: str | None


def disagreement(documents: Sequence[Document]) -> str | None:
    """One sentence on the first difference between rank 0 and another rank; None where there is none.

    In this order: program, source files that both have, versions, arguments, settings, source files that only one has
    (a setting can be the reason), problems (which all of these can be the reason of), files.
    """
    hosts = [document.host for document in documents]
    for find in (_programs, _sources, _versions, _arguments, _settings, _sources_of_one, _problems, _files):
        said = find(documents, hosts)
        if said is not None:
            return said
    return None


def who(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Ranks of one host; it is named where there are several."""
    first, last = ranks[0], ranks[-1]
    if len(ranks) == 1:
        named = f"rank {first}"
    elif len(ranks) > 2 and len(ranks) == last - first + 1:
        named = f"ranks {first} to {last}"
    else:
        named = f"ranks {', '.join(map(str, ranks))}"
    return f"{named} on host {hosts[first]}" if len(set(hosts)) > 1 else named


def _odd(values: Sequence[Mapping[str, Any]], hosts: Sequence[str], in_both: bool = False) -> Odd | None:
    """`values`: by rank and name. The first name, as rank 0 orders them, and the first rank, that differs.

    `in_both`: only where both have a value.
    """
    for name in dict.fromkeys(name for of_rank in values for name in of_rank):
        found = [json.dumps(of_rank[name], sort_keys=True) if name in of_rank else ABSENT for of_rank in values]
        differing = [own for own in found if own != found[0] and not (in_both and ABSENT in (own, found[0]))]
        if differing:
            rank = found.index(differing[0])
            ranks = [other for other, own in enumerate(found) if (own, hosts[other]) == (found[rank], hosts[rank])]
            return Odd(name, ranks, found[rank], found[0])
    return None


def _told(odd: Odd, hosts: Sequence[str], verb: tuple[str, str], what: str) -> str:
    return f"{who(odd.ranks, hosts)} {verb[len(odd.ranks) > 1]} {what}"


def _shown(value: str | None) -> str:
    if value is ABSENT:
        return "none"
    loaded = json.loads(value)
    return loaded if isinstance(loaded, str) else value


def _of_values(values: Sequence[Mapping[str, Any]], hosts: Sequence[str], remedy: str) -> str | None:
    odd = _odd(values, hosts)
    if odd is None:
        return None
    what = f"{odd.name} {_shown(odd.own)}, {who([0], hosts)} {_shown(odd.first)}"
    return f"{_told(odd, hosts, HAS, what)}: {remedy}"


def _programs(documents: Sequence[Document], hosts: Sequence[str]) -> str | None:
    odd = _odd([{"program": document.program} for document in documents], hosts)
    if odd is None:
        return None
    return f"{_told(odd, hosts, RUNS, _shown(odd.own))}, {who([0], hosts)} {_shown(odd.first)}: {OF_COMMAND}"


def _sources(documents: Sequence[Document], hosts: Sequence[str]) -> str | None:
    odd = _odd([document.sources for document in documents], hosts, in_both=True)
    if odd is None:
        return None
    return f"{_told(odd, hosts, RUNS, f'another {odd.name} than {who([0], hosts)}')}: {OF_CHECKOUT}"


def _sources_of_one(documents: Sequence[Document], hosts: Sequence[str]) -> str | None:
    odd = _odd([document.sources for document in documents], hosts)
    if odd is None:
        return None
    what = f"{'without ' if odd.own is ABSENT else ''}{odd.name}, unlike {who([0], hosts)}"
    return f"{_told(odd, hosts, RUNS, what)}: {OF_CHECKOUT}"


def _versions(documents: Sequence[Document], hosts: Sequence[str]) -> str | None:
    return _of_values([document.versions for document in documents], hosts, OF_VERSIONS)


def _arguments(documents: Sequence[Document], hosts: Sequence[str]) -> str | None:
    return _of_values([document.arguments for document in documents], hosts, OF_COMMAND)


def _settings(documents: Sequence[Document], hosts: Sequence[str]) -> str | None:
    return _of_values([document.settings for document in documents], hosts, OF_CONFIG)


def _problems(documents: Sequence[Document], hosts: Sequence[str]) -> str | None:
    problems = ((rank, document.problem) for rank, document in enumerate(documents))
    return next((f"{who([rank], hosts)}: {problem}" for rank, problem in problems if problem is not None), None)


def _files(documents: Sequence[Document], hosts: Sequence[str]) -> str | None:
    odd = _odd([document.files for document in documents], hosts)
    if odd is None:
        return None
    path = documents[odd.ranks[0]].paths[odd.name]
    remedy = OF_FILES.get(odd.name, OF_PREPARED)
    return f"{_told(odd, hosts, HAS, f'another {path} than {who([0], hosts)}')}: {remedy}"
