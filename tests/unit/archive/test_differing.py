"""What counts as the same when a verdict is computed again."""

import pytest

from ddp_tokens.archive.differing import differences


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        (1.0, 1.0 + 9e-7),
        (-1e-30, -1e-30 * (1 + 9e-7)),
        (0.0, 0),
        (0.0, -0.0),
        (3, 3.0),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        ([], ()),
        ("x", "x"),
        (True, True),
    ],
)
def test_the_same(stated, found):
    assert list(differences(stated, found)) == []
    assert list(differences(found, stated)) == []


@pytest.mark.parametrize(
    ("stated", "found", "told"),
    [
        (1.0, 1.0 + 1.1e-6, "it is 1.0, computed again it is 1.0000011"),
        (0.0, 1e-300, "it is 0.0, computed again it is 1e-300"),
        (10**9, 10**9 + 1, "it is 1000000000, computed again it is 1000000001"),
        (1, True, "it is 1, computed again it is true"),
        (0.0, False, "it is 0.0, computed again it is false"),
        (True, False, "it is true, computed again it is false"),
        (10**400, 1e300, f"it is 1{'0' * 119}..., computed again it is 1e+300"),
        (1e300, 10**400, f"it is 1e+300, computed again it is 1{'0' * 119}..."),
        (None, 0, "it is null, computed again it is 0"),
        ("pass", "fail", 'it is "pass", computed again it is "fail"'),
        ("1", 1, 'it is "1", computed again it is 1'),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b is 1, computed again it is 2"),
        ({"a": 1}, {}, "a is 1, computed again it is missing"),
        ({}, {"a": None}, "a is missing, computed again it is null"),
        ([1, 2], [1], "it is a list of 2, computed again it is a list of 1"),
        ({"a": [[1], [2]]}, {"a": [[1], [3]]}, "a[1][0] is 2, computed again it is 3"),
        ({"a": [1]}, {"a": {}}, "a is [1], computed again it is {}"),
        ("x" * 200, "y", f'it is "{"x" * 119}..., computed again it is "y"'),
        ("a\nb", "", 'it is "a\\nb", computed again it is ""'),
    ],
)
def test_not_the_same(stated, found, told):
    assert list(differences(stated, found)) == [told]


def test_every_difference_is_told():
    assert list(differences({"b": 1, "a": 2, "c": 3}, {"b": 2, "a": 1, "c": 3})) == [
        "a is 2, computed again it is 1",
        "b is 1, computed again it is 2",
    ]
