"""The sentence on what ranks do not have in common, by hand: each kind, and which comes first."""

from dataclasses import replace
from itertools import combinations

import pytest

from ddp_tokens.disagreement import Document, disagreement, parse_document, who

ROWS, INITIAL = "/shared/results/minimum/corpus/rows.jsonl", "results/minimum/initial.safetensors"
OWN = Document(
    program="ddp_tokens.train",
    sources={"src/ddp_tokens/train.py": "1", "src/ddp_tokens/window.py": "2", "envs/requirements.lock": "3"},
    versions={"Python": "3.11.2", "torch": "2.13.0", "NumPy": "2.4.0", "safetensors": "0.7.0"},
    arguments={"run": "continuous", "--allow-inexact": False},
    settings={"batch": 8, "checkpoint_every": 10, "corpus.path": "rows.jsonl", "epochs": None, "model.stages": [4, 8]},
    files={"rows.jsonl": "4", "lock.json": "5", "plan.json": "6", "initial.safetensors": "7", "checkpoint": "8"},
    paths={"rows.jsonl": ROWS, "initial.safetensors": INITIAL, "checkpoint": "step-0003", "plan.json": "plan.json"},
    host="a",
)


def other(**changes) -> Document:
    """On host b; a mapping lies over that of OWN, without what is None."""
    laid = {
        name: {key: value for key, value in (getattr(OWN, name) | change).items() if value is not Without}
        if isinstance(change, dict)
        else change
        for name, change in changes.items()
    }
    return replace(OWN, **({"host": "b"} | laid))


class Without:
    pass


CHECKOUT = "use the same checkout on all hosts"
COMMAND = "start the same command on all hosts"
CONFIG = "use the same config on all hosts"
VERSIONS = "install the same versions (envs/requirements.lock) on all hosts"
KINDS = {
    "program": (
        {"program": "ddp_tokens.gradients"},
        f"rank 1 on host b runs ddp_tokens.gradients, rank 0 on host a ddp_tokens.train: {COMMAND}",
    ),
    "source": (
        {"sources": {"src/ddp_tokens/window.py": "x"}},
        f"rank 1 on host b runs another src/ddp_tokens/window.py than rank 0 on host a: {CHECKOUT}",
    ),
    "lock file": (
        {"sources": {"envs/requirements.lock": "x"}},
        f"rank 1 on host b runs another envs/requirements.lock than rank 0 on host a: {CHECKOUT}",
    ),
    "torch": (
        {"versions": {"torch": "2.12.0"}},
        f"rank 1 on host b has torch 2.12.0, rank 0 on host a 2.13.0: {VERSIONS}",
    ),
    "build of torch": (
        {"versions": {"torch": "2.13.0+cpu"}},
        f"rank 1 on host b has torch 2.13.0+cpu, rank 0 on host a 2.13.0: {VERSIONS}",
    ),
    "NumPy": (
        {"versions": {"NumPy": "2.3.0"}},
        f"rank 1 on host b has NumPy 2.3.0, rank 0 on host a 2.4.0: {VERSIONS}",
    ),
    "run": (
        {"arguments": {"run": "interrupt"}},
        f"rank 1 on host b has run interrupt, rank 0 on host a continuous: {COMMAND}",
    ),
    "flag": (
        {"arguments": {"--allow-inexact": True}},
        f"rank 1 on host b has --allow-inexact true, rank 0 on host a false: {COMMAND}",
    ),
    "setting": ({"settings": {"batch": 4}}, f"rank 1 on host b has batch 4, rank 0 on host a 8: {CONFIG}"),
    "setting outside the identity": (
        {"settings": {"checkpoint_every": 0}},
        f"rank 1 on host b has checkpoint_every 0, rank 0 on host a 10: {CONFIG}",
    ),
    "setting that is null": (
        {"settings": {"epochs": 2}},
        f"rank 1 on host b has epochs 2, rank 0 on host a null: {CONFIG}",
    ),
    "setting that is a list": (
        {"settings": {"model.stages": [4]}},
        f"rank 1 on host b has model.stages [4], rank 0 on host a [4, 8]: {CONFIG}",
    ),
    "setting that is text": (
        {"settings": {"corpus.path": "größe.jsonl"}},
        f"rank 1 on host b has corpus.path größe.jsonl, rank 0 on host a rows.jsonl: {CONFIG}",
    ),
    "setting that it lacks": (
        {"settings": {"batch": Without}},
        f"rank 1 on host b has batch none, rank 0 on host a 8: {CONFIG}",
    ),
    "setting that only it has": (
        {"settings": {"optimizer.beta": 0.9}},
        f"rank 1 on host b has optimizer.beta 0.9, rank 0 on host a none: {CONFIG}",
    ),
    "source that it lacks": (
        {"sources": {"src/ddp_tokens/window.py": Without}},
        f"rank 1 on host b runs without src/ddp_tokens/window.py, unlike rank 0 on host a: {CHECKOUT}",
    ),
    "source that only it has": (
        {"sources": {"src/ddp_tokens/new.py": "x"}},
        f"rank 1 on host b runs src/ddp_tokens/new.py, unlike rank 0 on host a: {CHECKOUT}",
    ),
    "problem": (
        {"problem": "plan.json does not exist: run prepare first", "files": dict.fromkeys(OWN.files, Without)},
        "rank 1 on host b: plan.json does not exist: run prepare first",
    ),
    "rows": (
        {"files": {"rows.jsonl": "x"}},
        f"rank 1 on host b has another {ROWS} than rank 0 on host a: prepare once, on a folder that all hosts share",
    ),
    "initial weights": (
        {"files": {"initial.safetensors": "x"}},
        f"rank 1 on host b has another {INITIAL} than rank 0 on host a: run reference once, on a folder that all hosts "
        "share",
    ),
    "checkpoint": (
        {"files": {"checkpoint": "x"}},
        "rank 1 on host b has another step-0003 than rank 0 on host a: resume from one checkpoint, on a folder that "
        "all hosts share",
    ),
}
# Of each pair, the first is told where both differ.
ORDER = [
    "program",
    "lock file",
    "torch",
    "run",
    "setting",
    "source that it lacks",
    "problem",
    "rows",
    "initial weights",
]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_difference_is_told(kind):
    changes, sentence = KINDS[kind]
    assert disagreement([OWN, other(**changes)]) == sentence


