"""Each kind of difference is made on purpose, in checkpoints whose manifests fit, and must be found and named."""

import json

import numpy
import pytest
from safetensors.numpy import load_file, save_file

from ddp_tokens.checkpoint_files import make_manifest
from ddp_tokens.checks.resume import check_resume
from ddp_tokens.checks.verdict import diagnosis_of, read_verdicts, write_verdicts
from ddp_tokens.files import sha256, write_json, write_json_lines

STEPS = {"interrupt": 2, "continuous": 4, "resume": 4}
OF_ALL = ["checkpoints_whole", "identity", "weights_moved", "parameters", "optimizer_state", "history"]
CASES = [*OF_ALL, "start_rank_0", "rows_rank_0", "rank_0"]


def checkpoint(runs, run):
    return runs / run / f"step-{STEPS[run]:04d}"


def verdicts_of(runs):
    found = check_resume(checkpoint(runs, "interrupt"), checkpoint(runs, "continuous"), checkpoint(runs, "resume"))
    return {verdict.case: verdict for verdict in found}


def seal(directory):
    """Make the manifest fit what the directory now holds."""
    write_json(directory / "manifest.json", make_manifest(directory, int(directory.name[-4:]), 1))


def edit_tensors(directory, file, edit):
    tensors = load_file(directory / file)
    edit(tensors)
    save_file(tensors, directory / file)
    seal(directory)


def edit_json(directory, file, edit):
    document = json.loads((directory / file).read_text())
    edit(document)
    write_json(directory / file, document)
    seal(directory)


def flip_one_bit(tensors, name):
    array = tensors[name].copy()
    array.reshape(-1).view(numpy.uint8)[0] ^= 1
    tensors[name] = array


def failures(runs):
    return {name: verdict for name, verdict in verdicts_of(runs).items() if verdict.outcome == "fail"}


def only_failure(runs, case):
    """The verdict on `case`, which alone must fail."""
    verdicts = failures(runs)
    assert list(verdicts) == [case]
    return verdicts[case]


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


def nudge(record):
    record["loss_sum"] = float(numpy.nextafter(record["loss_sum"], numpy.inf))


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


def test_the_torch_generator(runs):
    edit_tensors(checkpoint(runs, "resume"), "rank-0.safetensors", lambda tensors: flip_one_bit(tensors, "torch_cpu"))
    difference = only_failure(runs, "rank_0").first_difference
    assert (difference["rank"], difference["parameter"]) == (0, "torch_cpu")


DIFFERENT_STATES = {
    "python": lambda state: state["python"][0].__setitem__(0, 0),
    "numpy": lambda state: state["numpy"].__setitem__(2, 1),
    "history": lambda state: nudge(state["history"][3]),
}


@pytest.mark.parametrize("field", DIFFERENT_STATES)
def test_other_generators_and_records_at_the_end(runs, field):
    edit_json(checkpoint(runs, "resume"), "rank-0.json", DIFFERENT_STATES[field])
    assert only_failure(runs, "rank_0").first_difference == {"rank": 0, "state": field}


@pytest.mark.parametrize("run", STEPS)
def test_an_altered_checkpoint_fails_and_is_not_compared(runs, run):
    path = checkpoint(runs, run) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0\0")
    verdicts = verdicts_of(runs)
    assert list(verdicts) == ["checkpoints_whole"]
    whole = verdicts["checkpoints_whole"]
    assert (whole.expected, whole.outcome) == ("pass", "fail")
    assert f"{run}/step-000{STEPS[run]}/model.safetensors was altered" in whole.first_difference["problem"]


LET_DIFFER = [{"step": 2, "torch": {"from": "2.13.0", "to": "2.14.0"}}]


def resumed_with_another_torch(runs, **more):
    for run in STEPS:
        edit_json(checkpoint(runs, run), "common.json", lambda common: common["identity"].update(torch="2.13.0"))
    change = {"torch": "2.14.0", **more}
    edit_json(checkpoint(runs, "resume"), "common.json", lambda common: common["identity"].update(change))


def test_a_resume_that_was_let_differ_is_called_inexact(runs, tmp_path):
    """Equal bits all the same, as here, are reported, and are not what is claimed."""
    resumed_with_another_torch(runs, inexact=LET_DIFFER)
    verdicts = verdicts_of(runs)
    identity = verdicts.pop("identity")
    assert (identity.expected, identity.outcome, identity.as_expected) == ("inconclusive", "inconclusive", True)
    assert "inexact: --allow-inexact let torch differ, so equal bits are not claimed" in identity.criterion
    assert identity.observed == {"fields": 3, "differing": ["inexact", "torch"], "inexact": LET_DIFFER}
    assert identity.first_difference["interrupted"]["torch"] == "2.13.0"
    assert {verdict.outcome for verdict in verdicts.values()} == {"pass"}
    write_verdicts(tmp_path / "resume.json", "resume", [identity])
    assert read_verdicts(tmp_path / "resume.json")[1] == [identity]


def test_another_torch_that_was_not_allowed_fails(runs):
    resumed_with_another_torch(runs)
    failed = only_failure(runs, "identity")
    assert (failed.expected, failed.observed) == ("pass", {"fields": 3, "differing": ["torch"]})
    assert "inexact" not in failed.criterion


@pytest.mark.parametrize("more", [{"seed": 18}, {"repartitioned": [{"step": 2, "world_size": {"from": 1, "to": 1}}]}])
def test_inexact_excuses_nothing_else(runs, more):
    resumed_with_another_torch(runs, inexact=LET_DIFFER, **more)
    assert only_failure(runs, "identity").expected == "pass"
