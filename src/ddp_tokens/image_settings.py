"""What settings of images must have in common. `experiment`: a config.Experiment, which is defined below this."""

from typing import Any

from ddp_tokens.corpus_settings import Images, OwnImages
from ddp_tokens.training_settings import OwnModel, ResNet
from ddp_tokens.workload_names import is_own

# The kinds of work that come with the project, and whether their rows are images.
OF_IMAGES = {"token_labels": False, "causal_lm": False, "images": True}


def require_images(experiment: Any) -> None:
    """Raises ValueError where corpus, model, workload and augmentation do not go together. A user's own workload builds
    the model that its rows need.
    """
    of_images = isinstance(experiment.corpus, Images | OwnImages)
    own = is_own(experiment.workload)
    if isinstance(experiment.model, OwnModel) and not own:
        raise ValueError(
            f"model own needs a workload of your own, such as path/to/mine.py:MyWork, not "
            f"{experiment.workload}, which is no file and no name of the project's own"
        )
    if isinstance(experiment.model, ResNet) != of_images and not own:
        raise ValueError(
            f"model {experiment.model.kind} does not go with corpus {experiment.corpus.kind}: images need model.kind "
            "resnet and workload images, tokens need model.kind transformer"
        )
    if OF_IMAGES.get(experiment.workload, of_images) != of_images:
        raise ValueError(
            f"workload {experiment.workload} does not go with corpus {experiment.corpus.kind}: images need workload "
            "images, tokens need token_labels or causal_lm"
        )
    if experiment.augmentation != "none" and not of_images:
        raise ValueError(
            f"augmentation {experiment.augmentation} is for images, not for corpus {experiment.corpus.kind}"
        )
    if isinstance(experiment.model, ResNet):
        _require_fitting(experiment, experiment.model)


def _require_fitting(experiment: Any, model: ResNet) -> None:
    """One pixel of one image, as a short last window may hold, has no variance: torch refuses it amidst a run."""
    size = experiment.corpus.size if isinstance(experiment.corpus, Images | OwnImages) else None
    halvings = len(model.stages) - 1
    if size is not None and size <= 2**halvings and model.norm != "group":
        raise ValueError(
            f"the {len(model.stages)} stages of model.stages halve images of corpus.size {size} to a single pixel: "
            f"take fewer stages, {2**halvings + 1} pixels or more, or model.norm group"
        )
    if (
        model.norm == "sync_batch"
        and experiment.device == "cuda"
        and experiment.sharding == "by_epoch"
        and not experiment.drop_last
    ):
        _require_rows_for_all_in_a_short_window(experiment)
    if model.norm == "sync_batch" and experiment.device == "cpu":
        raise ValueError(
            "model.norm sync_batch needs device cuda, since torch's SyncBatchNorm refuses CPU tensors: take norm "
            "batch or group here"
        )


def _require_rows_for_all_in_a_short_window(experiment: Any) -> None:
    if experiment.accumulation > 1:
        raise ValueError(
            "model.norm sync_batch waits for all ranks in every forward, and in a short last window ranks may have "
            "unequal numbers of microbatches: set drop_last to true, or accumulation to 1"
        )
    left = experiment.training_rows % (experiment.world_size * experiment.batch)
    if 0 < left < experiment.world_size:
        raise ValueError(
            f"the last window of an epoch has {left} rows for {experiment.world_size} ranks, and with model.norm "
            "sync_batch a rank without a row would change the statistics of all: set drop_last to true"
        )
