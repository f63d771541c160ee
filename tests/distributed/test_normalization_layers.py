"""Parity of MiniResNet on two ranks, on an uneven short last window: with frozen BatchNorm, and with GroupNorm."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_tokens import gradients
from ddp_tokens.checks.gradient_conditions import conditions_of
from ddp_tokens.checks.gradient_parity import check_gradient_parity, count_windows
from ddp_tokens.checks.gradient_references import REFERENCES
from ddp_tokens.config import ResNet
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.corpora.lock import ImageShape
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import wrap_for_ddp
from ddp_tokens.gradients import token_mean
from ddp_tokens.inputs import initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.normalization import FORMULAS
from ddp_tokens.plan import microbatches_of, windows_to_compare
from ddp_tokens.reference import DTYPES, gradients_of
from ddp_tokens.tensors import load_tensors
from ddp_tokens.workloads import images
from ddp_tokens.world import World
from tests.distributed.ranks import RankError, run_ranks
from tests.distributed.tiny import Tiny, prepared

# 21 rows on two ranks are 11 and 10; of a window of 3 x 2 rows per rank, the second holds what is left: 5 and 4.
SETTINGS = {
    "corpus": {"kind": "images", "classes": 3, "size": 8, "train": 21, "validation": 2, "test": 3},
    "workload": "images",
    "sharding": "by_epoch",
    "accumulation": 3,
    "batch": 2,
    "steps": 4,
}
NORMS = ("batch", "group")


def dump(world: World, arguments: Sequence[str]) -> int:
    return gradients.main(arguments)


def model_settings(norm: str) -> dict[str, Any]:
    return {"kind": "resnet", "stages": [4], "blocks": 1, "norm": norm, "groups": 2}


@pytest.fixture(scope="module", params=NORMS)
def dumped(request, tmp_path_factory):
    tiny = prepared(tmp_path_factory.mktemp(request.param) / "tiny", 2, model=model_settings(request.param), **SETTINGS)
    assert run_ranks(dump, 2, tiny.folder, tiny.arguments(), joined=False) == [0, 0]
    return request.param, tiny


def parity(tiny: Tiny):
    return check_gradient_parity(
        tiny.experiment.tolerances,
        {name: tiny.at.reference(name) for name in REFERENCES},
        {(formula, dtype): tiny.at.gradients(formula, dtype) for formula in FORMULAS for dtype in DTYPES},
        count_windows(tiny.at.rows, tiny.at.lock, tiny.at.plan),
        conditions_of(tiny.experiment.model, tiny.experiment.use_amp, tiny.at.initial),
    )


def test_the_uneven_short_window_is_decided_and_the_even_one_is_not(dumped):
    """With 6 rows on either rank a mean of means is the mean over all: inconclusive, by arithmetic. With 5 and 4 the
    token mean passes, the mean of means is refused, and each verdict says how normalization is judged.
    """
    norm, tiny = dumped
    verdicts = {verdict.case: verdict for verdict in parity(tiny)}
    assert {case: verdict.problem for case, verdict in verdicts.items() if verdict.problem} == {}
    for dtype in DTYPES:
        right, wrong = (verdicts[f"{formula}.{dtype}.most_unequal"] for formula in ("token_mean", "mean_of_means"))
        assert (right.outcome, wrong.outcome, wrong.diagnosis) == ("pass", "fail", ("mean_of_means",))
        assert right.observed["units_per_rank"] == [5, 4]
        assert right.observed["power"] > 100
        assert wrong.observed["error"] > 100 * wrong.observed["tolerance"]
        assert verdicts[f"token_mean.{dtype}.first"].observed["units_per_rank"] == [6, 6]
        assert verdicts[f"token_mean.{dtype}.first"].outcome == "inconclusive"
    said = {
        "batch": "; BatchNorm layers with frozen statistics (eval mode, the same initial buffers)",
        "group": "; normalization judged as in training: no layer uses statistics of rows",
    }
    assert all(verdict.criterion.endswith(said[norm]) for verdict in verdicts.values())
    assert all(str(tiny.at.initial) in verdict.evidence for verdict in verdicts.values())


def in_training(world: World, config: str, root: str) -> dict[str, Any]:
    """How far the most unequal window's gradient is from the reference, in float64, in eval and in training mode."""
    experiment, at = load_experiment(config), Layout(Path(root))
    make_deterministic(1)
    prepared_ = read_prepared(experiment, at)
    index = windows_to_compare(prepared_.plan, prepared_.rows)["most_unequal"]
    own = microbatches_of(prepared_.plan[index], world.rank, prepared_.rows)
    model = wrap_for_ddp(initial_model(experiment, images, prepared_.shape, at.initial, "cpu", torch.float64))
    reference = load_tensors(at.reference("float64"))
    found = {}
    for mode in (False, True):
        token_mean(model.train(mode), images, own, "window", world)
        of_window = gradients_of(model.module)
        differences = [
            float((gradient - reference[f"most_unequal/{name}"]).abs().max()) for name, gradient in of_window.items()
        ]
        found["training" if mode else "eval"] = max(differences)
    return found | {"microbatches": [len(rows) for rows in own]}


def test_in_training_mode_only_batch_norm_leaves_another_gradient(dumped):
    norm, tiny = dumped
    ranks = run_ranks(in_training, 2, tiny.folder, str(tiny.config), str(tiny.at.root))
    assert [rank["microbatches"] for rank in ranks] == [[2, 2, 1], [2, 2]]
    for rank in ranks:
        assert rank["eval"] < 1e-12
        assert (rank["training"] > 1e-2) if norm == "batch" else (rank["training"] < 1e-12)


def train_with_synchronized_statistics(world: World) -> None:
    model = images.build_model(ResNet(stages=(4,), blocks=1, norm="sync_batch"), ImageShape(3, 3, 8, 8))
    model.train()(torch.zeros(2, 3, 8, 8))


def test_torch_refuses_synchronized_statistics_on_the_cpu(tmp_path):
    """What the configuration says of sync_batch."""
    with pytest.raises(RankError, match="SyncBatchNorm expected input tensor to be on GPU"):
        run_ranks(train_with_synchronized_statistics, 2, tmp_path)
