"""A few judged variants, one of each sort that page and figure must show."""

from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.controls.table import Judged


def judged(name, kind, check, expected, outcome, diagnosis=(), what="", expected_diagnosis=None, **observed):
    if expected == "fail" and expected_diagnosis is None:
        expected_diagnosis = tuple(diagnosis)
    difference = {"parameter": "head.weight", "error": 0.5} if outcome == "fail" else None
    verdict = Verdict(
        name, expected, outcome, "error <= tolerance", observed, {}, difference, tuple(diagnosis), expected_diagnosis
    )
    return Judged(kind, check, verdict, what)


def caught():
    """All as expected."""
    fit = {"residual": 1.5e-7, "next_best": "stale_count", "next_best_residual": 0.25}
    return [
        judged(
            *("mean_of_means", "normalization", "gradient_parity", "fail", "fail", ["mean_of_means"]),
            **{"what": "each rank divides by its own units", "error": 0.5, "tolerance": 1e-6, "power": 1234.5, **fit},
        ),
        judged("momentum_lost", "resume", "resume", "fail", "fail", ["optimizer_state_lost"], error=0.159, tolerance=0),
        judged(
            *("history_not_continued", "resume", "resume", "fail", "fail", ["history_not_continued"]),
            **{"what": "only records are missing", "error": 0.0, "tolerance": 0},
        ),
        judged("w2_a2_b4", "right", "gradient_parity", "pass", "pass", error=2e-7, tolerance=1e-6, power=9e4),
        judged("w3_a1_b2", "right", "gradient_parity", "pass", "pass", error=5e-7, tolerance=1e-6, power=9e4),
        judged("resumed_once", "right", "resume", "pass", "pass", error=0.0, tolerance=0),
        judged(
            *("equal_counts", "undecidable", "gradient_parity", "inconclusive", "inconclusive"),
            **{"error": 3e-7, "tolerance": 1e-6, "power": 0.25},
        ),
    ]


def missed():
    """A control that passes, and one that is refused as something else."""
    return [
        judged(
            *("mean_of_means", "normalization", "gradient_parity", "fail", "pass"),
            **{"expected_diagnosis": ("mean_of_means",), "error": 1e-9, "tolerance": 1e-6, "power": 12.0},
        ),
        judged(
            *("momentum_lost", "resume", "resume", "fail", "fail", ["position_reset"]),
            **{"expected_diagnosis": ("optimizer_state_lost",), "error": 0.1, "tolerance": 0},
        ),
        judged("w2_a2_b4", "right", "gradient_parity", "pass", "fail", error=2e-3, tolerance=1e-6, power=9e4),
        judged("w3_a1_b2", "right", "gradient_parity", "pass", "pass", error=5e-7, tolerance=1e-6, power=9e4),
    ]
