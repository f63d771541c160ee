import numpy
import pytest
import torch

from ddp_tokens.checks.gradient_norms import algebra_tolerances, errors, largest_ratio
from ddp_tokens.corpora.rows import supervised
from ddp_tokens.errors import PlanError, WorkloadError
from ddp_tokens.files import digests
from ddp_tokens.inputs import Prepared
from ddp_tokens.layout import Layout
from ddp_tokens.plan import windows_to_compare
from ddp_tokens.prepare import prepare
from ddp_tokens.reference import (
    batched_gradient,
    gradients_of,
    mean_of,
    parts,
    reference_gradient,
    references,
    write_initial_weights,
    write_references,
)
from ddp_tokens.steps import view
from ddp_tokens.tensors import load_tensors
from ddp_tokens.workloads import token_labels
from tests.helpers import tiny_experiment
from tests.unit.training import TRAINING, tiny_model

SHORT, LONG, MIDDLE = TRAINING[0], TRAINING[1], TRAINING[2]
WINDOW = [[[SHORT, LONG], [MIDDLE]], [[LONG.unsupervised()], [LONG]]]


def gradient_of(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return gradients_of(model)


def loss_and_units(model, rows):
    batch = token_labels.collate(rows)
    return token_labels.loss_sum(token_labels.forward(model, batch), batch)


def tolerances_apart(found, expected):
    """Largest error in tolerances of 1e-12 of the parameter's norm: room for another order of sums only."""
    arrays = [{name: value.numpy() for name, value in gradients.items()} for gradients in (found, expected)]
    return largest_ratio(errors(*arrays), algebra_tolerances(arrays[1], 1e-12))[0]


def test_it_is_the_gradient_of_the_mean_over_all_tokens():
    assert len(SHORT.tokens) < len(LONG.tokens)
    model = tiny_model(torch.float64).eval()
    total, units = loss_and_units(model, [SHORT, LONG])
    concatenated = gradient_of(model, total / units)
    reference = reference_gradient(model, token_labels, [SHORT, LONG])
    assert set(reference) == {name for name, _ in model.named_parameters()}
    assert tolerances_apart(reference, concatenated) < 1


def test_the_gradient_of_a_mean_of_means_is_another():
    model = tiny_model(torch.float64).eval()
    parts_ = [loss_and_units(model, [row]) for row in (SHORT, LONG)]
    wrong = gradient_of(model, sum(total / units for total, units in parts_) / 2)
    assert tolerances_apart(wrong, reference_gradient(model, token_labels, [SHORT, LONG])) > 1e6


def test_each_part_is_the_gradient_of_a_sum():
    model = tiny_model(torch.float64).eval()
    found = parts(model, token_labels, WINDOW)
    assert list(found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    total, _ = loss_and_units(model, [SHORT, LONG])
    assert tolerances_apart(found[0, 0], gradient_of(model, total)) < 1
    assert all(not gradient.any() for gradient in found[1, 0].values()), "no label counts there"


def test_the_mean_of_the_parts_is_the_reference():
    model = tiny_model(torch.float64).eval()
    rows = [SHORT, LONG, MIDDLE, LONG]
    found = mean_of(parts(model, token_labels, WINDOW), sum(map(supervised, rows)))
    assert tolerances_apart(found, reference_gradient(model, token_labels, rows)) < 1


def test_a_rank_without_a_row_adds_zeros_to_the_references():
    """Units are those of the one row that there is."""
    rows = {SHORT.id: SHORT, LONG.id: LONG}
    prepared = Prepared(rows, {}, [[[[SHORT.id, LONG.id]], [[LONG.id]]], [[[SHORT.id]], [[]]]])
    dumps = references(
        lambda dtype: tiny_model(dtype).eval(),
        token_labels,
        prepared,
        windows_to_compare(prepared.plan, rows) | {"last": 1},
    )
    names = [name for name, _ in tiny_model().named_parameters()]
    for name in names:
        assert not dumps["parts"][f"last/1/0/{name}"].any()
    assert any(dumps["parts"][f"last/0/0/{name}"].any() for name in names)
    found = {name: dumps["float64"][f"last/{name}"] for name in names}
    of_parts = {name: dumps["parts"][f"last/0/0/{name}"] / len(SHORT.tokens) for name in names}
    alone = reference_gradient(tiny_model(torch.float64), token_labels, [SHORT])
    assert tolerances_apart(found, of_parts) < 1
    assert tolerances_apart(found, alone) < 1
    native = {name: dumps["native"][f"last/{name}"].double() for name in names}
    assert tolerances_apart(native, alone) < 1e7, "float32 rounds at about 1e-7, five digits above float64's 1e-12"


def test_the_batched_gradient_is_the_same_objective():
    model = tiny_model(torch.float64).eval()
    rows = [SHORT, LONG, MIDDLE, LONG]
    batched, one_by_one = batched_gradient(model, token_labels, WINDOW), reference_gradient(model, token_labels, rows)
    assert tolerances_apart(batched, one_by_one) < 1
    assert any(not torch.equal(batched[name], one_by_one[name]) for name in batched), "sums are taken in another order"


@pytest.mark.parametrize("gradient", [reference_gradient, lambda m, w, rows: batched_gradient(m, w, [[rows]])])
def test_dropout_is_off(gradient):
    model = tiny_model(dropout=0.5).train()
    first, second = (gradient(model, token_labels, [SHORT, LONG]) for _ in range(2))
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
    of_microbatches = load_tensors(at.reference("parts"))
    assert set(of_microbatches) == {
        f"{w}/{unit}{r}/{m}/{name}"
        for w in ("first", "most_unequal")
        for unit in ("", "unit.sequence/")  # the mean over sequences is that over samples too: no row is packed
        for r in (0, 1)
        for m in (0, 1)
        for name in parameters
    }
    assert {tensor.dtype for tensor in of_microbatches.values()} == {torch.float64}


def test_the_native_dump_is_the_wide_one_rounded(tmp_path):
    at = written_in(tmp_path)
    native, wide = load_tensors(at.reference("native")), load_tensors(at.reference("float64"))
    length = numpy.sqrt(sum(float(tensor.square().sum()) for tensor in wide.values()))
    for name, tensor in wide.items():
        assert 0 < float((native[name] - tensor).norm()) < 1e-5 * length


def test_the_same_seed_gives_the_same_files_and_another_seed_others(tmp_path):
    first, second = written_in(tmp_path / "a"), written_in(tmp_path / "b")
    for path in (first.initial, *(first.reference(name) for name in ("native", "float64", "parts"))):
        assert path.read_bytes() == (second.root / path.relative_to(first.root)).read_bytes()
    write_initial_weights(tiny_experiment(seed=3), second)
    assert first.initial.read_bytes() != second.initial.read_bytes()


def test_a_refusal_leaves_what_is_there(tmp_path):
    """Weights of another seed beside the references of this one would fail every later comparison."""
    at = written_in(tmp_path)
    before = digests(path for path in at.root.rglob("*") if path.is_file())
    with pytest.raises(PlanError, match="was made for seed 17, not 5"):
        write_references(view(tiny_experiment(seed=5), "reference"), at)
    assert digests(path for path in at.root.rglob("*") if path.is_file()) == before
