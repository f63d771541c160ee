"""Names that lead out of a folder, that two systems read differently, or that clash."""

import pytest

from ddp_tokens.archive.names import clash_in, problem_of


@pytest.mark.parametrize(
    "name", ["a", "a/b.json", "a/b/", "results/tiny/.hidden", "a..b", "...", "ä/ü b", "x" * 200, "a/" * 49 + "a"]
)
def test_names_of_files_below_a_folder_are_taken(name):
    assert problem_of(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "has no name"),
        ("a\0b", "has a character in its name that cannot be shown"),
        ("a\nb", "has a character in its name that cannot be shown"),
        ("a\x7fb", "has a character in its name that cannot be shown"),
        ("a\udc80", "has a character in its name that cannot be shown"),
        ("gnp.\u202efdp", "has a character in its name that cannot be shown"),
        ("a\u2028b", "has a character in its name that cannot be shown"),
        ("a\u200b", "has a character in its name that cannot be shown"),
        ("a\xa0b", "has a character in its name that cannot be shown"),
        ("/etc/passwd", "has an absolute path"),
        ("//host/share", "has an absolute path"),
        ("/", "has an absolute path"),
        ("C:/a", "names a drive"),
        ("c:a", "names a drive"),
        ("a\\b", "has a backslash in its name"),
        ("..\\a", "has a backslash in its name"),
        ("../a", "leads out of the archive's folder with '..'"),
        ("a/../b", "leads out of the archive's folder with '..'"),
        ("a/..", "leads out of the archive's folder with '..'"),
        ("../", "leads out of the archive's folder with '..'"),
        ("a//b", "has a name that is not in its shortest form"),
        ("a//", "has a name that is not in its shortest form"),
        ("./a", "has a name that is not in its shortest form"),
        ("a/./b", "has a name that is not in its shortest form"),
        (".", "has a name that is not in its shortest form"),
        ("x" * 201, "has a name that is too long"),
        ("ü" * 101, "has a name that is too long"),
        ("abc/" * 256 + "a", "has a name that is too long"),
        ("a/" * 50 + "a", "lies more than 49 folders deep"),
        ("a/" * 51, "lies more than 49 folders deep"),
    ],
)
def test_other_names_are_refused(name, problem):
    assert problem_of(name) == problem


@pytest.mark.parametrize(
    ("names", "clash"),
    [
        (["a", "b/a", "b/"], None),
        (["b/", "b/a", "b/c/d"], None),
        (["a", "b", "a"], "a"),
        (["a/", "a/"], "a/"),
        (["a", "a/"], "a"),
        (["a", "a/b"], "a"),
        (["x/a/b/c", "x/a"], "x/a"),
    ],
)
def test_a_name_that_is_there_twice(names, clash):
    assert clash_in(names) == clash
    assert clash_in(reversed(names)) == clash
