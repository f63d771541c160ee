"""Runs of fsdp2 and zero1: exact resume, what a checkpoint holds, and refusals of altered or foreign parts."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from ddp_tokens import checkpoint, sharded_parts
from ddp_tokens.checkpoint_files import make_manifest, parts_of
from ddp_tokens.checks.checkpoints import check_checkpoints
from ddp_tokens.checks.tensor_files import read_whole
from ddp_tokens.checks.verdict import diagnosis_of
from ddp_tokens.evaluation import evaluate_checkpoint
from ddp_tokens.files import read_json, read_json_lines, sha256, write_json
from ddp_tokens.tensors import load_whole
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import INTERRUPT_AT, SETTINGS, STEPS, Tiny, prepared, train_as_program

ADAMW = {
    "optimizer": {"kind": "adamw", "lr": 0.01, "clip_norm": 0.5},
    "schedule": {"kind": "cosine", "per": "update"},
    "use_amp": True,
    "checkpoint_every": 2,
}


@pytest.fixture(scope="module")
def trained_with(tmp_path_factory):
    """(strategy, world size, other settings) -> a tiny experiment whose three runs are done. Read only."""
    done: dict[str, Tiny] = {}

    def of(strategy: str, world_size: int = 2, **changes: Any) -> Tiny:
        key = json.dumps([strategy, world_size, changes])
        if key not in done:
            tiny = prepared(tmp_path_factory.mktemp("trained") / "tiny", world_size, strategy=strategy, **changes)
            tiny.train_all()
            done[key] = tiny
        return done[key]

    return of


@pytest.fixture
def copy_of(trained_with, tmp_path):
    def of(strategy: str, world_size: int = 2) -> Tiny:
        return Tiny(shutil.copytree(trained_with(strategy, world_size).folder, tmp_path / "tiny"), world_size)

    return of


def ends(tiny: Tiny) -> list[Path]:
    return [tiny.at.checkpoint(run, STEPS) for run in ("continuous", "resume")]


@pytest.mark.parametrize("strategy", ["fsdp2", "zero1"])
@pytest.mark.parametrize(("world_size", "changes"), [(2, {}), (3, {}), (3, ADAMW)], ids=["2", "3", "3-adamw"])
def test_a_resumed_run_is_the_continuous_one(trained_with, strategy, world_size, changes):
    """At three ranks too: whoever reduces what is the same in each process, so sums have one order."""
    tiny = trained_with(strategy, world_size, **changes)
    verdicts = tiny.resume_verdicts()
    assert {case: verdict.first_difference for case, verdict in verdicts.items() if not verdict.as_expected} == {}
    assert {verdict.outcome for verdict in verdicts.values()} == {"pass"}
    assert verdicts["weights_moved"].observed["max_abs_difference"] > 1e-3
    assert verdicts["parameters"].observed["values"] > 500
    assert verdicts["optimizer_state"].observed["values"] > 500
    continuous, resumed = ends(tiny)
    names = sorted(path.name for path in continuous.iterdir())
    assert {name: sha256(resumed / name) for name in names} == {name: sha256(continuous / name) for name in names}
    assert [verdict.outcome for verdict in tiny.replica_verdicts()] == ["pass"] * 3
    assert [verdict.first_difference for verdict in check_checkpoints([*ends(tiny), tiny.interrupted])] == [None] * 3


@pytest.mark.parametrize("strategy", ["fsdp2", "zero1"])
def test_windows_in_which_ranks_have_unequally_many_microbatches_are_trained_on(trained_with, strategy):
    """43 rows are 22 and 21 for two ranks: 9 and 9, 9 and 9, then 4 and 3, in microbatches of 3 two and one."""
    uneven = {"corpus": SETTINGS["corpus"] | {"train": 43}, "sharding": "by_epoch", "batch": 3, "accumulation": 3}
    tiny = trained_with(strategy, 2, **uneven)
    plan = read_json(tiny.at.plan)["plan"]
    assert [[len(of_rank) for of_rank in window] for window in plan] == [[3, 3], [3, 3], [2, 1]] * 2
    assert {verdict.outcome for verdict in tiny.resume_verdicts().values()} == {"pass"}
    history = read_json_lines(tiny.at.run("continuous") / "ranks" / "rank-1.jsonl")
    assert [len(record["rows"]) for record in history] == [3, 3, 2 if strategy == "fsdp2" else 1] * 2
    assert [record["rows"][: len(window[1])] for record, window in zip(history, plan, strict=True)] == [
        window[1] for window in plan
    ]


def test_zero1_makes_the_updates_of_ddp_bit_for_bit(trained_with):
    """Each rank updates its share of the parameters by the same arithmetic; so all of the checkpoint is that of ddp."""
    ddp, zero1 = ends(trained_with("ddp"))[0], ends(trained_with("zero1"))[0]
    assert {path.name for path in ddp.iterdir()} == {path.name for path in zero1.iterdir()}
    for name in ("model.safetensors", "optimizer.safetensors", "rank-0.safetensors", "rank-1.safetensors"):
        assert sha256(ddp / name) == sha256(zero1 / name)
    of_ddp, of_zero1 = (read_json(path / "common.json") for path in (ddp, zero1))
    differing = {name for name in of_ddp["identity"] if of_ddp["identity"][name] != of_zero1["identity"][name]}
    assert differing == {"strategy"}
    assert {**of_ddp, "identity": {}} == {**of_zero1, "identity": {}}


@pytest.mark.parametrize("world_size", [2, 3])
def test_fsdp2_follows_the_path_of_ddp_but_for_rounding(trained_with, world_size):
    """Six updates of a float32 model: other sums, hence rounding; a wrong formula moves weights by more than 1e-3."""
    ddp, fsdp2 = (
        read_whole(ends(trained_with(name, world_size))[0] / "model.safetensors") for name in ("ddp", "fsdp2")
    )
    assert ddp.keys() == fsdp2.keys()
    assert max(abs(ddp[name] - fsdp2[name]).max() for name in ddp) < 1e-5


def test_parts_are_safetensors_and_json_and_nothing_is_held_twice(trained_with):
    tiny = trained_with("fsdp2", 3)
    folder = ends(tiny)[0]
    of_ranks = {f"{what}-rank-{rank}.safetensors" for what in ("model", "optimizer") for rank in range(3)}
    assert {path.name for path in folder.iterdir()} == of_ranks | {"common.json", "manifest.json"} | {
        f"rank-{rank}.{suffix}" for rank in range(3) for suffix in ("json", "safetensors")
    }
    for path in folder.iterdir():
        assert not zipfile.is_zipfile(path)  # what torch.save writes
        if path.suffix == ".json":
            json.loads(path.read_text())
        else:
            with safe_open(path, "numpy") as file:
                assert set(file.metadata() or {}) <= {"DCP_SHARDING_INFO"}
    values = sum(array.size for array in read_whole(folder / "model.safetensors").values())
    held = [
        sum(tensor.numel() for tensor in _tensors(part).values()) for part in parts_of(folder / "model.safetensors")
    ]
    assert len(held) == 3
    assert sum(held) == values
    assert max(held) < values / 2
    state = tiny.at.run("continuous") / "ranks" / "state-rank-2.safetensors"
    gathered, put_together = _tensors(state), load_whole(folder / "model.safetensors")
    assert {name: tensor.tolist() for name, tensor in gathered.items()} == {
        name: tensor.tolist() for name, tensor in put_together.items()
    }


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_anyone_can_read_the_parts_with_torch(trained_with):
    """As docs/strategies.md says: whole tensors, filled by torch's reader, the folder being all that it is told."""
    import torch.distributed.checkpoint as dcp

    folder = ends(trained_with("fsdp2", 3))[0]
    expected = load_whole(folder / "model.safetensors")
    weights = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    dcp.load(weights, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    assert any(tensor.any() for tensor in weights.values())


def test_a_sharded_checkpoint_is_evaluated(trained_with):
    """The model put together scores the loss that the same weights of ddp score, but for rounding."""
    losses = []
    for strategy in ("ddp", "fsdp2"):
        tiny = trained_with(strategy)
        of = (tiny.experiment, tiny.at.rows, tiny.at.lock, ends(tiny)[0], tiny.at.initial)
        losses.append(evaluate_checkpoint(*of)["test"]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != pytest.approx(1.0, rel=0.01)


def swap_parts(folder: Path) -> None:
    first, second = parts_of(folder / "model.safetensors")[:2]
    held = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(held)


def alter(folder: Path) -> None:
    path = parts_of(folder / "model.safetensors")[1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def remove(folder: Path) -> None:
    parts_of(folder / "optimizer.safetensors")[1].unlink()


@pytest.mark.parametrize(
    ("damage", "anew", "says"),
    [
        (alter, False, "model-rank-1.safetensors was altered (its SHA-256 is not the manifest's)"),
        (remove, False, "is incomplete, optimizer-rank-1.safetensors is missing"),
        (alter, True, "rank-1.json does not belong to model-rank-1.safetensors beside it"),
        (swap_parts, True, "rank-0.json does not belong to model-rank-0.safetensors beside it"),
    ],
)
def test_altered_parts_are_refused_by_every_rank(copy_of, damage, anew, says):
    """`anew`: with a manifest that fits the files, as somebody might make one."""
    tiny = copy_of("fsdp2")
    damage(tiny.interrupted)
    if anew:
        write_json(tiny.interrupted / "manifest.json", make_manifest(tiny.interrupted, INTERRUPT_AT, 2, True))
    ranks = tiny.train("--resume", str(tiny.interrupted))
    assert all(rank["code"] != 0 and says in rank["said"] for rank in ranks), ranks
    [verdict] = check_checkpoints([tiny.interrupted])
    assert verdict.outcome == "fail"
    assert says in verdict.first_difference["problem"]


@pytest.mark.parametrize(("written", "read"), [("ddp", "fsdp2"), ("fsdp2", "ddp"), ("ddp", "zero1")])
def test_a_checkpoint_of_another_strategy_is_refused(copy_of, written, read):
    tiny = copy_of(written)
    text = tiny.config.read_text().replace(f"strategy: {written}", f"strategy: {read}")
    assert f"strategy: {read}" in text
    tiny.config.write_text(text)
    ranks = tiny.train("--resume", str(tiny.interrupted))
    assert all(rank["code"] != 0 for rank in ranks), ranks
    says = "strategy" if read == "zero1" else "set strategy to what it was"
    assert all(says in rank["said"] for rank in ranks), ranks


def resume_forgetting(world: World, arguments: list[str], forgotten: str) -> dict[str, Any]:
    """Resume a sharded run without the values of one of the two kinds of parts."""
    fill, fired = sharded_parts.fill, []

    def fill_but(path: Path, tensors: Any) -> None:
        if path.name == forgotten:
            fired.append(path.name)
        else:
            fill(path, tensors)

    checkpoint.fill = fill_but
    return train_as_program(world, arguments) | {"fired": fired}


@pytest.mark.parametrize("forgotten", ["model.safetensors", "optimizer.safetensors"])
def test_the_check_notices_parts_that_were_not_restored(copy_of, forgotten):
    tiny = copy_of("fsdp2")
    arguments = tiny.arguments("--resume", str(tiny.interrupted))
    ranks = run_ranks(resume_forgetting, 2, tiny.folder, arguments, forgotten, joined=False)
    assert [(rank["code"], rank["fired"]) for rank in ranks] == [(0, [forgotten])] * 2
    verdicts = tiny.resume_verdicts()
    for rank in range(2):
        assert verdicts[f"start_rank_{rank}"].first_difference == {"rank": rank, "state": forgotten}
    assert verdicts["parameters"].outcome == "fail"
    assert diagnosis_of(verdicts.values()) == ()


@pytest.mark.parametrize("strategy", ["fsdp2", "zero1"])
def test_another_number_of_ranks_goes_on_from_the_checkpoint(copy_of, strategy):
    """Three ranks read what two have written: the parts are dealt anew, and the first window starts from the same."""
    tiny = copy_of(strategy)
    three = Tiny(tiny.folder, 3)
    more = ("--resume", str(tiny.interrupted), "--allow-repartition", "--world-size", "3")
    ranks = three.train(*more)
    assert [rank["code"] for rank in ranks] == [0] * 3, ranks
    last = three.at.checkpoint("resume", STEPS)
    assert read_json(last / "manifest.json")["world_size"] == 3
    of_two, of_three = (read_whole(path / "model.safetensors") for path in (ends(tiny)[0], last))
    assert of_two.keys() == of_three.keys()
    # Dropout draws differ between other numbers of ranks, so the paths part; from other weights they would by far more.
    assert max(abs(of_two[name] - of_three[name]).max() for name in of_two) < 0.5
