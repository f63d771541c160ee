"""Terms as a dump tells them, and gradients of them: three terms on two ranks, with random parts."""

import json
from dataclasses import replace

import numpy
import pytest
from safetensors.numpy import save_file

from ddp_tokens.checks.gradient_formulas import diagnose
from ddp_tokens.checks.gradient_norms import algebra_tolerances, weighted_sum
from ddp_tokens.checks.gradient_parity import Counted, Evidence, check_gradient_parity, expected, judge
from ddp_tokens.checks.gradient_references import parts_of_terms, read_references
from ddp_tokens.checks.gradient_terms import Told, excluded_beside, terms_told, undecidable, without_gradient
from ddp_tokens.config import Tolerances
from ddp_tokens.errors import EvidenceError
from ddp_tokens.layout import DTYPES
from ddp_tokens.normalization import FORMULAS, MEAN_OF_MEANS, TOKEN_MEAN
from ddp_tokens.term_facts import terms_facts
from ddp_tokens.term_formulas import between_terms
from ddp_tokens.terms import Term, as_formula
from ddp_tokens.window_facts import WindowFacts

TERMS = (Term("lm", "token"), Term("aux", "sequence", 7.0), Term("l2", "once", 0.3))
TOKENS = WindowFacts(((2, 4, 1), (9, 3)), ((3, 4, 2), (12, 4)), ((4, 4, 2), (12, 8)), 4, 20)
SEQUENCES = WindowFacts(((1, 2, 1), (3, 1)), ((1, 2, 1), (3, 2)), ((1, 2, 1), (3, 2)), 4, 11)
ONCE = WindowFacts(((1, 1, 1), (1, 1)), ((1, 1, 1), (1, 1)), ((1, 1, 1), (1, 1)), 4, 4)
FACTS = terms_facts(TERMS, (TOKENS, SEQUENCES, ONCE))
NAMES = [term.name for term in TERMS]
COUNTS = {"lm": 19, "aux": 8, "l2": 5}
C = {"lm": 1.0, "aux": 7.0, "l2": 0.3}
PLACES = [(rank, index) for rank, number in enumerate((3, 2)) for index in range(number)]
SHAPE = (4, 3)


def gradients(seed=0):
    """term -> (rank, microbatch) -> gradient; that of the regularizer is the same everywhere."""
    rng = numpy.random.default_rng(seed)
    found = {name: {place: rng.normal(size=SHAPE) for place in PLACES} for name in ("lm", "aux")}
    once = rng.normal(size=SHAPE)
    return found | {"l2": dict.fromkeys(PLACES, once)}


PARTS = {(2 * t + r, m): {"w": of} for t, name in enumerate(NAMES) for (r, m), of in gradients()[name].items()}


def left_by(**changed):
    """`changed`: of a term, its weight of (rank, microbatch), in place of coefficient over number."""
    total = numpy.zeros(SHAPE)
    for name, parts in gradients().items():
        weight = changed.get(name, lambda r, m, name=name: C[name] / COUNTS[name])
        for (r, m), gradient in parts.items():
            total += weight(r, m) * gradient
    return {"w": total}


def evidence(**changed):
    right = left_by()
    return Evidence(left_by(**changed), right, right, PARTS, FACTS)


def diagnosed(**changed):
    of = evidence(**changed)
    return diagnose(of.observed, of.reference, of.facts, of.parts, algebra_tolerances(of.reference, 1e-12))


def scaled(name, factor):
    return {name: lambda r, m: factor * C[name] / COUNTS[name]}


OWN = {"lm": (7, 12), "aux": (4, 4), "l2": (3, 2)}
# What is done, its name, and what `detail` says.
MISTAKES = [
    (scaled("aux", 8 / 19), "shared_denominator", "the units of term lm divide term aux"),
    (scaled("aux", 8 / 19) | scaled("l2", 5 / 19), "shared_denominator", "the units of term lm divide every term"),
    (scaled("l2", 2), "regularizer_times_world_size", "in term l2"),
    (scaled("l2", 5 / 2), "regularizer_times_microbatches", "once per microbatch, in term l2"),
    (scaled("l2", 5), "regularizer_times_microbatches", "once per microbatch, times W, in term l2"),
    (scaled("aux", 1 / 7), "coefficient_forgotten", "in term aux"),
    (scaled("l2", 1 / 0.3), "coefficient_forgotten", "in term l2"),
    (scaled("lm", 0), "term_forgotten", "term lm"),
    (scaled("l2", 0), "term_forgotten", "term l2"),
    ({"lm": lambda r, m: 1 / OWN["lm"][r] / 2}, "mean_of_means", "in every term"),
    (scaled("lm", 1 / 2) | scaled("aux", 1 / 2), "world_size_forgotten", "in every term but those that count once"),
    (scaled("aux", 1 / 2), "world_size_forgotten", "in term aux"),
    ({n: lambda r, m, n=n: 2 * C[n] / COUNTS[n] * (r == 1) for n in C}, "one_rank_only", "rank 1, in every term"),
    (scaled("aux", 8 / 9), "ignored_labels_counted", "in term aux"),
]


