"""Mixed precision on two real ranks: an overflow on one of them, and known failure scaler-not-restored."""

import shutil
from typing import Any

import pytest
import torch

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.checkpoint_files import make_manifest
from ddp_tokens.config import Sgd
from ddp_tokens.distributed import wrap_for_ddp
from ddp_tokens.files import read_json, read_json_lines, sha256, write_json
from ddp_tokens.precision import Precision
from ddp_tokens.schedule import Schedule
from ddp_tokens.tensors import load_tensors
from ddp_tokens.trainer import How, build_optimizer, train
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import INTERRUPT_AT, STEPS, SquaredError, Tiny, prepared, row
from tests.distributed.tiny_images import COSINE, FLOAT16, IMAGES, overflow_first

ROWS = {name: row(int(name)) for name in ("20", "-18", "22", "-16")}
WINDOW = [[["20"], ["-18"]], [["22"], ["-16"]]]


def overflow_on_rank_1(world: World) -> list[dict[str, Any]]:
    """Three updates of theta; in the second, rank 1's gradient is infinite in the first of two microbatches."""
    bare = SquaredError().build_model(None, None)
    model = wrap_for_ddp(bare)
    optimizer = build_optimizer(model, Sgd(lr=0.25, momentum=0.5))
    state = TrainingState(bare, optimizer)
    calls: list[int] = []

    def blow_up(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(state.step)
        first_of_second = calls.count(1) == 1 and calls[-1] == 1
        if world.rank == 1 and first_of_second:
            fired.append(len(calls))
            return gradient * float("inf")
        return gradient

    fired: list[int] = []
    bare.theta.register_hook(blow_up)
    halved = Schedule(torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5), every=1)
    how = How(precision=Precision(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0)), schedule=halved)
    seen = []
    for record in train(model, state, SquaredError(), [WINDOW] * 3, ROWS, world, 3, how):
        momentum = float(optimizer.state_dict()["state"][0]["momentum_buffer"])
        held = {"theta": float(bare.theta), "momentum": momentum, "next_scale": how.precision.scaler.get_scale()}
        seen.append(record | held | {"fired": len(fired)})
    return seen


def test_an_overflow_on_one_rank_makes_every_rank_skip_the_same_update(tmp_path):
    """Targets 20, -18, 22, -16 of mean 2: the gradient at theta is 2 (theta - 2), momentum 1/2, rates 1/4, 1/8, 1/16.

    Update 1: gradient -4, momentum -4, theta 0 + 4/4 = 1. Update 2 is skipped: all stays, and 1024 becomes 512.
    Update 3: gradient -2, momentum -2 - 2 = -4, theta 1 + 4/16: the rate has fallen after the skipped update too.
    """
    of_ranks = run_ranks(overflow_on_rank_1, 2, tmp_path)
    for rank, seen in enumerate(of_ranks):
        assert [update["fired"] for update in seen] == ([0, 1, 1] if rank == 1 else [0, 0, 0])
        assert [update["skipped"] for update in seen] == [False, True, False]
        assert [update["scale"] for update in seen] == [1024, 1024, 512]
        assert [update["next_scale"] for update in seen] == [1024, 512, 512]
        assert [update["theta"] for update in seen] == [1.0, 1.0, 1.25]
        assert [update["momentum"] for update in seen] == [-4.0, -4.0, -4.0]
        assert [update["lr"] for update in seen] == [0.25, 0.125, 0.0625]


@pytest.fixture(scope="module")
def overflown(tmp_path_factory) -> Tiny:
    """float16, cosine, clipping, momentum and BatchNorm; an overflow in update 1, interrupted inside an epoch."""
    optimizer = IMAGES["optimizer"] | {"clip_norm": 1.0}
    settings = IMAGES | FLOAT16 | COSINE | {"optimizer": optimizer}
    tiny = prepared(tmp_path_factory.mktemp("overflown"), 2, **settings)
    for more in ([], ["--continuous"], ["--resume", str(tiny.interrupted)]):
        ranks = run_ranks(overflow_first, 2, tiny.folder, tiny.arguments(*more), joined=False)
        assert [rank["code"] for rank in ranks] == [0, 0], ranks
        fired = [0, 0] if "--resume" in more else [0, 1]
        assert [rank["fired"] > 0 for rank in ranks] == list(map(bool, fired))
    return tiny


@pytest.fixture
def copied(overflown, tmp_path) -> Tiny:
    return Tiny(shutil.copytree(overflown.folder, tmp_path / "tiny"), 2)


def history(tiny: Tiny, run: str) -> list[dict[str, Any]]:
    return read_json_lines(tiny.at.run(run) / "history.jsonl")


