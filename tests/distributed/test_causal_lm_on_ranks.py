"""MiniGPT on two real ranks: the gradient of the tied weight is the reference's, and a resume is exact with AdamW."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from ddp_tokens.checks.evaluation import check_evaluation
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.evaluation import evaluate_checkpoint
from ddp_tokens.files import read_json, sha256, write_json
from ddp_tokens.layout import Layout
from ddp_tokens.normalization import TOKEN_MEAN
from ddp_tokens.samples import NUMBER
from ddp_tokens.steps import view
from ddp_tokens.tensors import load_tensors
from ddp_tokens.world import World
from tests.distributed.ranks import RankError, run_ranks
from tests.distributed.test_gradients_command import parity, with_gradients
from tests.distributed.tiny import ACCUMULATION, INTERRUPT_AT, SETTINGS, STEPS, Tiny, prepared
from tests.helpers import next_token_row, write_lines

VOCABULARY = 6
# Width 8, feed-forward 16, one block, 6 tokens and 12 positions: 48 + 96 for the embeddings; in the block 32 for two
# LayerNorms, 216, 72, 144 and 136 for the four Linears; 16 for the final LayerNorm. The head has none of its own.
VALUES = 144 + 600 + 16


def rows_in(folder: Path) -> Path:
    """Sequences in which the next token is often the one after this, 2 to 12 tokens long."""
    rng = random.Random(5)
    rows = []
    for split, number in (("train", 48), ("validation", 5), ("test", 21)):
        for index in range(number):
            tokens = [rng.randrange(VOCABULARY)]
            length = 2 + (index * 4) % 11
            while len(tokens) < length:
                tokens.append((tokens[-1] + (1 if rng.random() < 0.8 else rng.randrange(VOCABULARY))) % VOCABULARY)
            rows.append(next_token_row(f"{split}-{index}", *tokens, split=split))
    folder.mkdir(parents=True)
    return write_lines(folder / "rows.jsonl", *(json.dumps(row.record()) for row in rows))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Tiny:
    """All three runs are done and all gradients dumped."""
    folder = tmp_path_factory.mktemp("causal_lm") / "tiny"
    made = prepared(
        folder,
        2,
        workload="causal_lm",
        corpus={"path": str(rows_in(folder))},
        optimizer={"kind": "adamw", "lr": 0.01, "weight_decay": 0.1},
    )
    made.train_all()
    return with_gradients(made)


def test_each_row_has_one_unit_less_than_tokens(tiny):
    lock = read_json(tiny.at.lock)
    assert lock["shape"] == {"vocabulary": VOCABULARY, "classes": VOCABULARY, "positions": 12}
    for split, rows in (("train", 48), ("validation", 5), ("test", 21)):
        counts = lock["counts"][split]
        assert counts["rows"] == rows
        assert counts["supervised"] == counts["tokens"] - rows


def test_the_gradient_is_the_references_in_both_dtypes_and_a_mean_of_means_is_not(tiny):
    verdicts = parity(tiny)
    assert len(verdicts) == 8
    assert [verdict.first_difference for verdict in verdicts if not verdict.as_expected] == []
    for verdict in verdicts:
        assert len(set(verdict.observed["units_per_rank"])) == 2, "with equal counts both formulas are one"
        assert verdict.outcome == ("pass" if verdict.case.startswith(TOKEN_MEAN) else "fail")
        # Every parameter once: the tied weight, too.
        assert verdict.observed["values"] == VALUES


def test_a_resumed_run_is_the_continuous_one_with_adamw(tiny):
    """Dropout is on and AdamW has two moments: generators and optimizer state both matter."""
    assert SETTINGS["model"]["dropout"] > 0
    verdicts = tiny.resume_verdicts()
    assert {case: verdict.first_difference for case, verdict in verdicts.items() if verdict.outcome != "pass"} == {}
    assert verdicts["parameters"].observed["values"] == VALUES
    # Each of up to 6 updates of AdamW moves a weight by up to lr = 0.01.
    assert 0.005 < verdicts["weights_moved"].observed["max_abs_difference"] < 0.1
    assert [verdict.outcome for verdict in tiny.replica_verdicts()] == ["pass"] * 3
    resumed, continuous = (tiny.at.checkpoint(run, STEPS) for run in ("resume", "continuous"))
    names = sorted(path.name for path in continuous.iterdir())
    assert len(names) == 4 + 2 * 2
    assert {name: sha256(resumed / name) for name in names} == {name: sha256(continuous / name) for name in names}
    assert sha256(tiny.interrupted / "model.safetensors") != sha256(continuous / "model.safetensors")


@pytest.mark.parametrize(("run", "step"), [("interrupt", INTERRUPT_AT), ("continuous", STEPS), ("resume", STEPS)])
def test_a_checkpoint_holds_the_tied_weight_once(tiny, run, step):
    weights = load_tensors(tiny.at.checkpoint(run, step) / "model.safetensors")
    assert weights["embedding.weight"].shape == (VOCABULARY, 8)
    assert "head.weight" not in weights
    assert sum(tensor.numel() for tensor in weights.values()) == VALUES
    assert set(weights) == set(load_tensors(tiny.at.initial))
    moments = load_tensors(tiny.at.checkpoint(run, step) / "optimizer.safetensors")
    # Two moments of each weight, and a number of updates (one value) of each parameter.
    assert sum(tensor.numel() for tensor in moments.values()) == 2 * VALUES + len(weights)


def test_every_window_has_a_next_token_per_label(tiny):
    """Units of a window are its tokens minus its rows: 2 ranks x 2 microbatches x 2 rows."""
    rows = {record["id"]: record for record in map(json.loads, tiny.at.rows.read_text().splitlines())}
    history = [json.loads(line) for line in (tiny.at.run("continuous") / "history.jsonl").read_text().splitlines()]
    plan = read_json(tiny.at.plan)["plan"]
    assert len(history) == len(plan) == STEPS
    for record, window in zip(history, plan, strict=True):
        ids = [row_id for of_rank in window for microbatch in of_rank for row_id in microbatch]
        assert len(ids) == 2 * ACCUMULATION * SETTINGS["batch"]
        assert record["units"] == sum(len(rows[row_id]["tokens"]) - 1 for row_id in ids)


def evaluate_here(world: World, config: str, root: str) -> dict[str, Any]:
    experiment, at = load_experiment(config), Layout(Path(root))
    scored = view(experiment, "evaluate")
    return evaluate_checkpoint(scored, at.rows, at.lock, at.checkpoint("continuous", experiment.steps), at.initial)


def evaluated(tiny: Tiny) -> dict[str, Any]:
    [scores] = run_ranks(evaluate_here, 1, tiny.folder, str(tiny.config), str(tiny.at.root), joined=False)
    return scores


def test_scores_come_with_perplexity_and_with_what_the_model_writes(tiny, tmp_path):
    """21 test rows and 5 of validation. A sequence of numbers ends at the longest row's length, 12."""
    scores = evaluated(tiny)
    write_json(tmp_path / "evaluation.json", scores)
    assert [verdict.case for verdict in check_evaluation(tmp_path / "evaluation.json", tiny.at.lock)] == [
        "validation.rows",
        "validation.mean",
        "test.rows",
        "test.mean",
    ]
    for verdict in check_evaluation(tmp_path / "evaluation.json", tiny.at.lock):
        assert verdict.outcome == "pass"
    for split, rows in (("validation", 5), ("test", 21)):
        assert scores[split]["rows"] == rows
        assert scores[split]["perplexity"] == math.exp(scores[split]["loss"])
    records = [json.loads(line) for line in tiny.at.rows.read_text().splitlines()]
    first = [record["tokens"][0] for record in records if record["split"] == "test"][:NUMBER]
    for name in ("samples", "samples_at_start"):
        sequences = [[int(number) for number in text.split()] for text in scores[name]]
        assert [sequence[0] for sequence in sequences] == first
        assert {len(sequence) for sequence in sequences} == {12}
        assert {number for sequence in sequences for number in sequence} == set(range(VOCABULARY))
    assert scores["samples"] != scores["samples_at_start"], "another model writes otherwise"


def test_the_same_scores_and_texts_come_again(tiny):
    assert evaluated(tiny) == evaluated(tiny)


def test_a_kind_of_work_that_does_not_write_needs_no_initial_weights(copy_of):
    tiny = copy_of(1)
    tiny.at.initial.unlink()
    scores = evaluated(tiny)
    assert set(scores) == {"checkpoint", "validation", "test"}


def test_missing_initial_weights_are_named_where_they_are_needed(tiny, tmp_path):
    absent = tmp_path / "initial.safetensors"
    with pytest.raises(RankError, match=f"EvidenceError: {absent} does not exist: run reference first"):
        run_ranks(evaluate_from, 1, tmp_path, str(tiny.config), str(tiny.at.root), str(absent), joined=False)


def evaluate_from(world: World, config: str, root: str, initial: str) -> None:
    experiment, at = load_experiment(config), Layout(Path(root))
    evaluate_checkpoint(experiment, at.rows, at.lock, at.checkpoint("continuous", STEPS), Path(initial))
