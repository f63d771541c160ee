import pickle
import shutil

import pytest

from ddp_tokens.checkpoint_files import make_manifest
from ddp_tokens.checks.checkpoints import check_checkpoints
from ddp_tokens.checks.verdict import read_verdicts, write_verdicts
from ddp_tokens.files import digests, write_json


@pytest.fixture
def directory(runs):
    return runs / "resume" / "step-0004"


def verdict_on(directory):
    [verdict] = check_checkpoints([directory])
    return verdict


def test_a_whole_checkpoint_passes(directory):
    verdict = verdict_on(directory)
    assert (verdict.case, verdict.expected, verdict.outcome) == ("resume/step-0004", "pass", "pass")
    assert verdict.first_difference is None
    assert "has the SHA-256 that the manifest records, and is safetensors or JSON" in verdict.criterion
    assert (verdict.observed["step"], verdict.observed["world_size"], verdict.observed["files"]) == (4, 1, 5)
    assert verdict.observed["bytes"] == sum(path.stat().st_size for path in directory.iterdir())
    assert verdict.evidence == digests(directory.iterdir())


def remove(directory, name):
    (directory / name).unlink()


def alter(directory, name):
    data = bytearray((directory / name).read_bytes())
    data[-2] ^= 1
    (directory / name).write_bytes(data)


def plant_pickle(directory, name):
    (directory / name).write_bytes(pickle.dumps({"weights": [0.0]}))
    write_json(directory / "manifest.json", make_manifest(directory, 4, 1))


def plant_text(directory, name):
    (directory / name).write_text("print('hello')")
    write_json(directory / "manifest.json", make_manifest(directory, 4, 1))


DAMAGE = [
    (remove, "manifest.json", "has no manifest.json"),
    (remove, "rank-0.json", "rank-0.json is missing"),
    (alter, "optimizer.safetensors", "optimizer.safetensors was altered"),
    (alter, "common.json", "common.json was altered"),
    (plant_pickle, "model.safetensors", "model.safetensors is not a whole safetensors file"),
    (plant_text, "common.json", "common.json is damaged, it is not valid JSON"),
]


@pytest.mark.parametrize(("damage", "name", "problem"), DAMAGE)
def test_a_damaged_checkpoint_fails_and_its_verdict_is_still_written(directory, tmp_path, damage, name, problem):
    damage(directory, name)
    verdict = verdict_on(directory)
    assert verdict.outcome == "fail"
    assert problem in verdict.first_difference["problem"]
    assert verdict.evidence == digests(directory.iterdir())  # of what is there
    write_verdicts(tmp_path / "checkpoints.json", "checkpoints", [verdict])
    assert read_verdicts(tmp_path / "checkpoints.json") == ("checkpoints", [verdict])


def test_a_checkpoint_that_is_gone_fails(tmp_path):
    verdict = verdict_on(tmp_path / "resume" / "step-0009")
    assert (verdict.outcome, verdict.evidence) == ("fail", {})
    assert "step-0009 does not exist" in verdict.first_difference["problem"]


def test_one_damaged_checkpoint_does_not_hide_the_others(runs, directory):
    alter(directory, "model.safetensors")
    verdicts = check_checkpoints([runs / "interrupt" / "step-0002", directory, runs / "continuous" / "step-0004"])
    assert [verdict.outcome for verdict in verdicts] == ["pass", "fail", "pass"]


def test_parts_of_two_checkpoints_fail_under_a_manifest_made_anew(directory, runs):
    shutil.copy(runs / "interrupt" / "step-0002" / "model.safetensors", directory)
    write_json(directory / "manifest.json", make_manifest(directory, 4, 1))
    problem = verdict_on(directory).first_difference["problem"]
    assert "model.safetensors is not the one that common.json was written with" in problem