@pytest.mark.parametrize(("changed", "name", "detail"), MISTAKES, ids=[f"{name}, {at}" for _, name, at in MISTAKES])
def test_a_mistake_is_named_with_its_term(changed, name, detail):
    found = diagnosed(**changed)
    assert name in found.names
    assert found.figures["detail"].startswith(detail)
    assert found.figures["residual"] < 1e-13


@pytest.mark.parametrize("changed", [changed for changed, *_ in MISTAKES[:9]])
def test_a_mistake_between_terms_has_one_name(changed):
    assert len(diagnosed(**changed).names) == 1


def test_the_right_gradient_passes_and_tells_the_objective():
    verdict = judge("case", Tolerances(), "float64", evidence(), expected(TOKEN_MEAN, FACTS), {})
    assert (verdict.outcome, verdict.expected) == ("pass", "pass")
    assert verdict.observed["power"] > 1e6
    assert verdict.observed["objective"] == as_formula(TERMS)
    assert verdict.observed["not_seen_here"] == ["mean_of_means in term aux"]
    assert verdict.observed["units_per_rank"] == {"lm": [7, 12], "aux": [4, 4], "l2": [3, 2]}


def test_the_control_is_each_rank_s_mean_of_each_term():
    means = {name: lambda r, m, name=name: C[name] / OWN[name][r] / 2 for name in NAMES}
    verdict = judge("case", Tolerances(), "float64", evidence(**means), expected(MEAN_OF_MEANS, FACTS), {})
    assert (verdict.outcome, verdict.diagnosis, verdict.problem) == ("fail", ("mean_of_means",), None)


def test_counts_that_make_a_mistake_right_decide():
    """Both ranks hold as many tokens, sequences and microbatches; or as many tokens as sequences are in the window."""
    assert not undecidable(FACTS)
    even = replace(TOKENS, units=((2, 4, 1), (3, 4)))
    assert undecidable(terms_facts(TERMS, (even, SEQUENCES, ONCE)))
    assert expected(TOKEN_MEAN, terms_facts(TERMS, (even, SEQUENCES, ONCE))).outcome == "inconclusive"
    assert expected(MEAN_OF_MEANS, terms_facts(TERMS, (even, SEQUENCES, ONCE))).outcome == "inconclusive"
    same = replace(SEQUENCES, units=((2, 4, 1), (9, 3)))
    assert undecidable(terms_facts(TERMS, (TOKENS, same, ONCE)))


def told_bytes(terms=None, by_workload=None):
    terms = [vars(term) for term in TERMS] if terms is None else terms
    return json.dumps({"terms": terms, "counted_by_workload": by_workload or {}}).encode()


def dumped(path, terms=None, **more):
    arrays = {
        f"first/{name}/{r}/{m}/w": of.copy() for name, parts in gradients().items() for (r, m), of in parts.items()
    }
    text = told_bytes(terms)
    save_file(arrays | {"terms": numpy.frombuffer(text, numpy.uint8)} | more, path)
    return path


def test_what_a_dump_tells(tmp_path):
    assert terms_told(dumped(tmp_path / "parts")) == Told(TERMS, {})
    save_file({"first/0/0/w": numpy.zeros(2)}, tmp_path / "one")
    assert terms_told(tmp_path / "one") is None


