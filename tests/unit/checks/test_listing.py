import os

import pytest

from ddp_tokens.checks.checkpoints import check_checkpoints
from ddp_tokens.checks.listing import COLUMNS, age, listed
from ddp_tokens.layout import all_checkpoints_in

WRITTEN = 1_700_000_000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.9, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (86400 * 2.5, "2 d")],
)
def test_an_age_in_the_largest_whole_unit(seconds, text):
    assert age(seconds) == text


def test_each_checkpoint_has_a_row_also_a_damaged_one(runs):
    damaged = runs / "resume" / "step-0004"
    (damaged / "manifest.json").unlink()
    directories = all_checkpoints_in(runs)
    for directory in directories:
        os.utime(directory, (WRITTEN, WRITTEN))
    rows = listed(directories, check_checkpoints(directories), now=WRITTEN + 90)
    assert {len(row) for row in rows} == {len(COLUMNS)}
    by_name = {row[0]: row[1:] for row in rows}
    assert list(by_name) == ["continuous/step-0004", "interrupt/step-0002", "resume/step-0004"]
    size = sum(path.stat().st_size for path in (runs / "interrupt" / "step-0002").iterdir())
    assert by_name["interrupt/step-0002"] == ["2", "1", f"{size / 1e6:.1f} MB", "1 min", "yes"]
    step, world_size, _, _, whole = by_name["resume/step-0004"]
    assert (step, world_size) == ("?", "?")
    assert whole.startswith("NO: ")
    assert "has no manifest.json" in whole
