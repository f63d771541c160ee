"""A paragraph for a busy reader: were two processes faster than one here, and why? No torch.

Each sentence is chosen by the figures and holds no number that was not measured or computed from what was.
"""

import math
from collections.abc import Sequence

from ddp_tokens.checks.replicas import ATOL
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, Verdict
from ddp_tokens.scaling import Allreduce, Point, oversubscription
from ddp_tokens.scaling_rows import STRONG, Machine

COMPUTING, REDUCING, REST = "computing", "the all-reduce", "the rest"
HIGHER, LOWER, UNDECIDED = "higher", "lower", "undecided"
# Up to a quarter apart, relative to the larger of both, counts as agreement. A choice, not a measurement: the sentence
# states the percentage.
AGREEMENT = 0.25


def lesson_notes(points: Sequence[Point], at_two: Allreduce, machine: Machine, replicas: Verdict) -> str:
    """`points`: all of scaling.points, of which those of strong scaling are told. `at_two`: of two processes."""
    strong = {point.processes: point for point in points if point.scaling == STRONG}
    one, two = strong[1], strong[2]
    crowded = [point for point in strong.values() if point.processes > 2 and point.oversubscription > 1]
    return " ".join(
        [
            _faster_or_slower(one, two, f"{machine.unit}s/s"),
            _parts(one, two, machine),
            _why(one, two),
            *[_more_than_cores(point, two, machine) for point in crowded[-1:]],
            _both_ways(at_two),
            _replicas(replicas),
        ]
    )


def compared(left: Point, right: Point) -> str:
    """Are the units per second of `left` higher or lower? undecided where the ranges of the repeats overlap, or where
    there is only one run of either, which has no range.
    """
    if min(left.repeats, right.repeats) > 1:
        if left.units_per_s_max < right.units_per_s_min:
            return LOWER
        if left.units_per_s_min > right.units_per_s_max:
            return HIGHER
    return UNDECIDED


def rest_ms(point: Point) -> float:
    """What the model does not know, to a hundredth; negative where its parts add up to more than was measured."""
    return round(point.measured_ms - point.compute_ms - point.allreduce_ms, 2)


def number(value: float) -> str:
    """As many digits as a reader needs: 12,345, 12.3, 0.12, and 0 for what rounding leaves."""
    if abs(value) < 1e-6:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def _faster_or_slower(one: Point, two: Point, per_second: str) -> str:
    rates = [number(point.units_per_s_median) for point in (two, one)]
    found = compared(two, one)
    if found == UNDECIDED:
        ranges = [f" ({number(point.units_per_s_min)} to {number(point.units_per_s_max)})" for point in (two, one)]
        reason = "and these ranges overlap"
        if min(one.repeats, two.repeats) == 1:
            ranges, reason = ["", ""], "and a single run has no spread"
        return (
            "These runs cannot tell whether two processes are faster than one: "
            f"{rates[0]} {per_second}{ranges[0]} against {rates[1]}{ranges[1]}, {reason}."
        )
    word, sign = ("faster", "more") if found == HIGHER else ("slower", "fewer")
    return (
        f"Two processes were {word} than one on the same windows: {rates[0]} {per_second} against {rates[1]} "
        f"({number(100 * abs(two.speedup - 1))} % {sign}), in every repeat."
    )


def _parts(one: Point, two: Point, machine: Machine) -> str:
    half = f"half of one process's {number(one.measured_ms)}"
    longer = oversubscription(2, machine) / oversubscription(1, machine)
    if longer > 1:
        half += f", times {number(longer)}: {_crowd(2, machine)}"
    parts = {COMPUTING: two.compute_ms, REDUCING: two.allreduce_ms, REST: rest_ms(two)}
    largest = max(parts, key=lambda name: parts[name])
    told = (
        f"With two an update took {number(two.measured_ms)} ms. "
        f"Computing should take {number(two.compute_ms)} ({half}), "
        f"the all-reduce without waiting took {number(two.allreduce_ms)}"
    )
    if parts[REST] < 0:
        return (
            f"{told}, together {number(-parts[REST])} too much: no rest is left, and the model overstates a part or "
            f"counts an overlap twice. The larger part is {largest}."
        )
    return (
        f"{told}, and {number(parts[REST])} remain: waiting for the slower rank, other collectives, optimizer and "
        f"operating system, not told apart. The largest part is {largest}."
    )


