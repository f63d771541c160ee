import numpy
import pytest
from safetensors.numpy import save_file

from ddp_tokens.checks.replicas import ATOL, check_measured_replicas, check_replicas
from ddp_tokens.checks.verdict import write_verdicts
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests, read_json, write_json


def weights(last=1.0):
    return {"bias": numpy.zeros(2, numpy.float32), "weight": numpy.array([0.5, last], numpy.float32)}


def run_of(folder, *of_ranks, at_start=None, buffers=()):
    """`at_start`: digest of each rank's model before its first update; equal ones when not given."""
    (folder / "ranks").mkdir()
    for rank, tensors in enumerate(of_ranks):
        held = {"model.safetensors": at_start[rank] if at_start else "as on every rank"}
        write_json(folder / "ranks" / f"start-rank-{rank}.json", {"held": held, "buffers": buffers})
        (folder / "ranks" / f"rank-{rank}.jsonl").write_text("")
        save_file(tensors, folder / "ranks" / f"state-rank-{rank}.safetensors")
    return folder


def verdict_on(folder):
    [verdict] = check_replicas({"resume": folder})
    return verdict


def test_equal_replicas_pass(tmp_path):
    verdict = verdict_on(run_of(tmp_path, weights(), weights(), weights()))
    assert (verdict.case, verdict.expected, verdict.outcome) == ("resume", "pass", "pass")
    assert verdict.first_difference is None
    assert verdict.criterion == "every rank's parameters and buffers equal those of rank 0, bit for bit"
    figures = {"ranks": 3, "tensors": 2, "buffers": 0, "max_abs_difference": 0.0, "different_models_at_start": 1}
    assert (verdict.observed, verdict.diagnosis) == (figures, ())
    ranks = tmp_path / "ranks"
    assert verdict.evidence == digests([*ranks.glob("*.safetensors"), *ranks.glob("start-*.json")])
    assert len(verdict.evidence) == 6


@pytest.mark.parametrize("tensors", [weights(), {}], ids=["some", "none"])
def test_one_rank_has_nothing_to_equal(tmp_path, tensors):
    verdict = verdict_on(run_of(tmp_path, tensors))
    assert (verdict.expected, verdict.outcome, verdict.diagnosis) == ("inconclusive", "inconclusive", ())
    assert verdict.criterion.endswith(", bit for bit (one rank: there is nothing to compare)")
    assert (verdict.observed["ranks"], verdict.observed["tensors"]) == (1, len(tensors))


def test_one_bit_on_one_rank_fails_and_is_named(tmp_path):
    other = float(numpy.nextafter(numpy.float32(1), numpy.float32(2)))
    verdict = verdict_on(run_of(tmp_path, weights(), weights(), weights(other)))
    assert verdict.outcome == "fail"
    assert verdict.first_difference == {"rank": 2, "parameter": "weight", "max_abs_difference": 2**-23}
    assert verdict.observed["max_abs_difference"] == 2**-23


def test_a_missing_tensor_on_one_rank_fails(tmp_path):
    verdict = verdict_on(run_of(tmp_path, weights(), {"weight": weights()["weight"]}))
    assert verdict.first_difference == {"rank": 1, "parameter": "bias", "problem": "missing on one side"}


def test_no_tensor_is_no_pass(tmp_path):
    verdict = verdict_on(run_of(tmp_path, {}, {}))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ())


@pytest.mark.parametrize(
    ("at_start", "diagnosis"),
    [("aaa", "ranks_drift_apart"), ("aba", "weights_differ_at_start"), ("aab", "weights_differ_at_start")],
)
def test_what_the_ranks_started_from_tells_two_mistakes_apart(tmp_path, at_start, diagnosis):
    verdict = verdict_on(run_of(tmp_path, weights(), weights(2.0), weights(), at_start=at_start))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", (diagnosis,))
    assert verdict.observed["different_models_at_start"] == len(set(at_start))
    assert verdict.first_difference["rank"] == 1