def test_a_dump_that_cannot_be_read_is_left_to_who_reads_it(tmp_path):
    assert terms_told(tmp_path / "missing") is None
    (tmp_path / "broken").write_bytes(b"no tensors")
    assert terms_told(tmp_path / "broken") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "does not tell the terms of the loss"),
        (b"{}", "does not tell the terms of the loss .*: run reference again"),
        (told_bytes([{"name": "lm", "unit": "row", "coefficient": 1}]), "the unit of term 'lm' is 'row'"),
        (told_bytes([{"title": "lm"}]), "does not tell"),
    ],
)
def test_terms_that_are_none_name_the_file(tmp_path, text, said):
    path = tmp_path / "parts.safetensors"
    save_file({"terms": numpy.frombuffer(text, numpy.uint8)}, path)
    with pytest.raises(EvidenceError, match=f"^{path} .*{said}"):
        terms_told(path)


def test_a_term_that_is_none_is_told_with_its_file_in_brackets(tmp_path):
    path = tmp_path / "parts.safetensors"
    save_file({"terms": numpy.frombuffer(told_bytes([]), numpy.uint8)}, path)
    with pytest.raises(EvidenceError, match=rf"does not tell the terms of the loss \({path}: TERMS is \[\]"):
        terms_told(path)


def written(folder, observed):
    right = left_by()
    for dtype in DTYPES:
        save_file({"first/w": right["w"]}, folder / dtype)
        for formula in FORMULAS:
            save_file({"first/w": observed[formula]["w"]}, folder / f"{formula}.{dtype}")
    dumped(folder / "parts")
    references = {name: folder / name for name in (*DTYPES, "parts")}
    return references, {(formula, dtype): folder / f"{formula}.{dtype}" for formula in FORMULAS for dtype in DTYPES}


def test_files_are_judged_by_the_terms_that_they_tell(tmp_path):
    means = {name: lambda r, m, name=name: C[name] / OWN[name][r] / 2 for name in NAMES}
    files = written(tmp_path, {TOKEN_MEAN: left_by(), MEAN_OF_MEANS: left_by(**means)})
    asked = []
    counted = Counted({}, (), lambda *told: asked.append(told) or {"first": FACTS})
    verdicts = check_gradient_parity(Tolerances(), *files, counted)
    assert asked == [(TERMS, {})]
    assert {verdict.case: (verdict.outcome, verdict.problem) for verdict in verdicts} == {
        f"{formula}.{dtype}.first": ("pass" if formula == TOKEN_MEAN else "fail", None)
        for formula in FORMULAS
        for dtype in DTYPES
    }


def test_parts_that_do_not_add_up_are_noticed(tmp_path):
    references, _ = written(tmp_path, {formula: left_by() for formula in FORMULAS})
    read = read_references(references, {"first": FACTS})["first"]
    assert set(read.parts) == set(PARTS)
    assert weighted_sum(dict.fromkeys(PARTS, 1.0), read.parts)["w"] == pytest.approx(
        weighted_sum(dict.fromkeys(PARTS, 1.0), PARTS)["w"]
    )
    save_file({"first/w": left_by(**scaled("l2", 2))["w"]}, tmp_path / "float64")
    with pytest.raises(EvidenceError, match="does not add up to the reference of window 'first'"):
        read_references(references, {"first": FACTS})


def test_parts_are_found_by_term():
    arrays = {"first/aux/1/0/w": numpy.ones(2), "first/lm/0/2/w": numpy.zeros(2)}
    assert set(parts_of_terms(arrays, "first", FACTS)) == {(3, 0), (0, 2)}


def test_a_term_without_a_gradient_hides_no_other():
    """As the square of a bias that starts at 0: no mistake in it can be seen, and all others can."""
    parts = {(row, m): {"w": of["w"] * (row < 4)} for (row, m), of in PARTS.items()}
    left = {"w": left_by(l2=lambda r, m: 0.0)["w"]}
    assert without_gradient(FACTS, parts) == [2]
    assert without_gradient(FACTS, PARTS) == []
    blank = Evidence(left, left, left, parts, FACTS)
    found = judge("case", Tolerances(), "float64", blank, expected(TOKEN_MEAN, FACTS), {})
    assert (found.outcome, found.expected) == ("pass", "pass")
    assert found.observed["power"] > 1000
    assert "any mistake in term l2, whose gradient is 0 here" in found.observed["not_seen_here"]
    kept = {
        formula.name: list(formula.variants(FACTS)) for formula in excluded_beside(between_terms(FACTS), FACTS, [2])
    }
    assert kept["regularizer_times_world_size"] == []
    assert kept["term_forgotten"] == ["term lm", "term aux"]
