import re
from dataclasses import replace

import pytest

from ddp_tokens.checks.meanings import MEANINGS
from ddp_tokens.trainers.page import trainers_page
from ddp_tokens.trainers.table import headline
from tests.unit.test_report import text_of
from tests.unit.trainers.synthetic import CASES, FLAG, missed, run, trainers, window


@pytest.fixture
def table(tmp_path):
    return trainers(tmp_path)


@pytest.fixture
def missed_table(tmp_path):
    return trainers(tmp_path, **missed())


def row_in(page, name):
    """The text of one row."""
    [row] = re.findall(rf'<tr id="{name}".*?</tr>', page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", row).split())


def test_question_and_headline_come_first(table):
    page = trainers_page(table)
    text = text_of(page)
    assert text.startswith(f"Does your trainer apply the gradient that you meant? {headline(table.rows)}.")
    assert "headline good" in page
    assert "Not as expected" not in text
    assert "✗" not in text


def test_a_row_says_all_that_was_found_and_how_to_make_it_right(table):
    """0.5 / 1e-6 = 500,000 tolerances; 0.9 of the speed of the bare loop."""
    assert row_in(trainers_page(table), "bare_means") == (
        "plain DDP 2.13.0 mean of the rank&#39;s own tokens ( bare_means ) "
        f"fail mean of means {MEANINGS['mean_of_means']} clipped from norm 3.1 to 1 ✓ as expected "
        "500,000 0.5 / 1e-06 1.5e-07 0.90 "
        "Divide the sum of losses by the number of tokens of all ranks, and multiply by the world size. "
        "plain DDP: sum of losses x W / N, N over all ranks"
    )


def test_a_name_that_only_an_audit_gives_and_what_cannot_be_decided_have_their_sentence(tmp_path):
    only_there = run(window(1, "fail", 0.5, diagnosis=["gradients_not_cleared"]))
    page = trainers_page(trainers(tmp_path, bare_means=only_there, equal=run(window(1, "inconclusive", None, None))))
    assert "fail gradients not cleared it is fail ✗ not as expected" in row_in(page, "bare_means")
    assert row_in(page, "equal").endswith("inconclusive it is inconclusive ✓ as expected \u2013 \u2013 0.90 \u2013")


def test_a_right_row_needs_no_remedy(table):
    told = row_in(trainers_page(table), "bare")
    assert told.endswith("pass ✓ as expected 0.4 4e-07 / 1e-06 \u2013 0.99 \u2013")


def test_a_remedy_leads_to_the_row_that_has_it(table):
    page = trainers_page(table)
    assert set(re.findall(r'href="#(\w+)"', page)) == {"bare", "hf"}
    assert re.findall(r'<tr id="(\w+)"', page) == [case.name for case in CASES]


def test_what_was_not_run_says_why(table):
    told = row_in(trainers_page(table), "zero")
    assert told == (
        "DeepSpeed ZeRO stage 2 ( zero ) not run deepspeed is not installed: pip install deepspeed "
        "\u2013 \u2013 \u2013 \u2013"
    )


def test_problems_stand_on_top_and_in_their_rows(missed_table):
    page = trainers_page(missed_table)
    text = text_of(page)
    problems = (
        "Not as expected: bare_means is pass, expected fail hf is fail, expected pass "
        "hf_named should be made right by hf, which is fail"
    )
    assert problems in text
    assert text.index(problems) < text.index("The objective is")
    assert "headline bad" in page
    assert page.count('class="missed"') == 2
    wrong = (
        "✗ not as expected , expected is pass Criterion: error &lt;= tolerance First difference: parameter head.weight"
    )
    assert wrong in row_in(page, "hf")
    assert "✗ not as expected , expected is fail mean of means Criterion:" in row_in(page, "bare_means")


def test_speed_is_explained_with_the_machine(table):
    text = text_of(trainers_page(table))
    assert "divided by those of the bare loop" in text
    assert "on CPU A Processor, cores 2, Python 3.11.2, torch 2.13.0." in text


def test_the_window_that_a_row_states_is_named(table):
    text = text_of(trainers_page(table))
    assert "bare_means window 2 of 2, head.weight hf window 1 of 1, head.weight" in text


def test_a_long_setting_can_be_broken_behind_an_underscore(table):
    assert FLAG.replace("_", "_<wbr>") in trainers_page(table)


def test_whatever_a_run_or_a_case_says_is_escaped(tmp_path):
    cases = [replace(CASES[0], setting="<script>a_b", trainer="<b>")]
    page = trainers_page(trainers(tmp_path, cases, bare=run(window(1, "pass", 0.0, notes=["<i>"]), version="<u>")))
    assert not re.findall(r"<script|<b>|<i>|<u>", page)
    assert "&lt;script&gt;a_<wbr>b" in page


@pytest.mark.parametrize("changed", [{}, missed()])
def test_page_needs_nothing_else_and_has_the_same_bytes(tmp_path, changed):
    page = trainers_page(trainers(tmp_path / "a", **changed))
    assert page == trainers_page(trainers(tmp_path / "b", **changed))
    assert not re.findall(r"https?://|<script|<link|<img|src=|@import|url\(", page)