@pytest.mark.parametrize(
    ("buffers", "at_start", "diagnosis"),
    [
        (["weight"], "aaa", "buffers_drift_apart"),
        (["bias", "weight"], "aaa", "buffers_drift_apart"),
        (["bias"], "aaa", "ranks_drift_apart"),
        ([], "aaa", "ranks_drift_apart"),
        (["weight"], "aab", "weights_differ_at_start"),
    ],
)
def test_buffers_that_differ_are_told_from_parameters_that_do(tmp_path, buffers, at_start, diagnosis):
    """Rank 2 differs in `weight`: it is a buffer where it is listed as one."""
    verdict = verdict_on(run_of(tmp_path, weights(), weights(), weights(2.0), at_start=at_start, buffers=buffers))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", (diagnosis,))
    assert verdict.observed["buffers"] == len(buffers)
    assert verdict.first_difference["parameter"] == "weight"


def test_where_parameters_of_one_rank_differ_too_the_ranks_drift_apart(tmp_path):
    """Rank 1 differs in a buffer, rank 2 in a parameter."""
    buffer, parameter = weights(2.0), weights() | {"bias": numpy.ones(2, numpy.float32)}
    verdict = verdict_on(run_of(tmp_path, weights(), buffer, parameter, buffers=["weight"]))
    assert verdict.diagnosis == ("ranks_drift_apart",)
    assert verdict.first_difference["rank"] == 1


def test_more_than_ten_ranks_are_all_read(tmp_path):
    verdict = verdict_on(run_of(tmp_path, *[weights()] * 11, weights(2.0)))
    assert verdict.first_difference["rank"] == 11


def test_a_rank_without_its_state_is_named(tmp_path):
    run_of(tmp_path, weights(), weights())
    (tmp_path / "ranks" / "state-rank-1.safetensors").unlink()
    with pytest.raises(EvidenceError, match=r"state-rank-1\.safetensors does not exist"):
        verdict_on(tmp_path)


def test_a_rank_without_its_start_is_named(tmp_path):
    run_of(tmp_path, weights(), weights())
    (tmp_path / "ranks" / "start-rank-1.json").unlink()
    with pytest.raises(EvidenceError, match=r"start-rank-1\.json does not exist"):
        verdict_on(tmp_path)


def test_a_run_without_ranks_is_named(tmp_path):
    with pytest.raises(EvidenceError, match=r"ranks holds no rank's history: train again"):
        verdict_on(tmp_path)


def test_each_run_gets_its_verdict(tmp_path):
    for name in ("interrupt", "resume"):
        (tmp_path / name).mkdir()
        run_of(tmp_path / name, weights(), weights())
    verdicts = check_replicas({name: tmp_path / name for name in ("interrupt", "resume")})
    assert [verdict.case for verdict in verdicts] == ["interrupt", "resume"]


def states_of(folder, *of_ranks):
    paths = [folder / f"state-rank-{rank}.safetensors" for rank in range(len(of_ranks))]
    for path, tensors in zip(paths, of_ranks, strict=True):
        save_file(tensors, path)
    return paths


def measured(folder, *of_ranks):
    return check_measured_replicas(states_of(folder, *of_ranks))


def test_measured_replicas_that_are_equal_pass_and_are_called_bit_equal(tmp_path):
    paths = states_of(tmp_path, weights(), weights(), weights())
    verdict = check_measured_replicas(paths)
    assert (verdict.case, verdict.expected, verdict.outcome) == ("measured", "pass", "pass")
    assert verdict.criterion == "every value of every rank's parameters and buffers is within 1e-05 of rank 0's"
    figures = {"ranks": 3, "tensors": 2, "max_abs_difference": 0.0, "parameter": None, "bit_equal": True}
    assert (verdict.observed, verdict.first_difference) == (figures, None)
    assert verdict.evidence == digests(paths)
    assert len(verdict.evidence) == 3


def test_measured_replicas_within_the_tolerance_pass_and_are_not_called_bit_equal(tmp_path):
    """2^-17 = 7.6e-6 is below 1e-5; float32 holds 1 + 2^-17 exactly."""
    verdict = measured(tmp_path, weights(), weights(), weights(1 + 2**-17))
    assert (verdict.outcome, verdict.first_difference) == ("pass", None)
    assert verdict.observed["max_abs_difference"] == 2**-17 < ATOL
    assert (verdict.observed["parameter"], verdict.observed["bit_equal"]) == ("weight", False)


def test_measured_replicas_that_differ_only_in_the_sign_of_zero_are_not_bit_equal(tmp_path):
    negative = weights() | {"bias": -numpy.zeros(2, numpy.float32)}
    verdict = measured(tmp_path, weights(), negative)
    assert (verdict.outcome, verdict.observed["max_abs_difference"]) == ("pass", 0.0)
    assert verdict.observed["bit_equal"] is False


