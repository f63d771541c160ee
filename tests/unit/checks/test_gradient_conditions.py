"""What is stated beside the criterion: read from the buffers of the initial weights, and nothing for most."""

import numpy
import pytest
from safetensors.numpy import save_file

from ddp_tokens.checks.gradient_conditions import NOTHING_TO_STATE, conditions_of
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.config import ResNet, Transformer
from ddp_tokens.files import sha256, write_json
from ddp_tokens.layout import DTYPES, FLOAT64, NATIVE

VERDICT = Verdict("case", "pass", "pass", "within bounds", {}, {"dump": "00"})
FROZEN = "BatchNorm layers with frozen statistics (eval mode, the same initial buffers)"
NO_STATISTICS = "normalization judged as in training: no layer uses statistics of rows"
NOT_MIXED = "in float32, the dtype of the weights, without the mixed precision of training"


@pytest.fixture
def initial(tmp_path):
    def write(*names):
        path = tmp_path / "initial.safetensors"
        save_file({name: numpy.zeros(2, numpy.float32) for name in ("head.weight", *names)}, path)
        return path

    return write


def criterion(conditions, dtype=FLOAT64):
    return conditions.stated_in(VERDICT, dtype).criterion


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["stem_norm.running_mean", "running_mean"])
def test_layers_with_statistics_are_told_by_their_buffers(initial, dtype, name):
    """Whatever the settings say, and whatever the kind of model: the weights' file is what was compared."""
    for model in (ResNet(norm="batch"), ResNet(norm="group"), Transformer()):
        conditions = conditions_of(model, False, initial(name))
        assert criterion(conditions, dtype) == f"within bounds; {FROZEN}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("names", [[], ["running_mean.weight"], ["norm.not_running_mean", "norm.running_mean_"]])
def test_a_residual_network_without_them_is_judged_as_in_training(initial, dtype, names):
    conditions = conditions_of(ResNet(norm="group"), False, initial(*names))
    assert criterion(conditions, dtype) == f"within bounds; {NO_STATISTICS}"


def test_of_another_model_nothing_is_said_and_the_verdict_is_the_same(initial):
    conditions = conditions_of(Transformer(), False, initial("norm.weight"))
    assert conditions == NOTHING_TO_STATE
    assert conditions.stated_in(VERDICT, NATIVE) == VERDICT


def test_an_objective_that_is_not_the_mean_over_tokens_is_stated(initial, tmp_path):
    lock = tmp_path / "lock.json"
    write_json(lock, {})
    assert conditions_of(Transformer(), False, initial(), lock) == NOTHING_TO_STATE
    write_json(lock, {"objective": {"unit": "sequence", "class_weights": [1.0, 0.5], "label_smoothing": 0.1}})
    assert criterion(conditions_of(Transformer(), False, initial(), lock)) == (
        "within bounds; objective: every sequence counts the same, with the mean of its supervised tokens, by their "
        "weights w_i: L = (sum over sequences s of (sum_{i in s} w_i l_i) / (sum_{i in s} w_i)) / (number of "
        "sequences), with class weights [1.0, 0.5] and label smoothing 0.1"
    )
    write_json(lock, {"weights": "of rows"})
    conditions = conditions_of(Transformer(), False, initial(), lock)
    stated = (
        "every supervised token counts by its weight: L = (sum over tokens i of w_i l_i) / (sum over tokens i of w_i), "
        "with the rows' own weights"
    )
    assert criterion(conditions) == f"within bounds; objective: {stated}"
    assert conditions.stated_in(VERDICT, NATIVE).observed["objective"] == stated


def test_mixed_precision_is_said_of_the_training_dtype_only(initial):
    """float64 is another dtype than that of training anyway."""
    conditions = conditions_of(Transformer(), True, initial())
    assert criterion(conditions, NATIVE) == f"within bounds; {NOT_MIXED}"
    assert conditions.stated_in(VERDICT, FLOAT64) == VERDICT
    both = conditions_of(ResNet(), True, initial("a.running_mean"))
    assert criterion(both, NATIVE) == f"within bounds; {FROZEN}; {NOT_MIXED}"


@pytest.mark.parametrize("names", [["stem_norm.running_mean"], []])
def test_the_file_is_evidence_where_something_is_said_because_of_it(initial, names):
    path = initial(*names)
    stated = conditions_of(ResNet(), False, path).stated_in(VERDICT, FLOAT64)
    assert stated.evidence == {"dump": "00", str(path): sha256(path)}
    silent = conditions_of(Transformer(), True, initial()).stated_in(VERDICT, NATIVE)
    assert silent.evidence == {"dump": "00"}
