"""How much an archive may unpack to, as each tool that reads one is told."""

import argparse
from pathlib import Path

import pytest

from ddp_tokens.archive import compare, tables
from ddp_tokens.archive.arguments import add_archives
from ddp_tokens.archive.reading import LIMIT_BYTES
from ddp_tokens.errors import ArchiveError
from tests.unit.archive.archives import files_of, write_archive


def parsed(*arguments, names=("archive",)):
    parser = argparse.ArgumentParser(prog="tool")
    add_archives(parser, names)
    return parser.parse_args(arguments)


def test_archives_are_paths_and_the_limit_is_in_bytes():
    assert vars(parsed("a.zip")) == {"archive": Path("a.zip"), "limit": LIMIT_BYTES}
    both = parsed("a.zip", "b.zip", "--limit-gib", "2", names=("before", "after"))
    assert vars(both) == {"before": Path("a.zip"), "after": Path("b.zip"), "limit": 2 * 2**30}
    assert parsed("a.zip", "--limit-gib=0.5").limit == 2**29
    assert parsed("a.zip", "--limit-gib=1e-9").limit == 1


@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "inf", "x", "", "1e10"])
def test_the_limit_is_a_number_above_0(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed("a.zip", f"--limit-gib={wrong}")
    assert ended.value.code == 2
    assert f"argument --limit-gib: must be a number above 0, not {wrong}" in capsys.readouterr().err


@pytest.mark.parametrize(("main", "archives"), [(tables.main, 1), (compare.main, 2)])
def test_each_tool_keeps_to_the_limit(tmp_path, main, archives):
    paths = [str(write_archive(tmp_path / "tiny.zip", files_of()))] * archives
    with pytest.raises(ArchiveError, match="allow it with --limit-gib 1"):
        main("tool", [*paths, "--limit-gib", "0.000001"])
    assert main("tool", [*paths, "--limit-gib", "1"]) == 0