def test_measured_replicas_fail_where_one_value_is_outside_and_the_largest_is_named(tmp_path):
    """Rank 1 is off by 2^-16 = 1.5e-5 in `weight`, rank 2 by 0.25 in `bias`: first and largest are two places."""
    far = weights() | {"bias": numpy.array([0, -0.25], numpy.float32)}
    verdict = measured(tmp_path, weights(), weights(1 + 2**-16), far)
    assert verdict.outcome == "fail"
    assert verdict.first_difference == {"rank": 1, "parameter": "weight", "max_abs_difference": 2**-16}
    assert (verdict.observed["max_abs_difference"], verdict.observed["parameter"]) == (0.25, "bias")
    assert verdict.observed["bit_equal"] is False


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"bias": numpy.zeros(2, numpy.float32)}, {"parameter": "weight", "problem": "missing on one side"}),
        (weights() | {"extra": numpy.zeros(1)}, {"parameter": "extra", "problem": "missing on one side"}),
        (
            weights() | {"bias": numpy.zeros(3, numpy.float32)},
            {"parameter": "bias", "problem": "float32[2] against float32[3]"},
        ),
        (
            weights() | {"bias": numpy.zeros(2, numpy.float64)},
            {"parameter": "bias", "problem": "float32[2] against float64[2]"},
        ),
        (weights(numpy.nan), {"parameter": "weight", "problem": "values that are not finite: 1"}),
        (weights(numpy.inf), {"parameter": "weight", "problem": "values that are not finite: 1"}),
    ],
    ids=["missing", "more", "shape", "type", "NaN", "infinite"],
)
def test_measured_replicas_that_cannot_be_compared_fail(tmp_path, changed, problem):
    verdict = measured(tmp_path, weights(), changed)
    assert (verdict.outcome, verdict.observed["bit_equal"]) == ("fail", False)
    assert verdict.first_difference == {"rank": 1, **problem}
    write_verdicts(tmp_path / "replicas.json", "measured_replicas", [verdict])  # JSON that takes no NaN
    assert read_json(tmp_path / "replicas.json")["verdicts"][0]["observed"]["max_abs_difference"] == 0.0


def test_measured_replicas_of_the_same_nan_fail_although_bit_equal(tmp_path):
    verdict = measured(tmp_path, weights(numpy.nan), weights(numpy.nan))
    assert (verdict.outcome, verdict.observed["bit_equal"]) == ("fail", True)


def test_measured_values_that_are_not_finite_are_counted(tmp_path):
    """One of three, and one of one, of which no difference is left."""
    right, wrong = ({"a": numpy.array([0.0, value, 1.0])} for value in (0.0, numpy.nan))
    difference = measured(tmp_path, right, wrong).first_difference
    assert difference == {"rank": 1, "parameter": "a", "problem": "values that are not finite: 1"}
    alone = measured(tmp_path, {"a": numpy.zeros(1)}, {"a": numpy.array([numpy.inf])})
    assert alone.first_difference["problem"] == "values that are not finite: 1"
    assert alone.observed["max_abs_difference"] == 0.0


def test_a_measured_difference_of_just_what_is_allowed_passes(tmp_path):
    verdict = measured(tmp_path, {"a": numpy.zeros(1)}, {"a": numpy.array([ATOL])})
    assert (verdict.outcome, verdict.observed["max_abs_difference"]) == ("pass", ATOL)


def test_measured_replicas_without_a_tensor_are_no_pass(tmp_path):
    assert measured(tmp_path, {}, {}).outcome == "fail"


def test_a_single_measured_rank_has_nothing_to_equal(tmp_path):
    verdict = measured(tmp_path, weights())
    assert (verdict.expected, verdict.outcome) == ("inconclusive", "inconclusive")
    assert verdict.criterion.endswith("rank 0's (one rank: there is nothing to compare)")
    assert (verdict.observed["ranks"], verdict.observed["bit_equal"]) == (1, None)


def test_measured_ranks_without_their_state_are_named(tmp_path):
    paths = states_of(tmp_path, weights(), weights())
    paths[1].unlink()
    with pytest.raises(EvidenceError, match=r"state-rank-1\.safetensors does not exist"):
        check_measured_replicas(paths)
    with pytest.raises(EvidenceError, match=r"^no rank's state after the last measured step was given: measure again$"):
        check_measured_replicas([])
