"""What a check says on the terminal when it is run by hand."""

import pytest

from ddp_tokens.checks.meanings import MEANINGS
from ddp_tokens.cli import main
from ddp_tokens.files import write_json
from ddp_tokens.layout import Layout
from tests.unit.checks.test_window import trace


@pytest.mark.parametrize(
    ("reductions", "code", "said"),
    [
        ([[], [0]], 0, []),
        (
            [[0], [0]],
            1,
            [
                f"one_window: reduced_in_every_microbatch ({MEANINGS['reduced_in_every_microbatch']})",
                "What to do: docs/troubleshooting.md",
            ],
        ),
        (
            [[], []],
            1,
            [f"one_window: never_reduced ({MEANINGS['never_reduced']})", "What to do: docs/troubleshooting.md"],
        ),
    ],
)
def test_a_failure_is_told_with_the_mistake_that_explains_it(tmp_path, capsys, reductions, code, said):
    config, at = tmp_path / "tiny.yaml", Layout(tmp_path / "results" / "tiny")
    config.write_text("world_size: 2\n")
    for rank in (0, 1):
        write_json(at.window / f"rank-{rank}.json", trace(reductions, rank=rank))
    arguments = ["check-window", "--config", str(config), "--results", str(tmp_path / "results")]
    assert main(arguments) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-len(said) - 1 :] == [*said, f"wrote {at.check('window')}"]
    assert ("What to do" in "".join(lines)) == bool(said)
