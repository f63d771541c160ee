"""What a run's identity holds; runs themselves need ranks and are in tests/distributed and tests/workflow."""

import json

import pytest
import torch

from ddp_tokens import train
from ddp_tokens.files import read_json_lines, write_text
from ddp_tokens.layout import Layout
from ddp_tokens.run_files import write_run
from ddp_tokens.steps import view
from ddp_tokens.train import run_identity
from ddp_tokens.world import World
from tests.helpers import tiny_experiment
from tests.unit.training import advance, fresh_run, start_of


@pytest.fixture
def at(tmp_path):
    layout = Layout(tmp_path)
    for path in (layout.plan, layout.rows, layout.initial):
        write_text(path, f"content of {path.name}")
    return layout


def identity(at, step="interrupt", **changes):
    return run_identity(view(tiny_experiment(**changes), step), at)


def test_interrupted_and_resumed_run_have_the_same_identity(at):
    assert identity(at, "interrupt") == identity(at, "resume") == identity(at, "continuous")


def test_it_is_the_same_when_it_comes_out_of_a_checkpoint(at):
    """As JSON, where a tuple becomes a list: otherwise no run with class weights could be resumed."""
    here = identity(at, class_weights=(1.0, 0.5, 2.0, 1.0))
    assert json.loads(json.dumps(here)) == here


DIFFERENT = {"seed": 3, "batch": 1, "threads_per_rank": 2, "world_size": 4, "steps": 5, "optimizer": {"lr": 0.5}}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_changes_the_path_is_part_of_it(at, name):
    assert identity(at)[name] != identity(at, **{name: DIFFERENT[name]})[name]


@pytest.mark.parametrize(
    "change",
    [
        {"interrupt_at": 1},
        {"timeout_s": 5},
        {"train_anyway": True},
        {"launcher": "torchrun"},
        {"name": "copy"},
        {"checkpoint_every": 1},
        {"keep": 9},
    ],
)
def test_what_does_not_change_the_path_is_no_part_of_it(at, change):
    assert identity(at) == identity(at, **change)


@pytest.mark.parametrize("file", ["plan", "rows", "initial"])
def test_data_order_and_weights_are_part_of_it(at, file):
    before = identity(at)
    write_text(getattr(at, file), "something else")
    after = identity(at)
    assert [name for name in before if before[name] != after[name]] == [getattr(at, file).name]


def test_versions_are_part_of_it(at):
    assert identity(at)["torch"] == torch.__version__
    assert identity(at)["python"].startswith("3.")


def test_the_code_is_part_of_it(at, monkeypatch):
    before = identity(at)
    assert len(before["code"]) == 64
    monkeypatch.setattr(train, "code_of_training", lambda experiment: "of another version")
    after = identity(at)
    assert [name for name in before if before[name] != after[name]] == ["code"]


def test_an_earlier_run_leaves_no_checkpoint_beside_the_new_one(tmp_path):
    state = fresh_run(1)
    write_run(tmp_path / "run", state, start_of(state), {}, World())
    advance(state, 2)
    write_run(tmp_path / "run", state, start_of(state), {}, World())
    found = sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").glob("*"))
    assert found == ["history.jsonl", "ranks", "step-0002"]
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 2


def test_an_earlier_run_on_more_ranks_leaves_no_rank_beside_the_new_ones(tmp_path):
    """The check of replicas counts the files: a rank of the earlier run would be compared with the new ones."""
    state = fresh_run(1)
    write_run(tmp_path / "run", state, start_of(state), {}, World(rank=0, size=1))
    for name in ("rank-1.jsonl", "state-rank-1.safetensors", "start-rank-1.json"):
        write_text(tmp_path / "run" / "ranks" / name, "from before")
    write_run(tmp_path / "run", state, start_of(state), {}, World(rank=0, size=1))
    found = sorted(path.name for path in (tmp_path / "run" / "ranks").iterdir())
    assert found == ["rank-0.jsonl", "start-rank-0.json", "start-rank-0.safetensors", "state-rank-0.safetensors"]


def test_what_a_process_killed_while_writing_left_goes(tmp_path):
    state = fresh_run(1)
    for name in (".history.jsonl.123.tmp", ".step-0001.tmp/model.safetensors", "ranks/.rank-0.jsonl.123.tmp"):
        write_text(tmp_path / "run" / name, "half")
    write_run(tmp_path / "run", state, start_of(state), {}, World())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["history.jsonl", "ranks", "step-0001"]
    assert not list((tmp_path / "run" / "ranks").glob(".*"))


def test_where_there_are_epochs_each_is_summed_up(tmp_path):
    """Epochs of 2 windows; the run ends in the midst of the second. Their sums are those of the history."""
    state = fresh_run(3)
    write_run(tmp_path / "run", state, start_of(state), {}, World(), windows=2)
    history = read_json_lines(tmp_path / "run" / "history.jsonl")
    first, second = read_json_lines(tmp_path / "run" / "epochs.jsonl")
    assert (first["updates"], second["updates"], second["windows"]) == (2, 1, 2)
    assert first["units"] == history[0]["units"] + history[1]["units"]
    assert first["loss"] == (history[0]["loss_sum"] + history[1]["loss_sum"]) / first["units"]
    assert first["lr"] == state.optimizer.param_groups[0]["lr"]
