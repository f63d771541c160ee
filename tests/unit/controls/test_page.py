import re

import pytest

from ddp_tokens.checks.meanings import MEANINGS, meaning_of
from ddp_tokens.config import ResNet
from ddp_tokens.controls import evaluation_cases, gradient_cases, resume_cases, table
from ddp_tokens.controls.gradient_windows import Case, OfImages
from ddp_tokens.controls.page import KINDS, NUMBERS, controls_page, fit
from tests.unit.controls.synthetic import caught, judged, missed
from tests.unit.test_report import text_of

ALL_CASES = (*gradient_cases.VARIANTS, *resume_cases.CASES, *evaluation_cases.CASES)


def test_headline_is_the_first_sentence():
    text = text_of(controls_page(caught()))
    headline = "3 of 3 controls are refused, each by its check and as what it is; 3 of 3 right variants pass; 1 of 1 "
    assert text.startswith(f"Would the checks have caught it? {headline}cases that cannot be decided end inconclusive.")
    assert "Not as expected" not in text
    assert "✗" not in text


def test_problems_stand_on_top_and_in_their_rows():
    page = controls_page(missed())
    text = text_of(page)
    problems = (
        "Not as expected: mean_of_means (gradient_parity) is pass, expected fail momentum_lost (resume) is diagnosed "
        "as position_reset, expected optimizer_state_lost w2_a2_b4 (gradient_parity) is fail, expected pass"
    )
    assert problems in text
    assert text.index(problems) < text.index("What the numbers mean")
    assert text.count("✗ not as expected") == 3
    assert text.count("✓ as expected") == 1
    assert page.count('class="missed"') == 3


def test_row_that_is_not_as_expected_says_what_was_expected_and_what_was_found():
    text = text_of(controls_page(missed()))
    assert "fail optimizer state lost fail position reset" in text
    assert "Criterion: error &lt;= tolerance First difference: parameter head.weight, error 0.5" in text
    assert "Criterion:" not in text_of(controls_page(caught()))


def test_every_row_is_there_below_the_meaning_of_its_kind():
    page, variants = controls_page(caught()), caught()
    names = re.findall(r'scope="row"><code>(\w+)</code><span', page)
    assert names == [one.verdict.case for one in variants]
    places = [page.index(f"<h2>{kind.capitalize()}</h2>") for kind in dict.fromkeys(one.kind for one in variants)]
    assert places == sorted(places)
    assert KINDS["undecidable"] in text_of(page)


def test_row_says_what_was_done_and_all_numbers():
    text = text_of(controls_page(caught()))
    row = "mean_of_means each rank divides by its own units gradient_parity fail fail mean of means residual 1.5e-07; "
    assert f"{row}next best stale count: 0.25 0.5 1e-06 1,234 ✓ as expected" in text
    assert "history_not_continued only records are missing resume fail fail history not continued 0 0 \u2013 ✓" in text


def test_numbers_are_explained_for_the_checks_that_are_there():
    text = text_of(controls_page(caught()))
    assert "a run with an error of 0 can still be refused" in text
    assert NUMBERS["gradient_parity"][2] in text
    assert NUMBERS["replicas"][0] not in text


def test_whatever_a_variant_says_is_escaped():
    page = controls_page([judged("a<b", "right", "of_your_own", "pass", "fail", what="<script>", error=1, tolerance=0)])
    assert "<script" not in page
    assert "a&lt;b" in page


@pytest.mark.parametrize("variants", [caught(), missed()])
def test_page_needs_nothing_else_and_has_the_same_bytes(variants):
    page = controls_page(variants)
    assert page == controls_page(variants)
    assert not re.findall(r"https?://|<script|<link|<img|src=|@import|url\(", page)


def test_fit_names_rank_and_factor_where_they_are_known():
    assert fit({}) == ""
    assert fit({"detail": "rank 0", "factor": 1024.0, "residual": 1e-7}) == "rank 0; factor 1,024; residual 1e-07"


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
def test_every_case_says_what_is_done_in_it(case):
    assert len(table.what_of(case)) > 5
    assert all(name in MEANINGS for name in case.diagnosis)


def test_every_kind_and_check_is_explained():
    assert {variant.kind for variant in gradient_cases.VARIANTS} < set(KINDS)
    assert {case.check for case in (*gradient_cases.VARIANTS, *resume_cases.CASES)} | {"evaluation"} == set(NUMBERS)


def test_case_is_described_by_its_shape_and_what_is_special():
    assert Case("a", 1, 1, 4).what == "1 rank, 1 microbatch of 4 rows"
    images = OfImages(ResNet())
    assert Case("c", 2, 2, 3, of_images=images).what == "2 ranks, 2 microbatches of 1 to 6 images"
    assert Case("b", 3, 4, 1, special="a rank without a unit").what == (
        "3 ranks, 4 microbatches of 1 row: a rank without a unit"
    )


def test_meaning_of_several_names_joins_those_that_are_known():
    assert meaning_of(["mean_of_means", "stale_count"]) == (
        "each rank divides by its own units; or the window before gave the denominator"
    )
    assert meaning_of(["of_your_own"]) == ""
