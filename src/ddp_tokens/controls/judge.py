"""What the check that is meant for a variant says of it. No torch.

The tables of variants stand apart from this, so that an edited check judges again and runs nothing again.
"""

from collections.abc import Callable

from ddp_tokens.checks import gradient_parity as parity
from ddp_tokens.checks import window as window_check
from ddp_tokens.checks.evaluation import check_evaluation
from ddp_tokens.checks.gradient_parity import Expectation
from ddp_tokens.checks.gradient_references import REFERENCES, of_window, read_references
from ddp_tokens.checks.gradient_terms import terms_told
from ddp_tokens.checks.replicas import check_replicas
from ddp_tokens.checks.resume import check_resume
from ddp_tokens.checks.tensor_files import read_arrays
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.config import Experiment, Tolerances
from ddp_tokens.controls import evaluation_cases, resume_cases
from ddp_tokens.controls.counting import COUNTED_BY_TOKEN
from ddp_tokens.controls.gradient_cases import WINDOW, Variant
from ddp_tokens.controls.gradient_windows import COMPARED
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.corpora.objective import unit_in
from ddp_tokens.files import digests, read_json
from ddp_tokens.layout import PARTS, Layout
from ddp_tokens.term_facts import facts_of_terms
from ddp_tokens.term_formulas import excluded_by
from ddp_tokens.window_facts import WindowFacts, window_facts


def judge_gradient(variant: Variant, tolerances: Tolerances, case_at: Layout, left_at: Layout) -> list[Verdict]:
    """One verdict of the window check, or one of gradient parity per dtype in which the variant must be seen.

    `case_at`: rows, plan and references of its case. `left_at`: gradients and traces of its ranks.
    """
    if variant.check == WINDOW:
        return window_check.check_window(left_at.root / "window" / variant.name, variant.case.world_size)
    return [_parity(variant, tolerances, dtype, case_at, left_at) for dtype in variant.dtypes]


def _parity(variant: Variant, tolerances: Tolerances, dtype: str, case_at: Layout, left_at: Layout) -> Verdict:
    counted = count_windows(case_at, variant)
    paths = {name: case_at.reference(name) for name in REFERENCES}
    facts, path = counted[COMPARED], left_at.gradients(variant.name, dtype)
    observed = of_window(read_arrays(path), COMPARED)
    adding_up = not (variant.case.of_images and variant.case.of_images.uses_statistics)
    references = read_references(paths, counted, adding_up)[COMPARED]
    evidence = parity.evidence_of(observed, references, dtype, facts)
    case_counts = variant.case.counting != COUNTED_BY_TOKEN
    expectation = Expectation(variant.expected, variant.diagnosis or None, excluded_by(facts), case_counts)
    return parity.judge(
        f"{variant.name}.{dtype}", tolerances, dtype, evidence, expectation, digests([*paths.values(), path])
    )


def count_windows(case_at: Layout, variant: Variant) -> dict[str, WindowFacts]:
    rows, lock = read_corpus(case_at.rows, case_at.lock)
    plan = read_json(case_at.plan)["plan"]
    told = terms_told(case_at.reference(PARTS))
    if told is not None:
        return {**facts_of_terms(plan, variant.case.compared, rows, told.terms, told.by_workload)}
    return {name: window_facts(plan, index, rows, unit_in(lock)) for name, index in variant.case.compared.items()}


def judge_resume(case: resume_cases.Case, experiment: Experiment, into: Callable[[str], Layout]) -> list[Verdict]:
    """The verdicts of the case's check on what its variant left; `controls.resumes.run_all` makes it."""
    own = into(case.name)
    shared = own if case.alone else into(resume_cases.SHARED)
    if case.check == resume_cases.REPLICAS:
        return check_replicas({"continuous": own.run("continuous")})
    interrupted = shared.checkpoint("interrupt", experiment.interrupt_at)
    if case.twice:
        interrupted = own.checkpoint("interrupt", resume_cases.second_interruption(experiment))
    ends = shared.checkpoint("continuous", experiment.steps), own.checkpoint("resume", experiment.steps)
    return check_resume(interrupted, *ends)


def judge_evaluation(case: evaluation_cases.Case, trained: Layout, left: Layout) -> list[Verdict]:
    """`trained`: with the lock of the corpus that was scored. `left`: what the ranks left."""
    return check_evaluation(evaluation_cases.scores_of(case, left), trained.lock)
