import math
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch

from ddp_tokens import evaluation
from ddp_tokens.corpora.rows import UNSUPERVISED
from ddp_tokens.errors import DivergedError
from ddp_tokens.evaluation import evaluate, perplexity
from ddp_tokens.layout import Layout
from ddp_tokens.prepare import prepare
from ddp_tokens.workloads import token_labels
from ddp_tokens.world import World
from tests.helpers import make_row, record, tiny_experiment, write_lines
from tests.unit.training import ROWS, tiny_model


@dataclass
class GivenLosses:
    """A workload whose losses are given per row id; it notes which rows it was asked for."""

    losses: dict
    seen: Counter = field(default_factory=Counter)

    def collate(self, rows, device="cpu"):
        self.seen.update(row.id for row in rows)
        return rows

    def forward(self, model, batch):
        return batch

    def metrics(self, outputs, batch):
        units = sum(len(row.tokens) for row in batch)
        return {"loss_sum": sum(self.losses[row.id] for row in batch), "correct": 0, "units": units}


MODEL = torch.nn.Identity()


def test_evaluation_mean_of_batches():
    """Batches with sums 2 and 90 over 1 and 9 units: 92/10 = 9.2, where the mean of 2 and 10 would be 6."""
    rows = [make_row("a", 1), make_row("b", 9)]
    scores = evaluate(MODEL, GivenLosses({"a": 2.0, "b": 90.0}), rows, batch=1, world=World())
    assert (2.0 / 1 + 90.0 / 9) / 2 == 6.0
    assert scores["loss"] == 9.2
    assert (scores["rows"], scores["units"], scores["loss_sum"]) == (2, 10, 92.0)
    assert scores["perplexity"] == math.exp(9.2) != (math.exp(2) + math.exp(10)) / 2


def test_a_perplexity_is_a_number_of_equally_likely_tokens():
    """A guess among 7 costs ln 7. Logarithm and exponential are rounded once each."""
    assert perplexity(math.log(7)) == pytest.approx(7, rel=1e-15 * 2)
    assert perplexity(0.0) == 1.0


@pytest.mark.parametrize(("loss", "text"), [(710.0, "710"), (math.inf, "inf"), (math.nan, "nan")])
def test_a_loss_without_perplexity_is_refused_in_one_sentence(loss, text):
    message = f"the loss per token is {text}, which has no perplexity: train with a smaller lr"
    with pytest.raises(DivergedError) as refusal:
        perplexity(loss)
    assert str(refusal.value) == message


@pytest.mark.parametrize("size", [1, 2, 4])
def test_padded_sampler_counts_twice(size):
    """21 rows do not divide by 2 or 4: no row is repeated to make the ranks' shares equal."""
    rows = [make_row(f"r{index}", 1 + index % 3) for index in range(21)]
    workload = GivenLosses({row.id: 1.0 for row in rows})
    counted = [evaluate(MODEL, workload, rows, 4, World(rank=rank, size=size))["rows"] for rank in range(size)]
    assert sum(counted) == 21
    assert workload.seen == Counter(row.id for row in rows)


def test_the_score_does_not_depend_on_the_batch():
    rows = [row for row in ROWS.values() if row.split == "test"]
    model = tiny_model(torch.float64)
    scores = [evaluate(model, token_labels, rows, batch, World()) for batch in (1, 3, 100)]
    assert len({(score["rows"], score["units"], score["correct"]) for score in scores}) == 1
    # Float64, some 100 additions in another order: 100 x 1.1e-16 = 1e-14, with a margin of ten.
    assert scores[1]["loss_sum"] == pytest.approx(scores[0]["loss_sum"], rel=1e-13)
    assert scores[2]["loss_sum"] == pytest.approx(scores[0]["loss_sum"], rel=1e-13)


def test_dropout_is_off_and_nothing_is_learned():
    rows = [row for row in ROWS.values() if row.split == "test"]
    model = tiny_model(dropout=0.5).train()
    before = [parameter.clone() for parameter in model.parameters()]
    first, second = (evaluate(model, token_labels, rows, 4, World()) for _ in range(2))
    assert first == second
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_term_per_document_has_the_shares_of_its_rows_in_an_evaluation(tmp_path, monkeypatch):
    """Two rows of one document, with 2 and 1 supervised positions: two thirds and one."""
    rows = [record("a"), record("b", "test"), record("c", "test", labels=(0, UNSUPERVISED))]
    path = write_lines(tmp_path / "mine.jsonl", *(row | {"document": row["split"]} for row in rows))
    (tmp_path / "mine.py").write_text(
        "from ddp_tokens.terms import Term\nTERMS = (Term('labels', 'token'), Term('pages', 'document'))\n"
        "build_model = collate = forward = loss_terms = metrics = lambda *given, **named: None\n"
    )
    experiment = tiny_experiment(
        corpus={"path": str(path)},
        workload=str(tmp_path / "mine.py"),
        model={"kind": "own"},
        world_size=1,
        batch=1,
        accumulation=1,
    )
    at = Layout(tmp_path / "out")
    prepare(experiment, at.rows, at.lock, at.plan)
    for name in ("make_deterministic", "verify", "initial_model"):
        monkeypatch.setattr(evaluation, name, lambda *given: None)
    monkeypatch.setattr(evaluation, "evaluate", lambda model, workload, rows, *more: [row.share for row in rows])
    scores = evaluation.evaluate_checkpoint(experiment, at.rows, at.lock, tmp_path, tmp_path)
    assert scores["test"] == pytest.approx([2 / 3, 1 / 3], rel=1e-15)
