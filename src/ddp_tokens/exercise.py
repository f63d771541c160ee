"""The exercise: predict what unequal counts do to the mean and to the gradient, then look."""

from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from ddp_tokens.checks.loss import mean_of_means, token_mean
from ddp_tokens.config import Exercise


def work_out(exercise: Exercise) -> dict[str, Any]:
    """Before and after the counts change: both means of the loss, and both gradients.

    The loss of each token of rank r is l_r * theta^2 at theta = 1, so its value is l_r and its gradient 2 * l_r.
    """
    return {
        "losses_per_token": list(exercise.losses),
        "before": _at(exercise.counts_before, exercise.losses),
        "after": _at(exercise.counts_after, exercise.losses),
    }


def _at(counts: Sequence[int], losses: Sequence[float]) -> dict[str, Any]:
    sums = [count * loss for count, loss in zip(counts, losses, strict=True)]
    gradient_sums = [2 * value for value in sums]
    return {
        "tokens": list(counts),
        "loss_mean_of_means": mean_of_means(sums, counts),
        "loss_token_mean": token_mean(sums, counts),
        "gradient_mean_of_means": mean_of_means(gradient_sums, counts),
        "gradient_token_mean": token_mean(gradient_sums, counts),
    }


def as_text(result: dict[str, Any]) -> str:
    """A small table for the terminal."""
    rows = [[moment, *result[moment].values()] for moment in ("before", "after")]
    headers = [
        "",
        "tokens",
        *(f"{of},\n{mean}" for of in ("loss", "gradient") for mean in ("mean of means", "token mean")),
    ]
    head = f"loss per token on each rank: {result['losses_per_token']}, times theta^2, at theta = 1"
    return f"{head}\n\n{tabulate(rows, headers=headers)}"
