"""Archived and rebuilt side by side: files, verdicts, and what is concluded."""

import json

import pytest

from ddp_tokens.archive.nearness import compare_scores
from ddp_tokens.archive.rebuilt import (
    ADDED,
    DIFFERS,
    IDENTICAL,
    MISSING,
    NOT_HELD,
    WITHIN,
    Compared,
    Sides,
    compare_files,
    compare_verdicts,
    document_of,
)
from ddp_tokens.archive.rebuilt_text import SHOWN, as_text
from ddp_tokens.archive.recorded import RecordedVerdict
from ddp_tokens.files import sha256_of_bytes
from tests.unit.archive.archives import as_bytes, verdict

RUN = "results/tiny/runs/resume"
OLD, NEW = 1.0, 1.00001  # within the tolerance of a number


def judged(case="a", outcome="pass", expected="pass", diagnosis=()):
    return RecordedVerdict(**verdict("check", case, outcome, expected) | {"diagnosis": tuple(diagnosis)})


def digest(value):
    return sha256_of_bytes(as_bytes(value))


def compared(tmp_path, archived, rebuilt, omitted=()):
    for folder, files in (("archive", archived), ("project", rebuilt)):
        for name, content in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(as_bytes(content))
    sides = Sides(
        *({name: digest(of) for name, of in side.items()} for side in (archived, rebuilt)), frozenset(omitted)
    )
    return {of.name: of for of in compare_files(sides, tmp_path / "archive", tmp_path / "project")}


def states(found):
    return {name: of.state for name, of in found.items()}


def test_the_four_states(tmp_path):
    archived = {"results/tiny/evaluation.json": [OLD], "results/tiny/plan.json": [1], f"{RUN}/history.jsonl": "[1.0]\n"}
    archived["results/tiny/figures/tokens.png"] = "png"
    rebuilt = {"results/tiny/evaluation.json": [NEW], "results/tiny/plan.json": [1], f"{RUN}/history.jsonl": "[2.0]\n"}
    found = compared(tmp_path, archived, rebuilt)
    assert states(found) == {
        "results/tiny/evaluation.json": WITHIN,
        "results/tiny/figures/tokens.png": MISSING,
        "results/tiny/plan.json": IDENTICAL,
        f"{RUN}/history.jsonl": DIFFERS,
    }
    assert found[f"{RUN}/history.jsonl"].why == "[0][0]: 1.0 archived, 2.0 rebuilt"


def chain_of_digests(value):
    """history.jsonl <- common.json <- manifest.json, each with the digest of the one before."""
    history = json.dumps({"loss": value}) + "\n"
    common = {"history": digest(history)}
    return {
        f"{RUN}/a-manifest.json": {"sha256": {"common.json": digest(common)}},
        f"{RUN}/common.json": common,
        f"{RUN}/history.jsonl": history,
    }


def test_digests_follow_from_files_within_tolerance_through_others(tmp_path):
    """By name, each comes before the one that it depends on."""
    assert set(states(compared(tmp_path, chain_of_digests(OLD), chain_of_digests(NEW))).values()) == {WITHIN}


def test_digests_do_not_follow_from_a_file_that_differs(tmp_path):
    assert set(states(compared(tmp_path, chain_of_digests(1.0), chain_of_digests(2.0))).values()) == {DIFFERS}


def test_a_digest_of_another_file_than_before_is_no_consequence(tmp_path):
    """The injected fault: the rebuilt file names the digest of another file, which is itself as archived."""
    files = {"results/tiny/evaluation.json": [1], "results/tiny/plan.json": [2]}
    archived = files | {f"{RUN}/common.json": {"of": digest([1])}}
    rebuilt = files | {f"{RUN}/common.json": {"of": digest([2])}}
    assert states(compared(tmp_path, archived, rebuilt))[f"{RUN}/common.json"] == DIFFERS


def test_a_digest_of_what_is_in_no_file_decides_nothing(tmp_path):
    found = compared(tmp_path, {f"{RUN}/start.json": ["a" * 64]}, {f"{RUN}/start.json": ["b" * 64]})
    assert states(found) == {f"{RUN}/start.json": WITHIN}


def test_what_the_archive_does_not_hold_is_compared_by_digest(tmp_path):
    archived = {"results/tiny/initial.safetensors": "one", "results/tiny/gradients/a.safetensors": "same"}
    rebuilt = archived | {"results/tiny/initial.safetensors": "two"}
    found = compared(tmp_path, archived, rebuilt, omitted=archived)
    assert found["results/tiny/initial.safetensors"].why == NOT_HELD
    assert found["results/tiny/gradients/a.safetensors"].state == IDENTICAL


@pytest.mark.parametrize(
    ("archived", "rebuilt", "problem"),
    [
        (judged(), judged(), None),
        (
            judged(),
            judged(outcome="fail", diagnosis=["lost"]),
            "was pass, expected pass, rebuilt fail (lost), expected pass",
        ),
        (judged(expected="fail"), judged(), "was pass, expected fail, rebuilt pass, expected pass"),
        (
            judged(outcome="fail", expected="fail", diagnosis=["a"]),
            judged(outcome="fail", expected="fail", diagnosis=["b"]),
            "was fail (a), expected fail, rebuilt fail (b), expected fail",
        ),
        (judged(outcome="fail"), judged(outcome="fail"), "is fail, expected pass, as archived"),
        (judged(), None, "was not reached again"),
        (None, judged(), "is not in the archive"),
    ],
)
def test_verdicts(archived, rebuilt, problem):
    [found] = compare_verdicts(*([side] if side else [] for side in (archived, rebuilt)))
    assert (found["check"], found["case"], found["problem"]) == ("check", "a", problem)


