"""tests/mutation.py takes minutes and is not run here; what it is built on is."""

import re

import pytest

from ddp_tokens.steps import PROJECT_ROOT
from tests.mutation import (
    EXPLAINED,
    MODULES,
    Result,
    differences,
    explained,
    judge_of,
    report,
    source_of,
    undecorated,
    with_named_lambdas,
)


@pytest.mark.parametrize("module", MODULES)
def test_each_module_has_the_test_file_that_judges_it(module):
    assert (PROJECT_ROOT / source_of(module)).is_file()
    assert (PROJECT_ROOT / judge_of(module)).is_file()


def test_every_check_is_in_the_list():
    """But for texts, of which tests/mutation.md says so."""
    checks = {f"checks.{path.stem}" for path in (PROJECT_ROOT / "src" / "ddp_tokens" / "checks").glob("[a-z]*.py")}
    assert checks - set(MODULES) == {"checks.meanings"}


def test_each_explained_mutant_is_of_a_module_in_the_list():
    mutants = [mutant for listed in explained().values() for mutant in listed]
    assert len(mutants) > 5
    assert {module_of(mutant) for mutant in mutants} - set(MODULES) == set()


def module_of(mutant):
    """`checks.verdict` of "checks.verdict.Verdict.problem: ..."."""
    return re.match(r"([a-z_]+\.)*", mutant)[0].rstrip(".")


def test_the_table_says_what_the_lists_hold():
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in EXPLAINED.read_text().splitlines() if line.startswith("| ")]
    table = {row[0]: [int(number) for number in row[1:6]] for row in rows[1:]}
    assert list(table) == [*MODULES, "all"]
    for module in MODULES:
        mutants, killed, timeouts, equivalent, surviving = table[module]
        assert mutants == killed + timeouts + equivalent + surviving
        listed = [sum(module == module_of(mutant) for mutant in mutants) for mutants in explained().values()]
        assert [equivalent, surviving] == listed
    assert table["all"] == [sum(column) for column in zip(*(table[module] for module in MODULES), strict=True)]


DECORATED = """
class Circle:
    def __init__(self, radius):
        self.radius = radius

    @property
    def diameter(self):
        return 2 * self.radius
"""


def test_a_property_stays_one_and_its_function_is_undecorated():
    names = {}
    exec(undecorated(DECORATED), names)
    assert names["Circle"](3).diameter == 6
    assert "@" not in undecorated(DECORATED)


LAMBDAS = """
TABLE = {
    "sum": lambda a, b=1: a + b,
    "twice": lambda a: (
        2 * a
    ),
}
def f():
    return lambda: 7
"""


def test_a_lambda_outside_functions_becomes_a_function_of_the_same_value():
    names = {}
    exec(with_named_lambdas(LAMBDAS), names)
    assert [names["TABLE"]["sum"](3), names["TABLE"]["sum"](3, 4), names["TABLE"]["twice"](3)] == [4, 7, 6]
    assert names["TABLE"]["sum"].__name__ != "<lambda>" != names["TABLE"]["twice"].__name__
    assert names["TABLE"]["sum"] is not names["TABLE"]["twice"]
    assert names["f"]().__name__ == "<lambda>", "mutmut changes it with its function"


def test_a_mutant_is_told_by_its_changed_lines():
    mutated = """
def x_f__mutmut_orig(a):
    b = a + 1
    return g(
        b,
    )

def x_f__mutmut_1(a):
    b = a - 1
    return g(
        b,
    )
"""
    assert differences(mutated)["x_f__mutmut_1"] == "b = a + 1  ->  b = a - 1"


def test_a_survivor_that_is_not_explained_is_an_error(capsys):
    known = {"Equivalent": ["plan.f: a  ->  b"], "Surviving": ["window.f: a  ->  b"]}
    explained_one = Result("plan", 11, 9, 1, 2.0, ("plan.f: a  ->  b",))
    assert not report([explained_one], known)
    assert "| plan | 11 | 9 | 1 | 1 | 0 | 100.0 % | 2 |" in capsys.readouterr().out
    assert report([Result("plan", 11, 9, 0, 2.0, ("plan.f: a  ->  b", "plan.f: c  ->  d"))], known)
    assert "Not explained: 1\nplan.f: c  ->  d" in capsys.readouterr().out
    assert report([Result("plan", 11, 11, 0, 2.0, ())], known)
    assert "Explained, but killed or gone: 1\nplan.f: a  ->  b" in capsys.readouterr().out


def test_too_few_killed_is_an_error():
    survivors = tuple(f"plan.f: {number}  ->  0" for number in range(2))
    known = {"Equivalent": [], "Surviving": list(survivors)}
    assert report([Result("plan", 19, 17, 0, 1.0, survivors)], known)  # 89.5 %
    assert not report([Result("plan", 20, 18, 0, 1.0, survivors)], known)  # 90 %
