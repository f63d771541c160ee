"""What git tracks below a folder, asked of git itself."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ddp_tokens.errors import CleanError


def tracked(root: Path) -> frozenset[str]:
    """Paths from `root` on, with a slash between folders; none where neither `root` nor a folder above is a repository.

    Raises CleanError when there is a repository and git is missing, or refuses to say.
    """
    if not in_repository(root):
        return frozenset()
    command = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z"]
    try:
        done = subprocess.run(command, cwd=root, env=asking_this_repository(os.environ), capture_output=True)
    except OSError as error:
        raise CleanError(
            f"git cannot be asked what it tracks in {root} ({error.strerror}), so nothing is deleted: install git"
        ) from None
    if done.returncode:
        reason = " ".join(os.fsdecode(done.stderr).split()).removeprefix("fatal: ")
        raise CleanError(f"git does not say what it tracks in {root}, so nothing is deleted: {reason}")
    return frozenset(os.fsdecode(path) for path in done.stdout.split(b"\0") if path)


def in_repository(root: Path) -> bool:
    return any(os.path.lexists(folder / ".git") for folder in (root, *root.parents))


def asking_this_repository(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what would show git another repository or index, as git itself sets it for hooks."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith("GIT_") or name.startswith("GIT_CONFIG")
    }
    return kept | {"LC_ALL": "C", "GIT_DISCOVERY_ACROSS_FILESYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0"}
