"""Each check of an experiment on the files below its folder: what a command does by hand and an archive is verified by.

A check is imported when it is asked for. The rules call the checks themselves, so that an edited one reruns alone.
"""

from collections.abc import Callable, Mapping

from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.config import Experiment
from ddp_tokens.layout import DTYPES, RUNS, Layout, checkpoints_in
from ddp_tokens.normalization import FORMULAS


def loss(experiment: Experiment, at: Layout) -> list[Verdict]:
    from ddp_tokens.checks.loss import check_loss

    return check_loss()


def gradient_parity(experiment: Experiment, at: Layout) -> list[Verdict]:
    from ddp_tokens.checks.gradient_conditions import conditions_of
    from ddp_tokens.checks.gradient_parity import check_gradient_parity, count_windows
    from ddp_tokens.checks.gradient_references import REFERENCES

    references = {name: at.reference(name) for name in REFERENCES}
    gradients = {(formula, dtype): at.gradients(formula, dtype) for formula in FORMULAS for dtype in DTYPES}
    counted = count_windows(at.rows, at.lock, at.plan)
    conditions = conditions_of(experiment.model, experiment.use_amp, at.initial, at.lock)
    return check_gradient_parity(experiment.tolerances, references, gradients, counted, conditions)


def window(experiment: Experiment, at: Layout) -> list[Verdict]:
    from ddp_tokens.checks.window import check_window

    return check_window(at.window, experiment.world_size)


def zero_window(experiment: Experiment, at: Layout) -> list[Verdict]:
    from ddp_tokens.checks.zero_window import check_zero_window

    return check_zero_window(at.zero_window)


def resume(experiment: Experiment, at: Layout) -> list[Verdict]:
    from ddp_tokens.checks.resume import check_resume

    interrupted = at.checkpoint("interrupt", experiment.interrupt_at)
    last = [at.checkpoint(run, experiment.steps) for run in ("continuous", "resume")]
    return check_resume(interrupted, *last)


def replicas(experiment: Experiment, at: Layout) -> list[Verdict]:
    from ddp_tokens.checks.replicas import check_replicas

    return check_replicas({run: at.run(run) for run in RUNS})


def checkpoints(experiment: Experiment, at: Layout) -> list[Verdict]:
    """Of the three runs; a command by hand also lists those of unfinished ones."""
    from ddp_tokens.checks.checkpoints import check_checkpoints

    return check_checkpoints([directory for run in RUNS for directory in checkpoints_in(at.run(run))])


def evaluation(experiment: Experiment, at: Layout) -> list[Verdict]:
    from ddp_tokens.checks.evaluation import check_evaluation

    return check_evaluation(at.evaluation, at.lock)


# By name, in the order of the summary.
JUDGES: Mapping[str, Callable[[Experiment, Layout], list[Verdict]]] = {
    "loss": loss,
    "gradient_parity": gradient_parity,
    "window": window,
    "zero_window": zero_window,
    "resume": resume,
    "replicas": replicas,
    "checkpoints": checkpoints,
    "evaluation": evaluation,
}