@pytest.mark.parametrize("kind", KINDS)
def test_where_documents_differ_so_do_their_digests(kind):
    assert OWN.digest != other(**KINDS[kind][0]).digest


def both(first: str, second: str) -> Document:
    changes: dict = {}
    for kind in (second, first):
        for name, change in KINDS[kind][0].items():
            changes[name] = changes.get(name, {}) | change if isinstance(change, dict) else change
    return other(**changes)


@pytest.mark.parametrize(("first", "second"), list(combinations(ORDER, 2)))
def test_of_two_differences_the_reason_is_told(first, second):
    assert disagreement([OWN, both(first, second)]) == KINDS[first][1]


def test_another_setting_is_the_reason_why_a_rank_runs_other_files():
    """Each kind of work has a file of its own."""
    of_another_work = other(settings={"workload": "images"}, sources={"src/ddp_tokens/workloads/images.py": "x"})
    assert disagreement([OWN, of_another_work]) == (
        f"rank 1 on host b has workload images, rank 0 on host a none: {CONFIG}"
    )


def test_the_host_and_how_it_calls_the_files_may_differ():
    elsewhere = other(paths={"rows.jsonl": "/mnt/rows.jsonl"})
    assert disagreement([OWN, elsewhere]) is None
    assert OWN.digest == elsewhere.digest


def test_on_one_host_it_is_not_named():
    assert disagreement([OWN, other(host="a", settings={"batch": 4})]) == f"rank 1 has batch 4, rank 0 8: {CONFIG}"
    assert disagreement([OWN, other(host="a", problem="no")]) == "rank 1: no"


def test_all_ranks_of_one_host_that_differ_alike_are_named():
    """Ranks 1 and 5 have something else, and rank 6 the same, on another host."""
    four, two = other(settings={"batch": 4}), other(settings={"batch": 2})
    elsewhere = other(settings={"batch": 4}, host="c")
    documents = [OWN, two, four, four, four, two, elsewhere]
    assert disagreement(documents) == f"ranks 1, 5 on host b have batch 2, rank 0 on host a 8: {CONFIG}"
    documents[1] = OWN
    assert disagreement(documents) == f"ranks 2 to 4 on host b have batch 4, rank 0 on host a 8: {CONFIG}"
    changed = other(sources={"src/ddp_tokens/window.py": "x"})
    assert disagreement([OWN, changed, changed]) == (
        f"ranks 1, 2 on host b run another src/ddp_tokens/window.py than rank 0 on host a: {CHECKOUT}"
    )


def test_a_file_that_a_third_rank_lacks_does_not_hide_that_another_differs():
    lacks, changed = KINDS["source that it lacks"][0], KINDS["source"][0]
    assert disagreement([OWN, other(**lacks), other(**changed)]) == KINDS["source"][1].replace("rank 1", "rank 2")


def test_the_problem_of_the_first_rank_that_has_one_is_told():
    assert disagreement([OWN, other(), other(problem="x"), other(problem="y")]) == "rank 2 on host b: x"


def test_equal_documents_agree():
    assert disagreement([OWN] * 3) is None
    assert OWN.digest == other(host="a").digest


def test_a_document_comes_back_from_its_text_with_names_in_order():
    """Rows come before the lock and the plan, which follow from them."""
    back = parse_document(other().text)
    assert back == other()
    assert list(back.files) == list(OWN.files)


def test_ranks_are_named_shortly():
    assert [who(ranks, "aabbb") for ranks in ([1], [2, 3], [2, 4], [2, 3, 4])] == [
        "rank 1 on host a",
        "ranks 2, 3 on host b",
        "ranks 2, 4 on host b",
        "ranks 2 to 4 on host b",
    ]
    assert who([0], "aa") == "rank 0"
