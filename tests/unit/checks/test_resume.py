"""Each kind of difference is made on purpose, in checkpoints whose manifests fit, and must be found and named."""

import json
import shutil

import numpy
import pytest
from safetensors.numpy import load_file

from ddp_tokens.checks.resume_diagnosis import of_parameters
from ddp_tokens.checks.verdict import diagnosis_of, read_verdicts, write_verdicts
from ddp_tokens.files import digests, read_json_lines, sha256, write_json_lines
from tests.unit.checks.resumes import (
    STEPS,
    checkpoint,
    edit_json,
    edit_tensors,
    failures,
    flip_one_bit,
    nudge,
    only_failure,
    seal,
    verdicts_of,
)

CAUSES = ["checkpoints_whole", "identity", "start_rank_0", "rows_rank_0"]
CASES = [*CAUSES, "weights_moved", "parameters", "optimizer_state", "history", "rank_0"]


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


def test_the_figures_and_the_criterion_of_each_verdict(runs):
    verdicts = verdicts_of(runs)
    assert {verdict.expected for verdict in verdicts.values()} == {"pass"}
    assert {verdict.first_difference for verdict in verdicts.values()} == {None}
    sizes = {"interrupted": 1, "continuous": 1, "resumed": 1}
    assert verdicts["checkpoints_whole"].observed == {"ranks": sizes}
    before, after = (load_file(checkpoint(runs, run) / "model.safetensors") for run in ("interrupt", "continuous"))
    largest = max(float(abs(before[name].astype(float) - after[name].astype(float)).max()) for name in before)
    moved = {"max_abs_difference": largest, "parameters": len(after), "unmoved": 0}
    assert verdicts["weights_moved"].observed == moved
    values = sum(array.size for array in after.values())
    same = {"tensors": len(after), "values": values, "max_abs_difference": 0.0}
    for case, file in (("parameters", "model"), ("optimizer_state", "optimizer")):
        arrays = load_file(checkpoint(runs, "continuous") / f"{file}.safetensors").values()
        largest_value = max(float(abs(array).max()) for array in arrays)
        assert verdicts[case].observed == same | {"largest_value": largest_value}
    bit_for_bit = "every value of the resumed run equals that of the continuous run, bit for bit"
    assert verdicts["parameters"].criterion == verdicts["optimizer_state"].criterion == bit_for_bit
    for case, words in CRITERIA.items():
        assert words in verdicts[case].criterion


CRITERIA = {
    "checkpoints_whole": "are whole and of the same number of ranks",
    "identity": "had the same settings, data, order of data, initial weights, code and versions",
    "weights_moved": "between the interruption and the end, every parameter changes",
    "history": "before and after the interruption, equal the continuous run's",
}
LAST = ("continuous/step-0004", "resume/step-0004")
OF_RUNS = ("interrupt/step-0002", *LAST)
COMPARED = {
    "checkpoints_whole": [f"{run}/manifest.json" for run in OF_RUNS],
    "identity": [f"{run}/common.json" for run in OF_RUNS],
    "weights_moved": [f"{run}/model.safetensors" for run in OF_RUNS[:2]],
    "parameters": [f"{run}/model.safetensors" for run in LAST],
    "optimizer_state": [f"{run}/optimizer.safetensors" for run in LAST],
    "history": [f"{run}/history.jsonl" for run in ("interrupt", "continuous", "resume")],
}


@pytest.mark.parametrize("case", COMPARED)
def test_a_verdict_says_what_was_compared(runs, case):
    assert verdicts_of(runs)[case].evidence == digests(runs / name for name in COMPARED[case])


def test_checkpoints_of_other_numbers_of_ranks_are_not_compared(runs):
    """Whole in themselves: the interrupted one of two ranks, the last ones of one."""
    directory = checkpoint(runs, "interrupt")
    for kind in ("json", "safetensors"):
        shutil.copy(directory / f"rank-0.{kind}", directory / f"rank-1.{kind}")
    seal(directory, world_size=2)
    [verdict] = verdicts_of(runs).values()
    sizes = {"interrupted": 2, "continuous": 1, "resumed": 1}
    assert (verdict.case, verdict.outcome) == ("checkpoints_whole", "fail")
    assert (verdict.observed, verdict.first_difference) == ({"ranks": sizes}, {"world_size": sizes})


