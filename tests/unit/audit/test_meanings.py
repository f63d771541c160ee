"""Every name that an audit gives is explained, in words that fit into a sentence."""

import ast
from pathlib import Path

import pytest

from ddp_tokens import audit
from ddp_tokens.audit import meanings
from ddp_tokens.audit.meanings import MEANINGS, meaning_of
from ddp_tokens.checks import meanings as of_checks
from ddp_tokens.formulas import ACCUMULATION_FORGOTTEN, KNOWN_WRONG


def own_names():
    return {value for name, value in vars(meanings).items() if name.isupper() and isinstance(value, str)}


def test_names_of_formulas_checks_and_audits_are_explained():
    assert set(MEANINGS) == {*of_checks.MEANINGS, *own_names(), ACCUMULATION_FORGOTTEN.name}
    assert {formula.name for formula in KNOWN_WRONG} <= set(MEANINGS)
    assert not own_names() & set(of_checks.MEANINGS)


def test_every_name_is_given_somewhere():
    """Imported by a module of the audit, and used there."""
    folder = Path(audit.__file__).parent
    used = {
        node.id
        for path in folder.glob("*.py")
        if path.stem != "meanings"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    assert {name for name, value in vars(meanings).items() if name.isupper() and isinstance(value, str)} <= used


@pytest.mark.parametrize("name", sorted(own_names()))
def test_a_meaning_is_a_phrase(name):
    assert MEANINGS[name][0].islower()
    assert not MEANINGS[name].endswith(".")


def test_meanings_of_several_names():
    assert meaning_of(["clipped_inside_window"]) == "gradients are clipped before the window is complete"
    assert meaning_of(["stale_count", "gradient_missing"]) == (
        "the window before gave the denominator; or a parameter that the objective depends on has no gradient"
    )
    assert meaning_of(["stale_count", "nothing known"]) == "the window before gave the denominator"
    assert meaning_of([]) == meaning_of(["nothing known"]) == ""
