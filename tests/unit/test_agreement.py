"""What a rank says of itself, and errors that wait until all ranks can hear of them."""

import os

import pytest
import torch

from ddp_tokens.agreement import Attempt, File, describe, flattened, input_files, read_inputs, require_agreement
from ddp_tokens.errors import CorpusError, PlanError
from ddp_tokens.files import sha256, write_text
from ddp_tokens.layout import Layout
from ddp_tokens.steps import view
from ddp_tokens.world import World
from tests.helpers import TINY_CORPUS, tiny_experiment


def raising(error):
    def read():
        raise error

    return Attempt(read)


def test_what_was_read_is_there_with_its_files(tmp_path):
    files = {"plan.json": File(tmp_path / "plan.json", "digest")}
    attempt = Attempt(lambda: ("read", files))
    assert (attempt.result(), attempt.files, attempt.problem) == ("read", files, None)


def test_an_error_for_users_waits():
    error = PlanError("plan.json does not exist: run prepare first")
    attempt = raising(error)
    assert (attempt.value, attempt.files, attempt.problem) == (None, {}, str(error))
    with pytest.raises(PlanError) as raised:
        attempt.result()
    assert raised.value is error


def test_a_file_that_cannot_be_read_waits_too():
    assert raising(PermissionError(13, os.strerror(13), "plan.json")).problem == "plan.json: Permission denied"


@pytest.mark.parametrize("error", [ArithmeticError("a mistake of the program"), OSError(24, os.strerror(24))])
def test_no_other_error_does(error):
    with pytest.raises(type(error)):
        raising(error)


def test_settings_are_named_as_in_the_file_and_on_the_command_line():
    nested = {"steps": 3, "optimizer": {"lr": 0.1, "kind": "sgd"}, "model": {"stages": [4, 8]}, "epochs": None}
    assert dict(flattened(nested)) == {
        "steps": 3,
        "optimizer.lr": 0.1,
        "optimizer.kind": "sgd",
        "model.stages": [4, 8],
        "epochs": None,
    }


def document(attempt=None, **changes):
    experiment = view(tiny_experiment(**changes), "continuous")
    attempt = attempt or Attempt(lambda: (1, {}))
    return describe("ddp_tokens.train", "continuous", experiment, attempt, {"run": "continuous"})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"checkpoint_every": 3}, "checkpoint_every"),
        ({"keep": 3}, "keep"),
        ({"timeout_s": 7}, "timeout_s"),
        ({"log_interval": 3}, "log_interval"),
        ({"profile": True}, "profile"),
        ({"optimizer": {"lr": 0.5}}, "optimizer.lr"),
        ({"corpus": TINY_CORPUS | {"train": 49}}, "corpus.train"),
    ],
)
def test_every_setting_of_the_step_is_told_also_outside_the_identity(changes, name):
    before, after = document().settings, document(**changes).settings
    assert [key for key in before if before[key] != after[key]] == [name]


def test_settings_that_the_step_cannot_see_are_not():
    assert document(interrupt_at=1) == document(train_anyway=False)


def test_code_lock_file_and_versions_are_told():
    told = document()
    assert {"src/ddp_tokens/train.py", "src/ddp_tokens/window.py", "envs/requirements.lock"} <= set(told.sources)
    assert "src/ddp_tokens/workloads/token_labels.py" in told.sources
    assert "src/ddp_tokens/figures.py" not in told.sources
    assert list(told.versions) == ["Python", "torch", "NumPy", "safetensors"]
    assert told.versions["torch"] == torch.__version__


def test_files_are_told_by_digest_and_as_the_host_calls_them(tmp_path):
    at = Layout(tmp_path)
    for path in (at.rows, at.lock, at.plan, at.initial):
        write_text(path, f"content of {path.name}")
    files = input_files(at, {})
    told = document(Attempt(lambda: (1, files)))
    assert told.files == {path.name: sha256(path) for path in (at.rows, at.lock, at.plan, at.initial)}
    assert list(told.files) == ["rows.jsonl", "lock.json", "plan.json", "initial.safetensors"]
    assert told.paths["rows.jsonl"] == str(at.rows)
    assert input_files(at, {"rows.jsonl": "known"})["rows.jsonl"].sha256 == "known"


def test_one_process_agrees_with_itself_and_leaves_no_file(tmp_path):
    require_agreement(World(), Layout(tmp_path), document())
    assert list(tmp_path.iterdir()) == []


def test_a_missing_corpus_is_a_problem(tmp_path):
    experiment = view(tiny_experiment(), "gradients")
    problem = Attempt(lambda: read_inputs(experiment, Layout(tmp_path))).problem
    assert problem == f"{Layout(tmp_path).rows} does not exist: run prepare first"
    with pytest.raises(CorpusError):
        read_inputs(experiment, Layout(tmp_path))
