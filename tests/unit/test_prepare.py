import json
import logging
import subprocess
import sys
import tracemalloc

import pytest

from ddp_tokens.config_reading import load_experiment
from ddp_tokens.corpora import rows, vocabulary
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.corpora.rows import supervised_in
from ddp_tokens.corpora.text import as_text
from ddp_tokens.errors import CorpusError, PlanError
from ddp_tokens.layout import Layout
from ddp_tokens.plan import make_shard, read_plan
from ddp_tokens.prepare import prepare, require_preparable
from ddp_tokens.steps import dump, view
from tests.helpers import PROJECT, TINY_CORPUS, record, tiny_experiment, write_lines
from tests.unit.corpora.image_data import pictures, write_folder

GRAMMAR = {"kind": "verb_grammar", "train": 33, "validation": 4, "test": 8}


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


def test_the_words_of_the_grammar_stand_beside_its_rows(tmp_path):
    experiment = tiny_experiment(corpus=GRAMMAR)
    at = prepare_in(tmp_path, experiment)
    read, lock = read_corpus(at.rows, at.lock)
    assert lock["vocabulary"] == vocabulary(experiment.corpus, 17)
    assert [as_text([lock["vocabulary"][token] for token in row.tokens]) for row in read.values()] == [
        row.text for row in rows(experiment.corpus, 17)
    ]
    assert len(read) == 45


def test_by_index_the_log_says_what_each_rank_draws_from(tmp_path, caplog):
    """33 training rows on two ranks: 17 with an even index, 16 with an odd one."""
    experiment = tiny_experiment(corpus=GRAMMAR, sharding="by_index")
    with caplog.at_level(logging.INFO):
        prepare_in(tmp_path, experiment)
    training = [row for row in rows(experiment.corpus, 17) if row.split == "train"]
    units = [supervised_in(training[rank::2]) for rank in range(2)]
    assert caplog.messages == [
        f"rank 0: 17 rows, {units[0]} supervised units, first '{training[0].text}'",
        f"rank 1: 16 rows, {units[1]} supervised units, first '{training[1].text}'",
    ]
    assert [make_shard(rank, 2, len(training))[0] for rank in range(2)] == [0, 1]
    assert training[0].text.endswith((".", "?"))


def test_the_log_names_rows_without_a_text_by_their_id(tmp_path, caplog):
    """1200 rows of two units each on each of two ranks."""
    lines = [record(f"row-{index}") for index in range(2400)]
    path = write_lines(tmp_path / "mine.jsonl", *lines, record("t", split="test"))
    with caplog.at_level(logging.INFO):
        prepare_in(tmp_path, tiny_experiment(corpus={"path": str(path)}, sharding="by_index"))
    assert caplog.messages == [
        "rank 0: 1200 rows, 2,400 supervised units, first 'row-0'",
        "rank 1: 1200 rows, 2,400 supervised units, first 'row-1'",
    ]


@pytest.mark.parametrize(
    ("train", "drop_last", "lines"),
    [
        (24, False, ["rank 0: 12 rows per epoch in 3 windows of 4", "rank 1: 12 rows per epoch in 3 windows of 4"]),
        (
            21,
            False,
            [
                "rank 0: 11 rows per epoch in 3 windows of 4, the last with 3",
                "rank 1: 10 rows per epoch in 3 windows of 4, the last with 2",
            ],
        ),
        (
            17,
            False,
            [
                "rank 0: 9 rows per epoch in 3 windows of 4, the last with 1",
                "rank 1: 8 rows per epoch in 3 windows of 4, the last with 0",
            ],
        ),
        (21, True, ["rank 0: 8 rows per epoch in 2 windows of 4", "rank 1: 8 rows per epoch in 2 windows of 4"]),
    ],
)
def test_by_epoch_the_log_says_what_each_rank_has_in_an_epoch(tmp_path, caplog, train, drop_last, lines):
    """Two microbatches of two rows make a full window of a rank. The plan says the same."""
    experiment = tiny_experiment(corpus=TINY_CORPUS | {"train": train}, sharding="by_epoch", drop_last=drop_last)
    with caplog.at_level(logging.INFO):
        at = prepare_in(tmp_path, experiment)
    assert caplog.messages == lines
    plan = json.loads(at.plan.read_text())["plan"][: experiment.windows_per_epoch(train)]
    for rank, line in enumerate(lines):
        rows = sum(len(microbatch) for window in plan for microbatch in window[rank])
        assert line.startswith(f"rank {rank}: {rows} rows per epoch in {len(plan)} windows")


