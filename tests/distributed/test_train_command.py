"""ddp_tokens.train says in one sentence why it does not train, with exit code 2, and then leaves every file alone."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddp_tokens.checkpoint_files import make_manifest
from ddp_tokens.checks.verdict import Verdict, write_verdicts
from ddp_tokens.files import digests, write_json
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import INTERRUPT_AT, STEPS, Tiny, prepared, train_as_program


def everything(tiny: Tiny) -> dict[str, str]:
    """Path -> digest of all that runs have left; temporary files would show as well."""
    found = digests(path for path in tiny.at.root.joinpath("runs").rglob("*") if path.is_file())
    assert len(found) > 10
    return found


def refused(tiny: Tiny, *more: str, world_size: int | None = None) -> list[str]:
    """The sentence of each rank; all refuse, and nothing in runs/ has changed."""
    before = everything(tiny)
    arguments = tiny.arguments(*more)
    ranks = run_ranks(train_as_program, world_size or tiny.world_size, tiny.folder, arguments, joined=False)
    assert [rank["code"] for rank in ranks] == [2] * len(ranks), ranks
    assert everything(tiny) == before
    said = [without_warnings(rank["said"]) for rank in ranks]
    for rank, sentence in enumerate(said):
        assert sentence.startswith("ddp_tokens.train: " if rank == 0 else f"ddp_tokens.train, rank {rank}: "), sentence
        assert sentence.count("\n") == 1
    # All ranks say the same, apart from their own number.
    assert len({sentence.partition(": ")[2] for sentence in said}) == 1
    return said


def without_warnings(said: str) -> str:
    return "".join(line for line in said.splitlines(keepends=True) if not line.startswith("warning: "))


def test_without_a_launcher_the_missing_variables_are_named(tmp_path):
    config = tmp_path / "any.yaml"
    config.write_text("world_size: 3\n")
    command = [sys.executable, "-m", "ddp_tokens.train", "--config", str(config), "--results", str(tmp_path)]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "ddp_tokens.train: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set: start this module with "
        "torchrun, e.g. torchrun --standalone --nnodes=1 --nproc-per-node=3 -m MODULE\n"
    )
    assert list(tmp_path.iterdir()) == [config]


@pytest.mark.parametrize("started", [1, 3])
def test_another_number_of_ranks_than_the_experiments(copy_of, started):
    for sentence in refused(copy_of(2), world_size=started):
        assert f"{started} ranks were started but the experiment says world_size 2" in sentence


@pytest.mark.parametrize("step", ["step-0004", "../elsewhere/step-0003"])
def test_resume_from_a_path_that_does_not_exist(copy_of, step):
    tiny = copy_of(2)
    path = tiny.interrupted.parent / step
    for sentence in refused(tiny, "--resume", str(path)):
        assert f"{path} does not exist" in sentence


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_last_byte(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("damage", [truncate, flip_last_byte, Path.unlink])
@pytest.mark.parametrize(
    "part",
    ["model.safetensors", "optimizer.safetensors", "common.json", "rank-0.safetensors", "rank-1.json", "manifest.json"],
)
def test_resume_from_a_damaged_checkpoint_names_the_part(copy_of, part, damage: Callable[[Path], None]):
    """Also the part of one rank only: every rank refuses, so that none waits for another."""
    tiny = copy_of(2)
    damage(tiny.interrupted / part)
    for sentence in refused(tiny, "--resume", str(tiny.interrupted)):
        assert part in sentence
        assert str(tiny.interrupted) in sentence
        assert "use another checkpoint" in sentence


def swap_ranks(directory: Path) -> None:
    for suffix in ("json", "safetensors"):
        contents = [(directory / f"rank-{rank}.{suffix}").read_bytes() for rank in range(2)]
        for rank in range(2):
            (directory / f"rank-{rank}.{suffix}").write_bytes(contents[1 - rank])


def plant_pickle(directory: Path) -> None:
    (directory / "rank-1.safetensors").write_bytes(pickle.dumps({"torch_cpu": [0]}))


def plant_nan(directory: Path) -> None:
    path = directory / "rank-1.json"
    path.write_text(path.read_text().replace('"loss_sum": ', '"loss_sum": NaN, "was": ', 1))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (swap_ranks, "rank-0.json is of rank 1"),
        (plant_pickle, "rank-1.safetensors is not a whole safetensors file"),
        (plant_nan, "rank-1.json is damaged, it is not valid JSON"),
    ],
)
def test_a_manifest_made_anew_hides_nothing(copy_of, damage: Callable[[Path], None], said):
    """Every rank reads the parts of all ranks. All kinds are in tests/unit/test_damaged_checkpoints.py."""
    tiny = copy_of(2)
    damage(tiny.interrupted)
    write_json(tiny.interrupted / "manifest.json", make_manifest(tiny.interrupted, INTERRUPT_AT, 2))
    for sentence in refused(tiny, "--resume", str(tiny.interrupted)):
        assert said in sentence


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--optimizer.lr", "0.2"], "optimizer"),
        (["--optimizer.momentum", "0.5"], "optimizer"),
        (["--model.dropout", "0.2"], "model"),
        (["--threads-per-rank", "2"], "threads_per_rank"),
    ],
)
def test_resume_with_another_setting_names_it(copy_of, flags, name):
    """The number of threads among them (known failure thread-count): it decides in which order sums are taken."""
    tiny = copy_of(2)
    for sentence in refused(tiny, "--resume", str(tiny.interrupted), *flags):
        assert f"was written with {name} " in sentence


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"seed": 18}, "seed"),
        ({"world_size": 1}, "world_size"),
        ({"steps": 7}, "steps"),
        ({"batch": 1}, "batch"),
        ({"accumulation": 1}, "accumulation"),
    ],
)
def test_resume_from_another_experiment_names_what_differs(copy_of, changes, name):
    """Corpus, plan and initial weights were made anew for the setting, so digests differ too: name the cause."""
    old = copy_of(2)
    new = prepared(old.folder, **({"world_size": 2} | changes))
    for sentence in refused(new, "--resume", str(old.interrupted)):
        assert f"was written with {name} " in sentence


@pytest.mark.parametrize("setting", ["interrupt_at", "timeout_s", "launcher"])
def test_resume_accepts_what_cannot_change_the_path(copy_of, setting):
    tiny = copy_of(2)
    value = {"interrupt_at": "2", "timeout_s": "19", "launcher": "torchrun"}[setting]
    flag = "--" + setting.replace("_", "-")
    assert [rank["code"] for rank in tiny.train("--resume", str(tiny.interrupted), flag, value)] == [0, 0]
    assert {verdict.outcome for verdict in tiny.resume_verdicts().values()} == {"pass"}


def test_resume_from_the_last_update_says_that_nothing_is_left(copy_of):
    tiny = copy_of(2)
    for sentence in refused(tiny, "--resume", str(tiny.at.checkpoint("continuous", STEPS))):
        assert f"is at update {STEPS}, so nothing is left to do" in sentence


def write_parity(tiny: Tiny, outcome: str) -> Path:
    path = tiny.at.check("gradient_parity")
    verdict = Verdict("token_mean.native.first", "pass", outcome, "a criterion", {}, {str(tiny.at.plan): _digest(tiny)})
    write_verdicts(path, "gradient_parity", [verdict])
    return path


def _digest(tiny: Tiny) -> str:
    return digests([tiny.at.plan])[str(tiny.at.plan)]


@pytest.mark.parametrize("run", [[], ["--continuous"]])
def test_training_on_a_wrong_gradient_is_refused(copy_of, run):
    tiny = copy_of(2)
    path = write_parity(tiny, "fail")
    for sentence in refused(tiny, *run):
        assert f"{path}: case 'token_mean.native.first' is fail, expected pass: training is refused" in sentence
        assert "train_anyway" in sentence


def test_training_on_a_verdict_about_other_files_is_refused(copy_of):
    tiny = copy_of(2)
    path = write_parity(tiny, "pass")
    assert [rank["code"] for rank in tiny.train()] == [0, 0]
    tiny.at.plan.write_text(tiny.at.plan.read_text() + " ")
    for sentence in refused(tiny):
        assert f"{path}: case 'token_mean.native.first' was judged on another {tiny.at.plan}" in sentence


def test_train_anyway_trains_and_says_so(copy_of):
    tiny = copy_of(2)
    path = write_parity(tiny, "fail")
    (tiny.interrupted / "manifest.json").unlink()
    first, second = tiny.train("--train-anyway")
    assert (first["code"], second["code"]) == (0, 0)
    assert f"warning: {path}: case 'token_mean.native.first' is fail, expected pass\n" in first["said"]
    assert second["said"] == ""
    assert (tiny.interrupted / "manifest.json").is_file()


def resume_with_a_late_view(world: World, arguments: list[str], interrupted: str) -> dict[str, Any]:
    """Rank 1 does not see the checkpoint. An error without a sentence is told as "crashed"."""
    if world.rank == 1:
        arguments = [argument.replace(interrupted, f"{interrupted}-late") for argument in arguments]
    try:
        return train_as_program(world, arguments)
    except RuntimeError as error:
        return {"code": "crashed", "said": str(error)}


def resumed_with_a_late_view(tiny: Tiny) -> list[dict[str, Any]]:
    arguments = tiny.arguments("--resume", str(tiny.interrupted))
    return run_ranks(resume_with_a_late_view, 2, tiny.folder, arguments, str(tiny.interrupted), joined=False)


def test_a_rank_that_does_not_see_the_checkpoint_stops_all(copy_of):
    """Known failure ranks-disagree-on-existence: no deadlock, and nothing is written."""
    tiny = copy_of(2)
    before = everything(tiny)
    sees, sees_not = resumed_with_a_late_view(tiny)
    assert sees["code"] != 0
    assert sees_not["code"] == 2
    assert f"{tiny.interrupted}-late does not exist" in sees_not["said"]
    assert everything(tiny) == before


def test_every_rank_says_why_when_one_does_not_see_the_checkpoint(copy_of):
    assert [rank["code"] for rank in resumed_with_a_late_view(copy_of(2))] == [2, 2]
