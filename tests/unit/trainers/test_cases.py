"""The table's cases: each mistake is one that has a name, and each has a remedy that is itself a case, which passes."""

import ast
from collections import Counter

import pytest

from ddp_tokens.checks.verdict import FAIL, PASS
from ddp_tokens.formulas import MEANINGS
from ddp_tokens.trainers.cases import BY_NAME, CASES
from ddp_tokens.trainers.run import EXAMPLES

WRONG = [case for case in CASES if case.expected == FAIL]
RIGHT = [case for case in CASES if case.expected == PASS]


def named(cases):
    return [pytest.param(case, id=case.name) for case in cases]


def test_every_case_is_right_or_wrong():
    assert len(WRONG) >= 9
    assert len(RIGHT) >= 8
    assert len(WRONG) + len(RIGHT) == len(CASES)


def test_names_are_file_names_of_their_own():
    assert [name for name, number in Counter(case.name for case in CASES).items() if number > 1] == []
    assert all(case.name.isidentifier() for case in CASES)


def test_no_two_cases_run_the_same():
    assert max(Counter((case.script, case.arguments) for case in CASES).values()) == 1


def test_bare_ddp_comes_first():
    assert CASES[0].name == "bare_ddp"


@pytest.mark.parametrize("case", named(WRONG))
def test_a_wrong_case_is_named_and_made_right_by_the_same_trainer(case):
    assert set(case.diagnosis) <= set(MEANINGS)
    assert case.diagnosis
    assert case.remedy.endswith(".")
    remedy = BY_NAME[case.made_right_by]
    assert (remedy.expected, remedy.script, remedy.package) == (PASS, case.script, case.package)


@pytest.mark.parametrize("case", named(RIGHT))
def test_a_right_case_needs_no_remedy(case):
    assert (case.diagnosis, case.remedy, case.made_right_by) == ((), "", "")


def settings_of(script):
    """What the script's --setting takes: the texts in the call of shared.arguments, or the keys of `settings`."""
    tree = ast.parse((EXAMPLES / script).read_bytes())
    for node in ast.walk(tree):
        takes_settings = isinstance(node, ast.Call) and ast.unparse(node.func) == "shared.arguments"
        if takes_settings and not isinstance(node.args[0], ast.Starred):
            return {argument.value for argument in node.args}
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "settings":
            return {key.value for key in node.value.keys}
    raise AssertionError(f"{script} takes no setting")


@pytest.mark.parametrize("script", sorted({case.script for case in CASES}))
def test_each_setting_of_a_script_is_a_case(script):
    used = {case.arguments for case in CASES if case.script == script}
    assert used == {("--setting", setting) for setting in settings_of(script)}


def test_each_example_is_a_case():
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"shared.py"}
    assert scripts == {case.script for case in CASES}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_fits_on_one_screen(path):
    assert len(path.read_text().splitlines()) <= 85
