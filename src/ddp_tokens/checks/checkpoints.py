"""Is each checkpoint whole, unaltered, and free of executable content?"""

from collections.abc import Iterable
from pathlib import Path

from ddp_tokens.checkpoint_contents import read_contents, require_together
from ddp_tokens.checks.tensor_files import read_arrays
from ddp_tokens.checks.verdict import PASS, Verdict, outcome
from ddp_tokens.errors import UserError
from ddp_tokens.files import digests


def check_checkpoints(directories: Iterable[Path]) -> list[Verdict]:
    return [_check_one(directory) for directory in directories]


def _check_one(directory: Path) -> Verdict:
    """Readable here means read: tensors by safetensors, the rest by a JSON parser, neither of which can run code."""
    problem, observed = None, {}
    try:
        contents = read_contents(directory)
        files = list(contents.manifest["sha256"])
        observed = {"step": contents.step, "world_size": contents.world_size, "files": len(files)}
        for name in files:
            if name.endswith(".safetensors"):
                read_arrays(directory / name)
        require_together(contents)
    except (UserError, OSError) as error:
        problem = {"problem": str(error)}
    present = sorted(path for path in directory.glob("*") if path.is_file())
    observed["bytes"] = sum(path.stat().st_size for path in present)
    return Verdict(
        case=f"{directory.parent.name}/{directory.name}",
        expected=PASS,
        outcome=outcome(problem is None),
        criterion="every file is there, has the SHA-256 that the manifest records, and is safetensors or JSON; "
        "ranks, updates and digests that the files state of each other agree",
        observed=observed,
        evidence=digests(present),
        first_difference=problem,
    )
