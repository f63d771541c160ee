"""The wrong resumes and replicas as a table: what must be said of each. No torch."""

from dataclasses import dataclass
from pathlib import Path

from ddp_tokens.checks.verdict import FAIL, PASS
from ddp_tokens.config import Experiment
from ddp_tokens.layout import Layout

SHARED = "shared"  # where the runs lie that all variants share
RESUME, REPLICAS = "resume", "replicas"


@dataclass(frozen=True)
class Case:
    """`check`: the check that judges it. `diagnosis`: what it must be diagnosed as. `twice`: resumed a second time.
    `alone`: its interrupted and continuous runs are its own, as they are other runs than those that are shared.
    `what`: what is done, in one phrase; needed where the diagnosis' meaning does not say it.
    """

    name: str
    check: str
    expected: str
    diagnosis: tuple[str, ...] = ()
    twice: bool = False
    alone: bool = False
    what: str = ""
    world_size: int = 2


CASES = (
    Case("resumed_once", RESUME, PASS, what="interrupted once, SGD with momentum and dropout"),
    Case("resumed_twice", RESUME, PASS, twice=True, what="interrupted and resumed two times"),
    Case("resumed_with_adamw", RESUME, PASS, alone=True, what="AdamW, whose state is two moments and a count"),
    Case("resumed_without_dropout", RESUME, PASS, alone=True, what="no dropout, so that no number is drawn"),
    Case("resumed_in_float64", RESUME, PASS, alone=True, what="the model in float64"),
    Case("resumed_with_tied_weights", RESUME, PASS, alone=True, what="the head shares the embedding's weights"),
    Case("resumed_with_batch_norm", RESUME, PASS, alone=True, what="BatchNorm, whose running statistics are buffers"),
    Case("resumed_with_cosine_schedule", RESUME, PASS, alone=True, what="the rate falls after each update"),
    Case(
        *("resumed_with_loss_scale", RESUME, PASS),
        alone=True,
        what="mixed precision in float16, whose loss scale has overflowed and was lowered before the interruption",
    ),
    *(
        Case(f"resumed_{times}_on_{size}_ranks", RESUME, PASS, (), times == "twice", world_size=size, what=what)
        for size in (3, 4)
        for times, what in (("once", "interrupted once"), ("twice", "interrupted and resumed two times"))
    ),
    Case(
        *("default_bucket_layout", RESUME, FAIL, ("summed_in_another_order",)),
        alone=True,
        what="DDP as it comes, which lays out its buckets anew after the first window of a process",
        world_size=3,
    ),
    Case("generators_not_restored", RESUME, FAIL, ("generators_not_restored",)),
    Case("only_seed_restored", RESUME, FAIL, ("only_seed_restored",)),
    Case(
        *("restored_before_a_skip_that_draws", RESUME, FAIL, ("drawn_from_after_restoring",)),
        what="after the generators are restored, the windows done so far are skipped through a loader that draws",
    ),
    Case("momentum_lost", RESUME, FAIL, ("optimizer_state_lost",), what="the optimizer loses its momentum"),
    Case(
        *("schedule_lost", RESUME, FAIL, ("schedule_lost",)),
        alone=True,
        what="the schedule of the learning rate is built anew and not loaded",
    ),
    Case(
        *("scaler_lost", RESUME, FAIL, ("scaler_lost",)),
        alone=True,
        what="the loss scale is the first one again, so that updates overflow and are skipped a second time",
    ),
    Case(
        *("position_off_by_one", RESUME, FAIL, ("position_off_by_one",)),
        what="each update takes the window of the next one",
    ),
    Case("position_reset", RESUME, FAIL, ("position_reset",)),
    Case("another_corpus", RESUME, FAIL, ("another_corpus",), what="other labels under the same row ids"),
    Case(
        *("rank_files_swapped", RESUME, FAIL, ("rank_files_swapped",)),
        what="each rank loads the files of the rank after it",
    ),
    Case(
        *("history_not_continued", RESUME, FAIL, ("history_not_continued",)),
        twice=True,
        what="the history starts anew at a second resume: only records are missing, all weights are right, error 0",
    ),
    Case("replicas_kept_equal", REPLICAS, PASS, what="a whole run, as it should be"),
    Case("replicas_with_batch_norm", REPLICAS, PASS, alone=True, what="a whole run with BatchNorm, as it should be"),
    Case(
        *("buffers_kept_apart", REPLICAS, FAIL, ("buffers_drift_apart",)),
        alone=True,
        what="broadcast_buffers=False: each rank keeps the running statistics of its own rows",
    ),
    Case(
        *("weights_perturbed_after_wrapping", REPLICAS, FAIL, ("weights_differ_at_start",)),
        what="rank 1 changes its weights after DDP has made those of all ranks equal",
    ),
    Case(
        *("all_reduce_skipped_in_training", REPLICAS, FAIL, ("ranks_drift_apart",)),
        what="the whole run stands inside no_sync, so that each rank follows its own gradient",
    ),
)


WORLD_SIZES = tuple(sorted({case.world_size for case in CASES}))


def of_world_size(world_size: int) -> list[Case]:
    return [case for case in CASES if case.world_size == world_size]


def trained_layout(root: Path, world_size: int) -> Layout:
    """Corpus, plan and initial weights of the runs of that many ranks."""
    return Layout(root / "trained" / str(world_size))


def layout_of(left: Layout, name: str) -> Layout:
    """Where the runs of a variant lie; `left`: what the ranks left."""
    return Layout(left.root / "runs" / name)


def second_interruption(experiment: Experiment) -> int:
    """The update at which a run that is resumed twice is interrupted again."""
    return experiment.interrupt_at + 1
