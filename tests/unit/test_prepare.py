import pytest

from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.errors import CorpusError, PlanError
from ddp_tokens.layout import Layout
from ddp_tokens.plan import read_plan
from ddp_tokens.prepare import prepare
from ddp_tokens.steps import dump, view
from tests.helpers import record, tiny_experiment, write_lines


def prepare_in(folder, experiment):
    at = Layout(folder)
    prepare(view(experiment, "prepare"), at.rows, at.lock, at.plan)
    return at


def test_corpus_lock_and_plan_belong_together(tmp_path):
    experiment = tiny_experiment()
    at = prepare_in(tmp_path, experiment)
    rows, lock = read_corpus(at.rows, at.lock)
    plan = read_plan(at.plan, lock["corpus_sha256"], dump(experiment))
    assert (len(plan), len(plan[0]), len(plan[0][0]), len(plan[0][0][0])) == (4, 2, 2, 2)
    drawn = {row_id for window in plan for of_rank in window for microbatch in of_rank for row_id in microbatch}
    assert {rows[row_id].split for row_id in drawn} == {"train"}


def test_the_same_settings_give_the_same_bytes(tmp_path):
    first, second = (prepare_in(tmp_path / name, tiny_experiment()) for name in ("a", "b"))
    for one, other in ((first.rows, second.rows), (first.lock, second.lock), (first.plan, second.plan)):
        assert one.read_bytes() == other.read_bytes()


def test_another_seed_gives_other_rows_and_another_plan(tmp_path):
    first, second = prepare_in(tmp_path / "a", tiny_experiment()), prepare_in(tmp_path / "b", tiny_experiment(seed=3))
    assert first.rows.read_bytes() != second.rows.read_bytes()
    assert first.plan.read_bytes() != second.plan.read_bytes()


def test_a_refused_row_leaves_no_plan(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", record("a"), record("a"))
    with pytest.raises(CorpusError, match="line 2"):
        prepare_in(tmp_path / "out", tiny_experiment(corpus={"path": str(path)}))
    assert not [found for found in (tmp_path / "out").rglob("*") if found.is_file()]


def test_too_few_rows_are_refused(tmp_path):
    with pytest.raises(PlanError, match="accumulation x batch = 2 x 9 = 18 rows"):
        prepare_in(tmp_path, tiny_experiment(batch=9))


def test_a_window_without_a_supervised_token_is_refused_before_it_is_planned(tmp_path):
    """Two rows per window, one per rank; only one of six training rows is supervised."""
    rows = [record(f"r{index}", labels=(0, 0) if index == 0 else (-100, -100)) for index in range(6)]
    path = write_lines(tmp_path / "rows.jsonl", *rows, record("t", split="test"))
    experiment = tiny_experiment(corpus={"path": str(path)}, batch=1, accumulation=1, steps=20, interrupt_at=2)
    with pytest.raises(PlanError, match=r"window \d+ of the plan, from row 'r\d' on, holds no supervised token"):
        prepare(experiment, tmp_path / "out.jsonl", tmp_path / "lock.json", tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()
