import re

import pytest

from ddp_tokens.checks.verdict import Verdict, write_verdicts
from ddp_tokens.errors import UnprovenGradientError
from ddp_tokens.files import digests
from ddp_tokens.guard import require_proven


@pytest.fixture
def evidence(tmp_path):
    path = tmp_path / "gradients.safetensors"
    path.write_bytes(b"what was compared")
    return path


@pytest.fixture
def write(tmp_path, evidence):
    def write_file(*outcomes):
        """One verdict per (expected, outcome)."""
        verdicts = [
            Verdict(f"case {index}", expected, outcome, "", {}, digests([evidence]))
            for index, (expected, outcome) in enumerate(outcomes)
        ]
        path = tmp_path / "verdicts.json"
        write_verdicts(path, "gradient_parity", verdicts)
        return path

    return write_file


def test_expected_outcomes_prove_the_gradient(write):
    """A control that fails as expected proves as much as a pass."""
    assert require_proven([write(("pass", "pass"), ("fail", "fail"))], train_anyway=False) == []


UNEXPECTED = [("pass", "fail"), ("fail", "pass"), ("pass", "inconclusive")]


@pytest.mark.parametrize(("expected", "outcome"), UNEXPECTED)
def test_an_unexpected_outcome_refuses_training(write, expected, outcome):
    path = write(("pass", "pass"), (expected, outcome))
    problem = f"{path}: case 'case 1' is {outcome}, expected {expected}"
    with pytest.raises(UnprovenGradientError, match=re.escape(problem) + ": training is refused; set train_anyway"):
        require_proven([path], train_anyway=False)


def test_evidence_that_has_changed_refuses_training(write, evidence):
    path = write(("pass", "pass"))
    evidence.write_bytes(b"another gradient")
    with pytest.raises(UnprovenGradientError, match=r"was judged on another .*gradients\.safetensors, check again"):
        require_proven([path], train_anyway=False)


def test_evidence_that_is_gone_refuses_training(write, evidence):
    path = write(("pass", "pass"))
    evidence.unlink()
    with pytest.raises(UnprovenGradientError, match=r"was judged on another .*gradients\.safetensors"):
        require_proven([path], train_anyway=False)


def test_a_file_without_a_verdict_proves_nothing(write):
    with pytest.raises(UnprovenGradientError, match=r"verdicts\.json"):
        require_proven([write()], train_anyway=False)


def test_train_anyway_turns_a_refusal_into_a_sentence(write):
    path = write(("pass", "fail"))
    assert require_proven([path], train_anyway=True) == [f"{path}: case 'case 0' is fail, expected pass"]


def test_a_missing_verdict_is_told_but_not_refused(tmp_path, write):
    gone = tmp_path / "gone.json"
    told = require_proven([write(("pass", "pass")), gone], train_anyway=False)
    assert told == [f"{gone} does not exist: the gradient of this run is not proven"]


def test_each_file_is_looked_at(tmp_path, write):
    path = write(("pass", "fail"))
    copy = tmp_path / "copy.json"
    copy.write_bytes(path.read_bytes())
    assert len(require_proven([path, copy], train_anyway=True)) == 2
