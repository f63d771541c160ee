import pytest
import torch

from ddp_tokens.checks.gradient_parity import compare
from ddp_tokens.config import Tolerances
from ddp_tokens.errors import WorkloadError
from ddp_tokens.layout import Layout
from ddp_tokens.prepare import prepare
from ddp_tokens.reference import gradients_of, reference_gradient, write_initial_weights, write_references
from ddp_tokens.steps import view
from ddp_tokens.tensors import load_tensors
from ddp_tokens.workloads import token_labels
from tests.helpers import tiny_experiment
from tests.unit.training import TRAINING, tiny_model

SHORT, LONG = TRAINING[0], TRAINING[1]
FLOAT64 = Tolerances().float64  # 1e-12 + 1e-9 x |ref|: room for another order of sums, for no other formula


def gradient_of(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return gradients_of(model)


def loss_and_units(model, rows):
    batch = token_labels.collate(rows)
    return token_labels.loss_sum(token_labels.forward(model, batch), batch)


def difference(found, expected):
    arrays = [{name: value.numpy() for name, value in gradients.items()} for gradients in (found, expected)]
    return compare(*arrays, FLOAT64)[1]


def test_it_is_the_gradient_of_the_mean_over_all_tokens():
    assert len(SHORT.tokens) < len(LONG.tokens)
    model = tiny_model(torch.float64).eval()
    total, units = loss_and_units(model, [SHORT, LONG])
    concatenated = gradient_of(model, total / units)
    reference = reference_gradient(model, token_labels, [SHORT, LONG])
    assert set(reference) == {name for name, _ in model.named_parameters()}
    assert difference(reference, concatenated) is None


def test_the_gradient_of_a_mean_of_means_is_another():
    model = tiny_model(torch.float64).eval()
    parts = [loss_and_units(model, [row]) for row in (SHORT, LONG)]
    wrong = gradient_of(model, sum(total / units for total, units in parts) / 2)
    assert difference(wrong, reference_gradient(model, token_labels, [SHORT, LONG])) is not None


def test_dropout_is_off():
    model = tiny_model(dropout=0.5).train()
    first, second = (reference_gradient(model, token_labels, [SHORT, LONG]) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_parameter_without_a_gradient_is_left_out():
    model = tiny_model()
    assert gradients_of(model) == {}


class CountsOneMore:
    """token_labels, but the loss claims a unit that the corpus does not count."""

    collate, forward = staticmethod(token_labels.collate), staticmethod(token_labels.forward)

    @staticmethod
    def loss_sum(outputs, batch):
        loss, units = token_labels.loss_sum(outputs, batch)
        return loss, units + 1


def test_signature_decides_formula_so_other_units_than_the_corpus_counts_are_refused():
    """Two rows, so two units too many."""
    units = len(SHORT.tokens) + len(LONG.tokens)
    message = f"window 3: workload CountsOneMore sums the losses of {units + 2} units on rank 0, where .* {units}: let"
    with pytest.raises(WorkloadError, match=message):
        reference_gradient(tiny_model(), CountsOneMore(), [SHORT, LONG], window="window 3")


def written_in(folder, **changes):
    experiment, at = tiny_experiment(**changes), Layout(folder)
    prepare(view(experiment, "prepare"), at.rows, at.lock, at.plan)
    write_references(view(experiment, "reference"), at)
    return at


def test_one_dump_per_dtype_with_both_windows(tmp_path):
    at = written_in(tmp_path)
    native, wide = load_tensors(at.reference("native")), load_tensors(at.reference("float64"))
    parameters = {name for name, _ in tiny_model().named_parameters()}
    assert set(native) == set(wide) == {f"{case}/{name}" for case in ("first", "most_unequal") for name in parameters}
    assert ({t.dtype for t in native.values()}, {t.dtype for t in wide.values()}) == ({torch.float32}, {torch.float64})
    assert all(torch.count_nonzero(tensor) for tensor in wide.values())


def test_the_same_seed_gives_the_same_files_and_another_seed_others(tmp_path):
    first, second = written_in(tmp_path / "a"), written_in(tmp_path / "b")
    for path in (first.initial, first.reference("native"), first.reference("float64")):
        assert path.read_bytes() == (second.root / path.relative_to(first.root)).read_bytes()
    write_initial_weights(tiny_experiment(seed=3), second)
    assert first.initial.read_bytes() != second.initial.read_bytes()