def test_scaler_not_restored(overflown):
    """65536 overflows in update 1 and becomes 256, which four made updates later, after update 5, doubles.

    So scale and growth tracker both matter: a resume that starts with 65536, or counts anew, has other scales.
    """
    extras = read_json(overflown.interrupted / "common.json")["extras"]
    assert (extras["scaler"]["scale"], extras["scaler"]["_growth_tracker"]) == (256.0, 2)
    for run in ("continuous", "resume"):
        assert [record["scale"] for record in history(overflown, run)] == [65536, 256, 256, 256, 256, 512]
        assert [record["skipped"] for record in history(overflown, run)] == [True] + 5 * [False]
        assert [record["gradient_norm"] is None for record in history(overflown, run)] == [True] + 5 * [False]


def test_a_run_with_everything_that_has_a_state_resumes_bit_for_bit_inside_an_epoch(overflown):
    verdicts = overflown.resume_verdicts()
    assert {case: verdict.first_difference for case, verdict in verdicts.items() if not verdict.as_expected} == {}
    assert verdicts["weights_moved"].observed["max_abs_difference"] > 1e-3
    resumed, continuous = (overflown.at.checkpoint(run, STEPS) for run in ("resume", "continuous"))
    names = sorted(path.name for path in continuous.iterdir())
    assert {name: sha256(resumed / name) for name in names} == {name: sha256(continuous / name) for name in names}
    assert {verdict.outcome for verdict in overflown.replica_verdicts()} == {"pass"}


def test_the_skipped_update_left_weights_and_optimizer_as_they_were(copied):
    """The same run, ended after the overflow: its weights are the initial ones, and no momentum has begun."""
    ranks = run_ranks(overflow_first, 2, copied.folder, copied.arguments("--interrupt-at", "1"), joined=False)
    assert [rank["fired"] > 0 for rank in ranks] == [False, True]
    checkpoint, of_ranks = copied.at.checkpoint("interrupt", 1), copied.at.run("interrupt") / "ranks"
    buffers = set(read_json(of_ranks / "start-rank-0.json")["buffers"])
    initial, left = load_tensors(copied.at.initial), load_tensors(checkpoint / "model.safetensors")
    assert buffers < set(left) == set(initial)
    for rank in range(2):
        of_rank = load_tensors(of_ranks / f"state-rank-{rank}.safetensors")
        assert [name for name in set(left) - buffers if not torch.equal(of_rank[name], initial[name])] == []
    assert load_tensors(checkpoint / "optimizer.safetensors") == {}


@pytest.mark.parametrize(
    ("extra", "new", "sentence"),
    [
        ("scaler", None, "has no state of scaler, other than this run"),
        ("schedule", None, "has no state of schedule, other than this run"),
        ("average", {"decay": 0.5}, "has a state of average, other than this run"),
    ],
)
def test_a_checkpoint_with_other_states_than_the_run_has_is_refused_by_name(copied, extra, new, sentence):
    path = copied.interrupted / "common.json"
    document = read_json(path)
    document["extras"].pop(extra, None)
    if new is not None:
        document["extras"][extra] = new
    write_json(path, document)
    write_json(copied.interrupted / "manifest.json", make_manifest(copied.interrupted, INTERRUPT_AT, 2))
    for rank in copied.train("--resume", str(copied.interrupted)):
        assert rank["code"] == 2
        assert f"{path} {sentence}" in rank["said"]


@pytest.mark.parametrize(
    ("flag", "value", "name"),
    [("--amp-dtype", "bfloat16", "amp_dtype"), ("--schedule.final-lr", "0.03125", "schedule")],
)
def test_a_resume_with_other_settings_is_refused_by_name(copied, flag, value, name):
    for rank in copied.train("--resume", str(copied.interrupted), flag, value):
        assert rank["code"] == 2
        assert f"was written with {name} " in rank["said"]


LONGER = {"steps": 24, "interrupt_at": 3, "model": IMAGES["model"] | {"norm": "group", "groups": 2}}


@pytest.fixture(scope="module")
def longer(tmp_path_factory) -> dict[str, Tiny]:
    """Twelve epochs in each precision."""
    made = {}
    for name, settings in {"float32": {}, "bfloat16": {"use_amp": True}, "float16": FLOAT16}.items():
        made[name] = prepared(tmp_path_factory.mktemp("longer") / name, 2, **IMAGES | LONGER | settings)
        assert [rank["code"] for rank in made[name].train("--continuous")] == [0, 0]
    return made


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_trains(longer, precision):
    """The first loss is that of float32 but for rounding, and not its very bits; parameters stay float32."""
    records, full = history(longer[precision], "continuous"), history(longer["float32"], "continuous")
    assert 0 < abs(records[0]["loss"] - full[0]["loss"]) < 2**-5 * full[0]["loss"]
    fields = {"step", "units", "loss_sum", "loss", "correct"}
    assert set(full[0]) == fields
    assert set(records[0]) == fields | ({"scale", "skipped"} if precision == "float16" else set())
    last_epoch, first_epoch = (sum(record["loss_sum"] for record in part) for part in (records[-2:], records[:2]))
    assert last_epoch < first_epoch
    weights = load_tensors(longer[precision].at.checkpoint("continuous", 24) / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    initial = load_tensors(longer[precision].at.initial)
    assert [name for name in weights if torch.equal(weights[name], initial[name])] == []