def test_without_a_manifest_the_others_are_the_evidence(runs):
    (checkpoint(runs, "continuous") / "manifest.json").unlink()
    [verdict] = verdicts_of(runs).values()
    assert (verdict.outcome, verdict.observed) == ("fail", {"ranks": {"interrupted": 1}})
    assert "step-0004 is incomplete" in verdict.first_difference["problem"]
    assert verdict.evidence == digests(checkpoint(runs, run) / "manifest.json" for run in ("interrupt", "resume"))


def test_an_optimizer_that_keeps_nothing_proves_nothing(runs):
    for run in ("continuous", "resume"):
        edit_tensors(checkpoint(runs, run), "optimizer.safetensors", lambda tensors: tensors.clear())
    verdict = verdicts_of(runs)["optimizer_state"]
    assert (verdict.expected, verdict.outcome) == ("inconclusive", "inconclusive")
    assert verdict.observed == {"tensors": 0, "values": 0, "max_abs_difference": 0.0, "largest_value": 0.0}
    assert verdict.criterion.endswith(", bit for bit (there is no value to compare)")


@pytest.mark.parametrize("run", ["resume", "continuous"])
def test_an_optimizer_that_keeps_nothing_on_one_side_fails(runs, run):
    edit_tensors(checkpoint(runs, run), "optimizer.safetensors", lambda tensors: tensors.clear())
    verdict = only_failure(runs, "optimizer_state")
    assert (verdict.expected, verdict.first_difference["problem"]) == ("pass", "missing on one side")


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
    assert difference["continuous"] == read_json_lines(runs / "continuous" / "history.jsonl")[2]


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
    difference = only_failure(runs, "history").first_difference
    assert difference == {"problem": "0 updates before the interruption, 4 in all"}


def test_one_update_before_the_interruption_is_enough(runs):
    edit_history(runs, "interrupt", lambda records: records.pop())
    verdict = verdicts_of(runs)["history"]
    assert (verdict.outcome, verdict.observed["updates_before_interruption"]) == ("pass", 1)


def test_no_update_after_the_interruption_is_no_resume(runs):
    shutil.copy(runs / "continuous" / "history.jsonl", runs / "interrupt" / "history.jsonl")
    verdict = only_failure(runs, "history")
    assert verdict.first_difference == {"problem": "4 updates before the interruption, 4 in all"}
    assert verdict.observed == {"updates": 4, "updates_before_interruption": 4}


def test_weights_that_have_no_name_in_common_did_not_move(runs):
    for run in ("continuous", "resume"):
        edit_tensors(checkpoint(runs, run), "model.safetensors", lambda tensors: tensors.clear())
    verdict = only_failure(runs, "weights_moved")
    assert verdict.observed == {"max_abs_difference": 0.0, "parameters": 0, "unmoved": 0}
    assert verdict.first_difference is None


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


@pytest.mark.parametrize(("steps", "diagnosis"), [(1, ("summed_in_another_order",)), (10**7, ())])
def test_weights_that_differ_by_rounding_only_were_summed_in_another_order(runs, steps, diagnosis):
    """Everything that was restored is right; one float32 in the last bit, and in its leading bits."""

    def nudge_one(tensors):
        name = max(tensors, key=lambda each: float(abs(tensors[each]).max()))
        array = tensors[name].copy()
        array.reshape(-1).view(numpy.int32)[abs(array).reshape(-1).argmax()] += steps
        tensors[name] = array

    edit_tensors(checkpoint(runs, "resume"), "model.safetensors", nudge_one)
    verdict = only_failure(runs, "parameters")
    assert verdict.diagnosis == diagnosis


def test_where_a_cause_is_known_rounding_explains_nothing():
    assert of_parameters(1e-9, 1.0, causes_excluded=True) == ("summed_in_another_order",)
    assert of_parameters(1e-9, 1.0, causes_excluded=False) == ()
    assert of_parameters(0.0, 1.0, causes_excluded=True) == ()
    assert of_parameters(1.01e-4, 1.0, causes_excluded=True) == ()
    assert of_parameters(0.99e-4, 1.0, causes_excluded=True) == ("summed_in_another_order",)
