"""The arithmetic of the denominator, on numbers that a reader can redo in their head."""

from collections.abc import Mapping, Sequence

from ddp_tokens.checks.verdict import PASS, Verdict, outcome
from ddp_tokens.normalization import global_token_loss, mean_of_means_loss

SUMS = (12.0, 108.0)
COUNTS = (12, 36)
MICROBATCH_SUMS = ((4.0, 8.0), (30.0, 78.0))
ACCUMULATION = 2
TARGETS = (1.0, -1.0)


def averaged_over_ranks(losses: Sequence[float]) -> float:
    """What DDP makes of one value per rank."""
    return sum(losses) / len(losses)


def token_mean(values: Sequence[float], counts: Sequence[int]) -> float:
    """Per-rank sums (of losses or of gradients), averaged as DDP does after each rank scaled its own."""
    return averaged_over_ranks([global_token_loss(value, sum(counts), len(counts)) for value in values])


def mean_of_means(values: Sequence[float], counts: Sequence[int]) -> float:
    return averaged_over_ranks([mean_of_means_loss(value, count) for value, count in zip(values, counts, strict=True)])


def check_loss() -> list[Verdict]:
    return [_global_mean(), _microbatches(), _extra_division(), _theta()]


def _global_mean() -> Verdict:
    observed = {
        "local_loss_sums": list(SUMS),
        "local_tokens": list(COUNTS),
        "mean_of_means": mean_of_means(SUMS, COUNTS),
        "global_mean": token_mean(SUMS, COUNTS),
    }
    return _verdict(
        "global_mean",
        observed["global_mean"] == 2.5 and observed["mean_of_means"] == 2.0,
        "sums (12, 108) over counts (12, 36): the global mean is 120/48 = 2.5, the mean of means (1 + 3)/2 = 2.0",
        observed,
    )


def _microbatches() -> Verdict:
    scaled = [sum(global_token_loss(part, sum(COUNTS), len(COUNTS)) for part in of_rank) for of_rank in MICROBATCH_SUMS]
    observed = {
        "microbatch_loss_sums": [list(sums) for sums in MICROBATCH_SUMS],
        "global_mean": averaged_over_ranks(scaled),
    }
    return _verdict(
        "two_microbatches",
        observed["global_mean"] == 2.5,
        "the same sums in two microbatches per rank, each scaled by the window's denominator, give 2.5 again",
        observed,
    )


def _extra_division() -> Verdict:
    observed = {"divided_again": token_mean(SUMS, COUNTS) / ACCUMULATION, "global_mean": token_mean(SUMS, COUNTS)}
    return _verdict(
        "extra_division",
        observed["divided_again"] == 1.25,
        "dividing once more by the 2 microbatches gives 1.25, not 2.5: the denominator counts them already",
        observed,
    )


def _theta() -> Verdict:
    """Squared error (theta - target)^2 at theta = 0 has loss target^2 and gradient -2 * target per token."""
    losses = [count * target**2 for count, target in zip(COUNTS, TARGETS, strict=True)]
    gradients = [count * -2 * target for count, target in zip(COUNTS, TARGETS, strict=True)]
    observed = {
        "loss_mean_of_means": mean_of_means(losses, COUNTS),
        "loss_token_mean": token_mean(losses, COUNTS),
        "gradient_mean_of_means": mean_of_means(gradients, COUNTS),
        "gradient_token_mean": token_mean(gradients, COUNTS),
    }
    return _verdict(
        "equal_losses_unequal_gradients",
        list(observed.values()) == [1.0, 1.0, 0.0, 1.0],
        "12 targets at +1 and 36 at -1, squared error at theta = 0: both losses are 1, the gradients are 0 and 1",
        observed,
    )


def _verdict(case: str, holds: bool, criterion: str, observed: Mapping[str, object]) -> Verdict:
    return Verdict(case, PASS, outcome(holds), criterion, observed, evidence={})
