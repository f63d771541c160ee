"""Which checks there are, told in two places: by the rules, and for commands and archives."""

import re

from ddp_tokens.cli import COMMANDS
from ddp_tokens.judging import JUDGES
from tests.helpers import PROJECT


def test_the_checks_are_those_of_the_summary_in_its_order():
    rules = (PROJECT / "rules" / "report.smk").read_text()
    names = re.findall(r"rules\.check_(\w+)\.output\.verdicts", rules)
    assert len(names) > 7
    assert [{"parity": "gradient_parity"}.get(name, name) for name in names] == list(JUDGES)


def test_each_has_a_command():
    commands = {name.removeprefix("check-").replace("-", "_") for name in COMMANDS if name.startswith("check-")}
    assert {{"parity": "gradient_parity"}.get(name, name) for name in commands} == set(JUDGES)
