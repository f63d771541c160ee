"""Each kind of difference is made on purpose, in checkpoints whose manifests fit, and must be found and named."""

import json

import pytest
from safetensors.numpy import load_file

from ddp_tokens.checks.verdict import diagnosis_of, read_verdicts, write_verdicts
from ddp_tokens.files import sha256, write_json_lines
from tests.unit.checks.resumes import (
    STEPS,
    checkpoint,
    edit_json,
    edit_tensors,
    failures,
    flip_one_bit,
    nudge,
    only_failure,
    verdicts_of,
)

OF_ALL = ["checkpoints_whole", "identity", "weights_moved", "parameters", "optimizer_state", "history"]
CASES = [*OF_ALL, "start_rank_0", "rows_rank_0", "rank_0"]


def test_an_exact_resume_passes_every_case(runs, tmp_path):
    verdicts = verdicts_of(runs)
    assert list(verdicts) == CASES
    assert {verdict.outcome for verdict in verdicts.values()} == {"pass"}
    assert verdicts["weights_moved"].observed["max_abs_difference"] > 0
    assert verdicts["parameters"].observed["max_abs_difference"] == 0.0
    assert verdicts["parameters"].observed["values"] > 100
    assert verdicts["optimizer_state"].observed["values"] > 100
    assert verdicts["history"].observed == {"updates": 4, "updates_before_interruption": 2}
    assert verdicts["rank_0"].observed["windows"] == 4
    assert verdicts["identity"].observed == {"fields": 2, "differing": []}
    assert verdicts["start_rank_0"].observed == {"parts": 8, "differing": []}
    assert verdicts["rows_rank_0"].observed == {"updates": 2, "differing": 0}
    assert diagnosis_of(verdicts.values()) == ()
    for path, digest in verdicts["parameters"].evidence.items():
        assert sha256(path) == digest
    write_verdicts(tmp_path / "resume.json", "resume", list(verdicts.values()))
    assert read_verdicts(tmp_path / "resume.json")[1] == list(verdicts.values())


@pytest.mark.parametrize("run", ["resume", "continuous"])
def test_one_bit_of_one_parameter(runs, run):
    edit_tensors(checkpoint(runs, run), "model.safetensors", lambda tensors: flip_one_bit(tensors, "head.bias"))
    failed = only_failure(runs, "parameters")
    assert failed.first_difference["parameter"] == "head.bias"
    assert 0 < failed.observed["max_abs_difference"] < 1e-6  # the last bit of a small float32


def test_one_bit_of_the_optimizers_state(runs):
    name = "head.bias/momentum_buffer"
    edit_tensors(checkpoint(runs, "resume"), "optimizer.safetensors", lambda tensors: flip_one_bit(tensors, name))
    assert only_failure(runs, "optimizer_state").first_difference["parameter"] == name


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("run", ["resume", "continuous"])
def test_a_missing_tensor(runs, run, file):
    """Also where the uninterrupted run lacks it: a verdict, not a traceback."""
    names = []
    edit_tensors(checkpoint(runs, run), file, lambda tensors: names.append(tensors.popitem()[0]))
    case = "parameters" if file == "model.safetensors" else "optimizer_state"
    verdict = verdicts_of(runs)[case]
    assert (verdict.outcome, verdict.first_difference["parameter"]) == ("fail", names[0])
    assert verdict.first_difference["problem"] == "missing on one side"


def test_a_parameter_that_stood_still(runs):
    """Equal in all three runs: without a look at the interruption, everything would pass."""
    before = load_file(checkpoint(runs, "interrupt") / "model.safetensors")["head.weight"]
    for run in ("continuous", "resume"):
        edit_tensors(
            checkpoint(runs, run), "model.safetensors", lambda tensors: tensors.update({"head.weight": before})
        )
    failed = only_failure(runs, "weights_moved")
    assert failed.first_difference == {"parameter": "head.weight"}
    assert failed.observed["unmoved"] == 1


def edit_history(runs, run, edit):
    path = runs / run / "history.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    edit(records)
    write_json_lines(path, records)


@pytest.mark.parametrize(
    ("run", "step"), [("resume", 1), ("resume", 4), ("continuous", 3), ("interrupt", 2)], ids=lambda value: str(value)
)
def test_one_bit_of_one_loss_in_a_history(runs, run, step):
    edit_history(runs, run, lambda records: nudge(records[step - 1]))
    assert only_failure(runs, "history").first_difference["step"] == step


def test_units_of_one_update(runs):
    edit_history(runs, "resume", lambda records: records[2].update(units=1))
    difference = only_failure(runs, "history").first_difference
    assert (difference["step"], difference["resumed"]["units"]) == (3, 1)


def test_a_history_that_starts_anew_at_the_resume(runs):
    """Known failure second-resume: the counter restarts at the last resume."""
    edit_history(runs, "resume", lambda records: records.__delitem__(slice(0, 2)))
    failed = only_failure(runs, "history")
    assert failed.first_difference["step"] == 1
    assert failed.diagnosis == ("history_not_continued",)


def test_a_history_that_ends_early(runs):
    edit_history(runs, "resume", lambda records: records.pop())
    failed = only_failure(runs, "history")
    assert failed.first_difference == {"step": 4, "problem": "one history ends here"}
    assert failed.diagnosis == ()


def test_no_update_before_the_interruption_is_no_resume(runs):
    edit_history(runs, "interrupt", lambda records: records.clear())
    assert verdicts_of(runs)["history"].outcome == "fail"


def test_a_history_inside_the_checkpoint_that_differs_from_the_file(runs):
    edit_json(checkpoint(runs, "resume"), "common.json", lambda common: nudge(common["history"][2]))
    assert only_failure(runs, "history").first_difference["step"] == 3


IDENTITIES = {
    "rows.jsonl": ("another digest", ("another_corpus",)),
    "seed": (18, ()),
    "torch": ("9.9", ()),
}


@pytest.mark.parametrize("run", ["interrupt/step-0002", "resume/step-0004", "continuous/step-0004"])
@pytest.mark.parametrize("field", IDENTITIES)
def test_a_run_of_another_identity(runs, run, field):
    """In whichever run: also a field that the others do not have."""
    value, named = IDENTITIES[field]
    edit_json(runs / run, "common.json", lambda common: common["identity"].update({field: value}))
    failed = failures(runs)
    assert list(failed) == ["identity"]
    assert failed["identity"].diagnosis == named
    difference = failed["identity"].first_difference
    assert difference["fields"] == [field]
    assert [values for values in difference.values() if values == {field: value}] == [{field: value}]


@pytest.mark.parametrize("run", STEPS)
def test_an_altered_checkpoint_fails_and_is_not_compared(runs, run):
    path = checkpoint(runs, run) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0\0")
    verdicts = verdicts_of(runs)
    assert list(verdicts) == ["checkpoints_whole"]
    whole = verdicts["checkpoints_whole"]
    assert (whole.expected, whole.outcome) == ("pass", "fail")
    assert f"{run}/step-000{STEPS[run]}/model.safetensors was altered" in whole.first_difference["problem"]