def test_an_epoch_that_fills_no_window_is_refused_in_one_sentence(tmp_path):
    experiment = tiny_experiment(corpus=TINY_CORPUS | {"train": 7}, sharding="by_epoch", drop_last=True)
    sentence = (
        "7 training rows over world_size 2 do not fill one window of accumulation x batch = 4 rows per rank: "
        "lower batch or accumulation, or set drop_last to false"
    )
    for refuse in (require_preparable, lambda each: prepare_in(tmp_path, each)):
        with pytest.raises(PlanError) as refusal:
            refuse(experiment)
        assert str(refusal.value) == sentence
    assert not (tmp_path / "plan.json").exists()
    require_preparable(tiny_experiment(corpus=TINY_CORPUS | {"train": 7}, sharding="by_epoch"))


def test_by_epoch_rows_are_counted_where_the_corpus_does_not_state_them(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", *(record(f"r{i}") for i in range(5)), record("t", split="test"))
    experiment = tiny_experiment(corpus={"path": str(path)}, sharding="by_epoch", drop_last=True)
    with pytest.raises(PlanError, match=r"^5 training rows over world_size 2 do not fill one window"):
        require_preparable(experiment)
    at = prepare_in(tmp_path / "out", tiny_experiment(corpus={"path": str(path)}, sharding="by_epoch", steps=4))
    plan = json.loads(at.plan.read_text())["plan"]
    assert [sum(len(m) for of_rank in window for m in of_rank) for window in plan] == [5] * 4


def most_allocated(run):
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sharding", ["by_length", "by_index", "by_epoch"])
def test_memory_does_not_grow_with_what_rows_and_plan_hold(tmp_path, sharding):
    """A row takes 16 bytes, its id 8, and 12 to 24 to know that id again; sorted by length, twice four more. As a Row
    and in a plan of lists it takes more than 700. Python counts what it allocates, so the figure is the same on all
    machines. The plan names each row once.
    """
    most = {}
    for number in (1_000, 4_000):
        lines = (record(f"{index:08}", tokens=range(6), labels=[index % 4] * 6) for index in range(number))
        path = write_lines(tmp_path / f"{number}.jsonl", *lines, record("t", split="test"))
        experiment = tiny_experiment(corpus={"path": str(path)}, sharding=sharding, steps=number // 8)  # of 8 rows each
        prepare_in(tmp_path / "warm", tiny_experiment(sharding=sharding))  # what is imported once
        most[number] = most_allocated(lambda each=experiment: prepare_in(tmp_path / "out", each))
        plan = json.loads(Layout(tmp_path / "out").plan.read_text())["plan"]
        assert sum(len(ids) for window in plan for of_rank in window for ids in of_rank) == number
        assert most_allocated(lambda each=experiment: require_preparable(each)) < most[number]
    assert (most[4_000] - most[1_000]) / 3_000 < 100, most


def test_by_length_nothing_is_logged(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        prepare_in(tmp_path, tiny_experiment())
    assert caplog.messages == []


def test_by_hand_the_lines_are_printed_first(tmp_path):
    config = tmp_path / "spoken.yaml"
    config.write_text("corpus: {kind: verb_grammar, train: 32, validation: 4, test: 8}\nsharding: by_index\nbatch: 2\n")
    command = [sys.executable, "-m", "ddp_tokens.cli", "prepare", "--config", str(config), "--results", str(tmp_path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.partition(",")[0] for line in lines[:2]] == ["rank 0: 16 rows", "rank 1: 16 rows"]
    assert [line.split()[0] for line in lines[2:]] == ["wrote"] * 3


@pytest.mark.parametrize(
    ("train", "error", "sentence"),
    [
        (63_569, CorpusError, "= 63569 \\+ 4 \\+ 8 = 63581 sentences, but the grammar makes only 63569 different ones"),
        (7, PlanError, r"the smallest pool holds 3 \(7 training rows over world_size 2\)"),
    ],
)
def test_sentences_that_cannot_be_made_or_planned_are_refused_before_anything_is_written(
    tmp_path, train, error, sentence
):
    experiment = tiny_experiment(corpus=GRAMMAR | {"train": train})
    with pytest.raises(error, match=sentence):
        require_preparable(experiment)
    with pytest.raises(error, match=sentence):
        prepare_in(tmp_path, experiment)
    assert not (tmp_path / "plan.json").exists()
    require_preparable(tiny_experiment(corpus=GRAMMAR | {"train": 8}))


def test_a_row_without_tokens_is_refused_by_its_line_when_prepared_by_hand(tmp_path):
    """The words are asked for before the rows are read."""
    path = write_lines(tmp_path / "mine.jsonl", record("a", tokens=("x", "y")), {"id": "b", "split": "train"})
    with pytest.raises(CorpusError, match=r"mine\.jsonl, line 2: field 'tokens' is missing \(id 'b'\)"):
        prepare_in(tmp_path / "out", tiny_experiment(corpus={"path": str(path)}))


def test_own_images_are_prepared_with_what_pins_them(tmp_path):
    write_folder(tmp_path / "folder", *pictures())
    corpus = {"kind": "own_images", "path": str(tmp_path / "folder"), "train": 7, "test": 3, "channels": 1}
    experiment = tiny_experiment(corpus=corpus, workload="images", model={"kind": "resnet"}, accumulation=1)
    require_preparable(experiment)
    at = prepare_in(tmp_path / "out", experiment)
    read, lock = read_corpus(at.rows, at.lock)
    assert lock["images"]["class_names"] == ["ant", "bee", "cow"]
    assert lock["shape"] == {"classes": 3, "channels": 1, "height": 8, "width": 6}
    assert len(read_plan(at.plan, lock["corpus_sha256"], dump(experiment))) == 4
    assert read["test-00002"].image().shape == (1, 8, 6)


def test_too_few_images_are_refused_before_anything_is_written(tmp_path):
    write_folder(tmp_path / "folder", *pictures())
    corpus = {"kind": "own_images", "path": str(tmp_path / "folder"), "train": 9, "validation": 1, "test": 3}
    experiment = tiny_experiment(corpus=corpus, workload="images", model={"kind": "resnet"})
    for refuse in (require_preparable, lambda experiment: prepare_in(tmp_path / "out", experiment)):
        with pytest.raises(CorpusError, match=r"= 9 \+ 1 \+ 3 = 13 images, but .*folder holds only 12: lower them"):
            refuse(experiment)
    assert not [found for found in (tmp_path / "out").rglob("*") if found.is_file()]


def test_minimum_by_epoch_goes_through_all_rows_before_any_comes_again(tmp_path):
    """1024 rows are 32 windows of 2 x 8 on two ranks, so that 100 updates end inside the fourth epoch."""
    experiment = load_experiment(PROJECT / "config" / "minimum.yaml", {"sharding": "by_epoch"})
    plan = json.loads(prepare_in(tmp_path, experiment).plan.read_text())["plan"]
    assert len(plan) == 100
    for first in (0, 32, 64):
        epoch = [row_id for window in plan[first : first + 32] for of_rank in window for m in of_rank for row_id in m]
        assert len(epoch) == len(set(epoch)) == 1024
    assert plan[:32] != plan[32:64]
