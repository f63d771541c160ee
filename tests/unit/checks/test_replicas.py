import numpy
import pytest
from safetensors.numpy import save_file

from ddp_tokens.checks.replicas import check_replicas
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests, write_json


def weights(last=1.0):
    return {"bias": numpy.zeros(2, numpy.float32), "weight": numpy.array([0.5, last], numpy.float32)}


def run_of(folder, *of_ranks, at_start=None):
    """`at_start`: digest of each rank's model before its first update; equal ones when not given."""
    (folder / "ranks").mkdir()
    for rank, tensors in enumerate(of_ranks):
        held = {"model.safetensors": at_start[rank] if at_start else "as on every rank"}
        write_json(folder / "ranks" / f"start-rank-{rank}.json", {"held": held})
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
    figures = {"ranks": 3, "tensors": 2, "max_abs_difference": 0.0, "different_models_at_start": 1}
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