def _why(one: Point, two: Point) -> str:
    """measured(2) - measured(1) is exactly what was added, minus what was saved."""
    saved, added = one.measured_ms - two.compute_ms, two.measured_ms - two.compute_ms
    splitting = f"Splitting the rows should save {number(saved)} ms"
    on_top = "all-reduce and rest" if rest_ms(two) >= 0 else "what came on top"
    cost = f"{on_top} took {number(added)}"
    found = compared(two, one)
    if added <= 0:
        return f"{splitting}, and nothing came on top of computing{': so two are faster' if found == HIGHER else ''}."
    if found == UNDECIDED:
        return f"{splitting}; {cost}; which weighs more is open."
    if found == HIGHER:
        return f"{splitting}; {cost}, less: so two are faster."
    if two.allreduce_ms > saved:
        return f"{splitting}; the all-reduce alone took {number(two.allreduce_ms)}: so two are slower."
    return f"{splitting}; {cost}, more: so two are slower, though the all-reduce alone would not do it."


def _more_than_cores(many: Point, two: Point, machine: Machine) -> str:
    no_less = many.compute_ms >= two.compute_ms or math.isclose(many.compute_ms, two.compute_ms)
    saving = "compute no faster than two" if no_less else "gain less than their number promises"
    reached = {
        LOWER: "fewer than with two",
        HIGHER: "more than with two",
        UNDECIDED: "not to be told from two",
    }[compared(many, two)]
    rate = number(many.units_per_s_median)
    return f"{_crowd(many.processes, machine)} and should {saving}: {rate} {machine.unit}s/s, {reached}."


def _crowd(processes: int, machine: Machine) -> str:
    threads = f" of {machine.threads_per_rank} threads" if machine.threads_per_rank > 1 else ""
    return f"{processes} processes{threads} share {machine.cores} core" + ("s" if machine.cores > 1 else "")


def _both_ways(at_two: Allreduce) -> str:
    """The hook without waiting: the slowest rank, which the difference is about, waits for nobody."""
    hook, difference = at_two.without_waiting.p50, at_two.difference.p50
    if difference <= 0:
        told = f"{number(difference)} ms; by hook {number(hook)}"
        return f"Timed by subtraction, the all-reduce drowns in the steps' noise ({told})."
    told = f"by hook {number(hook)} ms, by subtraction {number(difference)}"
    apart = abs(hook - difference) / max(hook, difference)
    if apart <= AGREEMENT:
        percent = max(1, math.ceil(round(100 * apart, 6)))
        return f"Two timings of the all-reduce agree within {percent} % ({told})."
    return f"Two ways of timing the all-reduce disagree ({told})."


def _replicas(verdict: Verdict) -> str:
    if verdict.outcome == INCONCLUSIVE:
        return "One rank has no replica to be compared with."
    if verdict.outcome == FAIL:
        found = verdict.first_difference or {"problem": "no tensor was left"}
        what = found.get("problem") or f"off by {found['max_abs_difference']:.2g}, more than {ATOL:g}"
        where = f" {found['parameter']}" if "parameter" in found else ""
        return f"The replicas do not agree:{where} {what}."
    if verdict.observed["bit_equal"]:
        return "At the end the replicas were bit-equal."
    largest = verdict.observed["max_abs_difference"]
    return f"At the end the replicas differed, by up to {largest:.2g} ({ATOL:g} is allowed)."
