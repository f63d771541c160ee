import pytest
import torch

from ddp_tokens.errors import CorpusError, EvidenceError, PlanError
from ddp_tokens.inputs import initial_model, read_prepared, require_documents_of_terms
from ddp_tokens.layout import Layout
from ddp_tokens.prepare import prepare
from ddp_tokens.steps import view
from ddp_tokens.tensors import save_tensors
from ddp_tokens.workloads import load, token_labels
from tests.helpers import TINY_CORPUS, record, tiny_experiment, write_lines
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


def test_only_ranks_that_train_under_fsdp2_get_microbatches_without_rows(tmp_path):
    """43 rows are 22 and 21 for two ranks: 9 and 9, 9 and 9, then 4 and 3, in microbatches of 3 two and one. Whatever
    a view holds: the whole experiment, as a test passes it, is read as the view of `reference`, which has no strategy.
    """
    changes = {"corpus": TINY_CORPUS | {"train": 43}, "sharding": "by_epoch", "batch": 3, "accumulation": 3}
    experiment = tiny_experiment(strategy="fsdp2", **changes)
    at = prepared_in(tmp_path, experiment)
    planned, added = [[3, 3], [3, 3], [2, 1], [3, 3]], [[3, 3], [3, 3], [2, 2], [3, 3]]
    for read_with in (experiment, *(view(experiment, step) for step in ("reference", "gradients", "interrupt"))):
        found = read_prepared(read_with, at)
        assert lengths(found.plan) == planned
        assert lengths(found.for_ranks_of("fsdp2").plan) == added
        assert lengths(found.for_ranks_of("ddp").plan) == lengths(found.for_ranks_of("zero1").plan) == planned


def test_windows_of_another_number_of_ranks_are_dealt_first_and_then_made_equally_long(tmp_path):
    """34 rows are 12, 11 and 11 for three ranks: 9 each, then 3, 2 and 2. For two ranks the 27 are 13 and 14, five
    microbatches of 3 at most each, and the 7 are 3 and 4: one and two.
    """
    changes = {"corpus": TINY_CORPUS | {"train": 34}, "sharding": "by_epoch", "batch": 3, "accumulation": 3}
    at = prepared_in(tmp_path, tiny_experiment(world_size=3, strategy="fsdp2", **changes))
    resumed = view(tiny_experiment(world_size=2, strategy="fsdp2", **changes), "resume")
    found = read_prepared(resumed, at, repartitioned=True)
    assert lengths(found.plan) == [[5, 5], [1, 2]] * 2
    of_ranks = found.for_ranks_of("fsdp2")
    assert lengths(of_ranks.plan) == [[5, 5], [2, 2]] * 2
    assert (of_ranks.planned_for, of_ranks.rows) == (3, found.rows)


def lengths(plan):
    """Of each window, how many microbatches each rank has."""
    return [[len(of_rank) for of_rank in window] for window in plan]


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


OF_DOCUMENTS = """
from ddp_tokens.terms import Term
TERMS = (Term("labels", "token"), Term("pages", "document"))
build_model = collate = forward = loss_terms = metrics = lambda *given, **named: None
"""


@pytest.fixture
def of_documents(tmp_path):
    """An experiment with a term per document, of `splits`: by document the splits of its rows."""

    def make(splits, **changes):
        rows = [
            record(f"{document}{index}", split) | {"document": document}
            for document, of_rows in splits.items()
            for index, split in enumerate(of_rows)
        ]
        (tmp_path / "mine.py").write_text(OF_DOCUMENTS)
        corpus = {"path": str(write_lines(tmp_path / "mine.jsonl", *rows))}
        sizes = {"batch": 1, "accumulation": 1, "workload": str(tmp_path / "mine.py"), "model": {"kind": "own"}}
        return tiny_experiment(corpus=corpus, **sizes, **changes)

    return make


SPLITS = {"a": ["train"] * 3, "b": ["train"] * 2, "c": ["test", "test"]}


def test_a_term_per_document_needs_each_in_one_split(tmp_path, of_documents):
    experiment = of_documents(SPLITS | {"d": ["train", "test"]})
    at = prepared_in(tmp_path / "out", experiment)
    with pytest.raises(
        CorpusError, match=r"^document 'd' has rows in the splits train and test \(row 'd1'\), and with a"
    ):
        read_prepared(view(experiment, "interrupt"), at)


def test_a_term_per_document_needs_each_in_one_window(tmp_path, of_documents):
    experiment = of_documents(SPLITS)
    split = read_prepared(view(experiment, "interrupt"), prepared_in(tmp_path / "out", experiment))
    workload = load(experiment.workload)
    with pytest.raises(
        PlanError, match=r"^window 1 holds \d of the \d rows of document '[ab]', and with a term per doc"
    ):
        require_documents_of_terms(workload, split)
    require_documents_of_terms(token_labels, split)
    experiment = of_documents(SPLITS, sharding="by_document")
    whole = read_prepared(view(experiment, "interrupt"), prepared_in(tmp_path / "whole", experiment))
    require_documents_of_terms(workload, whole)
