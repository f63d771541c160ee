"""Is the gradient that DDP leaves the gradient of the objective? Compared by parameter name.

In float64 only the formula is judged, since rounding is out of the question. In the training dtype the error may be a
small multiple of what rounding does to the same gradient in one process. Before either, it is computed how far off each
wrong formula would be on these rows: where the nearest could not be seen, the outcome is inconclusive.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy

from ddp_tokens.checks.gradient_conditions import NOTHING_TO_STATE, Conditions
from ddp_tokens.checks.gradient_formulas import ANOTHER_UNIT, Diagnosis, diagnose, distance_of_units, distances
from ddp_tokens.checks.gradient_norms import (
    Arrays,
    Norms,
    algebra_tolerances,
    calibrated_tolerances,
    errors,
    is_finite,
    largest_ratio,
    plain,
)
from ddp_tokens.checks.gradient_references import Parts, References, of_window, read_references
from ddp_tokens.checks.gradient_terms import excluded_beside, terms_told, undecidable, without_gradient
from ddp_tokens.checks.published_criterion import published_figures
from ddp_tokens.checks.tensor_files import read_arrays
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS, Verdict
from ddp_tokens.config import Tolerances
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.corpora.objective import unit_in
from ddp_tokens.errors import PREPARE_AGAIN, PlanError
from ddp_tokens.files import digests, read_json
from ddp_tokens.formulas import KNOWN_WRONG, RIGHT, Formula, alike_across
from ddp_tokens.layout import DTYPES, FLOAT64, PARTS
from ddp_tokens.normalization import FORMULAS, TOKEN_MEAN
from ddp_tokens.objective_settings import TOKEN
from ddp_tokens.plan import windows_to_compare
from ddp_tokens.term_facts import ByWorkload, TermsFacts, facts_of_terms
from ddp_tokens.term_formulas import alike_on, excluded_by, made_in_every_term, objective_told, possible_on, right_on
from ddp_tokens.terms import Term
from ddp_tokens.window_facts import WindowFacts, window_facts

BY_NAME = {formula.name: formula for formula in (RIGHT, *KNOWN_WRONG)}


@dataclass(frozen=True)
class Expectation:
    """What a case must end as, and which formulas it is meant to exclude. `units`: other units too.
    `by_unit`: the excluded formulas are meant of another unit, by which the control counts.
    """

    outcome: str
    diagnosis: tuple[str, ...] | None
    excludes: tuple[Formula, ...]
    units: bool = False
    by_unit: str | None = None


@dataclass(frozen=True)
class Counted:
    """`facts`: by window. `files`: what they were counted from. `of_terms`: counts them for a loss of several terms."""

    facts: Mapping[str, WindowFacts]
    files: tuple[Path, ...] = ()
    of_terms: Callable[[tuple[Term, ...], ByWorkload], Mapping[str, TermsFacts]] | None = None

    def facts_for(self, parts: Path) -> Mapping[str, WindowFacts]:
        """`parts`: the dump, which tells the terms where the loss has several."""
        told = terms_told(parts)
        return self.facts if told is None or self.of_terms is None else self.of_terms(told.terms, told.by_workload)


@dataclass(frozen=True)
class Evidence:
    """One window's gradients: of all ranks, and what one process says of it.

    `reference`: in float64. `single`: one process in the dtype of `observed`. `parts`: (rank, microbatch) -> gradient
    of its loss sum, in float64. `others`: the parts by each other unit.
    """

    observed: Arrays
    reference: Arrays
    single: Arrays
    parts: Parts
    facts: WindowFacts
    others: Mapping[str, Parts] = field(default_factory=dict)


def check_gradient_parity(
    tolerances: Tolerances,
    references: Mapping[str, Path],
    gradients: Mapping[tuple[str, str], Path],
    counted: Counted,
    conditions: Conditions = NOTHING_TO_STATE,
) -> list[Verdict]:
    """One verdict per window, formula and dtype.

    `references`: native, float64 and parts -> dump. `gradients`: (formula, dtype) -> dump. `conditions`: stated in
    each verdict.
    """
    of_facts = counted.facts_for(references[PARTS])
    of_windows = read_references(references, of_facts)
    verdicts = []
    for dtype in DTYPES:
        for formula in FORMULAS:
            path = gradients[formula, dtype]
            observed, files = read_arrays(path), digests([*references.values(), path, *counted.files])
            for window, facts in of_facts.items():
                evidence = evidence_of(of_window(observed, window), of_windows[window], dtype, facts)
                expectation = expected(formula, facts, is_finite(evidence.observed))
                case = f"{formula}.{dtype}.{window}"
                verdict = judge(case, tolerances, dtype, evidence, expectation, files)
                verdicts.append(conditions.stated_in(verdict, dtype))
    return verdicts


def evidence_of(observed: Arrays, references: References, dtype: str, facts: WindowFacts) -> Evidence:
    of_dtype = references.of_dtype
    return Evidence(observed, of_dtype[FLOAT64], of_dtype[dtype], references.parts, facts, references.others)


def expected(formula: str, facts: WindowFacts, finite: bool = True) -> Expectation:
    """By arithmetic on the counts alone. The token mean passes, unless the counts make an excluded formula the same;
    where another unit was chosen, such a formula is right and no mistake, as long as something else is excluded. A
    control fails and is recognised, unless they make it the token mean. `finite`: are all values numbers? A control
    that divides by zero is recognised by that where its loss lets it through, and by its weights where it does not.
    """
    if formula == TOKEN_MEAN:
        wrong = excluded_by(facts)
        if isinstance(facts, TermsFacts):
            return Expectation(INCONCLUSIVE if undecidable(facts) else PASS, None, wrong)
        same = [formula for formula in wrong if alike_on(facts, RIGHT, formula)]
        if facts.unit == TOKEN:
            return Expectation(INCONCLUSIVE if same else PASS, None, wrong, True)
        apart = tuple(formula for formula in wrong if formula not in same)
        decidable = apart or facts.others or not wrong
        return Expectation(PASS if decidable else INCONCLUSIVE, None, apart or wrong, True)
    control = BY_NAME[formula]
    if TOKEN in facts.others:
        return _expected_by_tokens(control, facts, finite)
    control = made_in_every_term(control, facts)
    if finite and alike_on(facts, right_on(facts), control):
        return Expectation(INCONCLUSIVE, None, (control,))
    return Expectation(FAIL, named_together(control, facts, finite), (control,))


def _expected_by_tokens(control: Formula, facts: WindowFacts, finite: bool) -> Expectation:
    """The control counts tokens, as the usual loop does, where something else was to count once."""
    by_tokens = facts.others[TOKEN]
    if finite and alike_across(facts, RIGHT, by_tokens, control):
        return Expectation(INCONCLUSIVE, None, (control,), by_unit=TOKEN)
    if not finite:
        return Expectation(FAIL, named_together(control, facts, finite), (control,), by_unit=TOKEN)
    same = tuple(f.name for f in possible_on(facts) if alike_across(facts, f, by_tokens, control))
    return Expectation(FAIL, same or (ANOTHER_UNIT,), (control,), by_unit=TOKEN)


def named_together(control: Formula, facts: WindowFacts, finite: bool = True) -> tuple[str, ...]:
    """The control and what cannot be told from it on this window; of what is no number, all that divide by zero."""
    if not finite:
        return tuple(f.name for f in possible_on(facts) if None in f.variants(facts).values())
    return tuple(f.name for f in possible_on(facts) if alike_on(facts, control, f))


def judge(
    case: str,
    tolerances: Tolerances,
    dtype: str,
    evidence: Evidence,
    expectation: Expectation,
    files: Mapping[str, str],
) -> Verdict:
    allowed = allowances(tolerances, dtype, evidence)
    of_parameters = errors(evidence.observed, evidence.reference)
    ratio, worst = largest_ratio(of_parameters, allowed)
    published = published_figures(evidence.observed, evidence.single, tolerances.published)
    difference = _name_difference(evidence.observed, evidence.reference)
    if difference is None and not ratio <= 1:
        difference = _difference_in(worst, evidence, of_parameters, allowed)
    power = _power(expectation, evidence, allowed)
    observed = published | {
        "error": plain(of_parameters[worst]) if worst else None,
        "tolerance": plain(allowed[worst]) if worst else None,
        "parameter": worst,
        **_nearest(power),
        "units_per_rank": evidence.facts.told_units_per_rank,
        **objective_told(evidence.facts, without_gradient(evidence.facts, evidence.parts)),
    }
    outcome, found = INCONCLUSIVE if min(power.values(), default=numpy.inf) < tolerances.power else PASS, Diagnosis()
    if difference is not None:
        found = diagnose(
            *(evidence.observed, evidence.reference, evidence.facts, evidence.parts, allowed), others=evidence.others
        )
        outcome = FAIL
    return Verdict(
        case=case,
        expected=expectation.outcome,
        outcome=outcome,
        criterion=_criterion(tolerances, dtype, outcome, power),
        observed=observed | found.figures,
        evidence=files,
        first_difference=difference,
        diagnosis=found.names,
        expected_diagnosis=expectation.diagnosis,
    )


def _power(expectation: Expectation, evidence: Evidence, allowed: Norms) -> dict[str, float]:
    facts, parts, unit = evidence.facts, evidence.parts, expectation.by_unit
    if unit is not None:
        facts, parts = facts.others[unit], evidence.others[unit]
    excludes = excluded_beside(expectation.excludes, facts, without_gradient(facts, parts))
    power = distances(excludes, facts, parts, evidence.reference, allowed)
    if expectation.units:
        power |= distance_of_units(evidence.facts, evidence.others, evidence.reference, allowed)
    return power


def allowances(tolerances: Tolerances, dtype: str, evidence: Evidence) -> Norms:
    """The largest error of each parameter that is accepted."""
    if dtype == FLOAT64:
        return algebra_tolerances(evidence.reference, tolerances.float64)
    return calibrated_tolerances(evidence.reference, evidence.single, tolerances.native)


def count_windows(rows_path: Path, lock_path: Path, plan_path: Path) -> Counted:
    """What can be counted in the windows that are compared. Raises PlanError when the plan holds none."""
    rows, lock = read_corpus(rows_path, lock_path)
    plan = read_json(plan_path)["plan"]
    if not plan:
        raise PlanError(f"{plan_path} holds no window: {PREPARE_AGAIN}")
    unit = unit_in(lock)
    cases = windows_to_compare(plan, rows)
    facts = {case: window_facts(plan, index, rows, unit) for case, index in cases.items()}
    return Counted(facts, (rows_path, lock_path, plan_path), partial(facts_of_terms, plan, cases, rows))


def _criterion(tolerances: Tolerances, dtype: str, outcome: str, power: Mapping[str, float]) -> str:
    bound = (
        f"at most {tolerances.float64:g} of its norm"
        if dtype == FLOAT64
        else f"at most {tolerances.native:g} times that of one process in the same dtype"
    )
    text = f"each parameter's error against the reference in float64 is {bound}"
    if not power:
        return f"{text} (one rank and one microbatch: there is no other formula to exclude, only the algebra is judged)"
    if outcome == INCONCLUSIVE:
        near = ", ".join(name for name, distance in power.items() if distance < tolerances.power)
        return f"{text}, but on this window {near} would be fewer than {tolerances.power:g} tolerances away"
    return f"{text}, and every excluded formula would be {tolerances.power:g} or more tolerances away in some parameter"


def _nearest(power: Mapping[str, float]) -> dict[str, Any]:
    if not power:
        return {"power": None, "nearest_formula": None}
    name = min(power, key=lambda formula: power[formula])
    return {"power": plain(power[name]), "nearest_formula": name}


def _name_difference(observed: Arrays, reference: Arrays) -> dict[str, Any] | None:
    for name in sorted(set(observed) ^ set(reference)):
        return {"parameter": name, "problem": "missing in ddp" if name in reference else "missing in the reference"}
    for name in sorted(reference):
        if observed[name].shape != reference[name].shape:
            shapes = {"ddp_shape": list(observed[name].shape), "reference_shape": list(reference[name].shape)}
            return {"parameter": name, **shapes}
    return None if reference else {"parameter": None, "problem": "there is no gradient to compare"}


def _difference_in(parameter: str | None, evidence: Evidence, of_parameters: Norms, allowed: Norms) -> dict[str, Any]:
    """The worst parameter, and its value with the largest error."""
    assert parameter is not None
    ddp, ref = evidence.observed[parameter].astype(numpy.float64), evidence.reference[parameter]
    with numpy.errstate(invalid="ignore"):
        distance = numpy.nan_to_num(abs(ddp - ref), nan=numpy.inf)
    place = numpy.unravel_index(int(distance.argmax()), ddp.shape)
    return {
        "parameter": parameter,
        "error": plain(of_parameters[parameter]),
        "tolerance": plain(allowed[parameter]),
        "index": [int(i) for i in place],
        "ddp": plain(ddp[place]),
        "reference": plain(ref[place]),
    }