def documented(files=(), verdicts=None, rebuilt=None, scores=()):
    archived = {of.name: "1" for of in files}
    sides = Sides(archived, archived if rebuilt is None else rebuilt)
    verdicts = compare_verdicts([judged()], [judged()]) if verdicts is None else verdicts
    return document_of("tiny", sides, files, verdicts, scores)


def scored(archived, rebuilt):
    return compare_scores(*({"test": {"loss": loss}} for loss in (archived, rebuilt)))


def test_what_is_promised_holds():
    files = [Compared("results/tiny/plan.json", IDENTICAL), Compared("results/tiny/initial.safetensors", WITHIN)]
    rebuilt = {"results/tiny/plan.json": "1", "results/tiny/initial.safetensors": "2"}
    document = documented(files, rebuilt=rebuilt, scores=scored(0.5, 0.501))
    assert document["holds"]
    assert not document["same_results"]
    assert document["folders"][0] == {"folder": "plan", IDENTICAL: 1, WITHIN: 0, DIFFERS: 0, MISSING: 0, ADDED: 0}
    text = as_text(document)
    assert "Verdicts: all 1 are as archived and as expected." in text
    assert "Scores: all 1 are as archived, to 0.01 of themselves or of 1" in text
    assert "The rebuild confirms the archive; not the same byte for byte" in text


MODEL = Compared("results/tiny/runs/resume/step-0004/model.safetensors", DIFFERS, "a: 0.1 of its norm")
FIGURE = Compared("results/tiny/figures/a.png", DIFFERS, "other bytes")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ([FIGURE, MODEL], f"2 files differ by more than the tolerance, the first is {MODEL.name} (a: 0.1 of its norm)"),
        ([FIGURE], f"1 file differs by more than the tolerance, it is {FIGURE.name} (other bytes)"),
        (
            [Compared("results/tiny/gradients/a.safetensors", DIFFERS, NOT_HELD)],
            f"1 file differs by more than the tolerance, it is results/tiny/gradients/a.safetensors ({NOT_HELD})",
        ),
        (
            [Compared("results/tiny/evaluation.json", DIFFERS, "samples[0]: x")],
            "1 file differs by more than the tolerance, it is results/tiny/evaluation.json (samples[0]: x)",
        ),
    ],
)
def test_weights_that_differ_are_no_failure_and_no_confirmation(files, told):
    document = documented(files, rebuilt={of.name: "2" for of in files})
    assert document["holds"]
    text = as_text(document)
    assert f"The verdicts and scores are confirmed; {told}; not the same byte for byte" in text
    assert "confirms the archive" not in text


@pytest.mark.parametrize("rebuilt", [0.54, None])
def test_a_score_that_is_not_reached_again(rebuilt):
    document = documented(scores=scored(0.99, rebuilt))
    assert not document["holds"]
    text = as_text(document)
    assert "Scores: 1 of 1 are not as archived, to 0.01 of themselves or of 1:\n  test.loss was 0.99, rebuilt " in text
    assert "The rebuild does NOT confirm the archive; " in text


def test_a_file_that_only_the_rebuild_has(tmp_path):
    plan, more = "results/tiny/plan.json", "results/tiny/checks/more.json"
    found = compared(tmp_path, {plan: [1]}, {plan: [1], more: [2]})
    assert states(found) == {plan: IDENTICAL, more: ADDED}
    document = document_of("tiny", Sides({plan: "1"}, {plan: "1", more: "2"}), list(found.values()), [], [])
    assert not document["same_results"]
    assert document["unkept"] == [more]
    assert f"Added:\n  {more}" in as_text(document)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": [Compared("results/tiny/plan.json", DIFFERS, "x")]},
        {"files": [Compared("results/tiny/corpus/rows.jsonl", DIFFERS, "x")]},
        {"files": [Compared("results/tiny/config.yaml", DIFFERS, "x")]},
        {"files": [Compared("results/tiny/config.yaml", DIFFERS, NOT_HELD)]},
        {"files": [Compared("results/tiny/initial.safetensors", DIFFERS, "x")]},
        {"files": [Compared("results/tiny/reference/native.safetensors", DIFFERS, "x")]},
        {"files": [Compared("results/tiny/gradients/token_mean.native.safetensors", DIFFERS, "x")]},
        {"files": [Compared("results/tiny/summary.json", DIFFERS, "x")]},
        {"files": [Compared("results/tiny/checks/more.json", ADDED)]},
        {"files": [Compared("results/tiny/figures/a.png", MISSING)]},
        {"verdicts": compare_verdicts([judged()], [judged(outcome="fail")])},
        {"verdicts": []},
    ],
)
def test_what_is_promised_does_not_hold(changes):
    document = documented(**changes)
    assert not document["holds"]
    assert "does NOT confirm" in as_text(document)
    assert all(name in as_text(document) for name in document["unkept"])


def test_a_failing_verdict_is_named():
    text = as_text(
        documented(verdicts=compare_verdicts([judged(), judged("b")], [judged(outcome="fail"), judged("b")]))
    )
    assert "1 of 2 are not as archived and as expected:\n  check/a was pass" in text


def test_the_same_results():
    document = documented([Compared("results/tiny/plan.json", IDENTICAL)])
    assert document["same_results"]
    assert document["files"] == []
    assert f"the same, byte for byte: comparison digest {document['archived_digest']}" in as_text(document)


def test_names_are_bounded():
    files = [Compared(f"results/tiny/figures/{number:02}.png", DIFFERS, "other bytes") for number in range(SHOWN + 3)]
    text = as_text(documented(files))
    assert text.split("Verdicts:")[0].count(".png") == SHOWN
    assert "and 3 more, in rebuild.json" in text
