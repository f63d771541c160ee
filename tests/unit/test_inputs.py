import pytest
import torch

from ddp_tokens.errors import CorpusError, EvidenceError, PlanError
from ddp_tokens.inputs import initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.prepare import prepare
from ddp_tokens.steps import view
from ddp_tokens.tensors import save_tensors
from ddp_tokens.workloads import token_labels
from tests.helpers import record, tiny_experiment, write_lines
from tests.unit.training import SHAPE, tiny_model


def prepared_in(folder, experiment):
    at = Layout(folder)
    prepare(view(experiment, "prepare"), at.rows, at.lock, at.plan)
    return at


def test_what_was_prepared_is_read(tmp_path):
    experiment = tiny_experiment()
    prepared = read_prepared(view(experiment, "interrupt"), prepared_in(tmp_path, experiment))
    assert len(prepared.rows) == 44
    assert len(prepared.plan) == experiment.steps
    assert prepared.shape == SHAPE


def test_a_plan_for_other_settings_is_refused(tmp_path):
    at = prepared_in(tmp_path, tiny_experiment())
    with pytest.raises(PlanError, match="was made for batch 2, not 1: prepare again"):
        read_prepared(view(tiny_experiment(batch=1), "interrupt"), at)


def test_another_corpus_is_refused(tmp_path):
    at = prepared_in(tmp_path, tiny_experiment())
    other = tiny_experiment().corpus.model_dump() | {"vocabulary": 3}
    with pytest.raises(PlanError, match="was made for corpus"):
        read_prepared(view(tiny_experiment(corpus=other), "interrupt"), at)


def test_own_rows_that_changed_are_refused(tmp_path):
    rows = [record("a"), record("b"), record("c", "test")]
    path = write_lines(tmp_path / "mine.jsonl", *rows)
    experiment = tiny_experiment(corpus={"path": str(path)}, batch=1, accumulation=1)
    at = prepared_in(tmp_path / "out", experiment)
    assert len(read_prepared(view(experiment, "interrupt"), at).rows) == 3
    write_lines(path, *rows, record("d"))
    with pytest.raises(CorpusError, match=r"mine\.jsonl has changed since prepare"):
        read_prepared(view(experiment, "interrupt"), at)


def initial(weights, dtype=torch.float32, **model):
    return initial_model(tiny_experiment(), token_labels, SHAPE, weights, "cpu", dtype)


def test_the_weights_are_those_of_the_file(tmp_path):
    source = tiny_model(seed=5)
    save_tensors(tmp_path / "w.safetensors", source.state_dict())
    assert not torch.equal(tiny_model(seed=6).head.weight, source.head.weight)
    for name, value in initial(tmp_path / "w.safetensors").state_dict().items():
        assert torch.equal(value, source.state_dict()[name])


def test_float64_weights_are_the_same_numbers(tmp_path):
    source = tiny_model(seed=5)
    save_tensors(tmp_path / "w.safetensors", source.state_dict())
    wide = initial(tmp_path / "w.safetensors", torch.float64).state_dict()
    assert {value.dtype for value in wide.values()} == {torch.float64}
    assert all(torch.equal(value, source.state_dict()[name].double()) for name, value in wide.items())


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(EvidenceError, match=r"w\.safetensors does not exist: run reference first"):
        initial(tmp_path / "w.safetensors")


@pytest.mark.parametrize("change", ["another width", "a name is missing"])
def test_weights_of_another_model_are_refused(tmp_path, change):
    tensors = dict(
        tiny_model(width=4, heads=2).state_dict() if change == "another width" else tiny_model().state_dict()
    )
    if change == "a name is missing":
        del tensors["head.bias"]
    save_tensors(tmp_path / "w.safetensors", tensors)
    with pytest.raises(EvidenceError, match=r"w\.safetensors does not fit the model of this experiment"):
        initial(tmp_path / "w.safetensors")
