"""The folder that a tool is asked to fill."""

from pathlib import Path

from ddp_tokens.errors import ArchiveError


def require_new(folder: Path) -> None:
    """Raises ArchiveError unless there is nothing yet, or an empty folder."""
    if folder.is_symlink() and not folder.exists():
        raise ArchiveError(f"{folder} is a link that leads nowhere: name a folder that is not there yet")
    if folder.exists() and not folder.is_dir():
        raise ArchiveError(f"{folder} is no folder: name one that is not there yet, or an empty one")
    if folder.is_dir() and any(folder.iterdir()):
        raise ArchiveError(f"{folder} is not empty: name a folder that is not there yet, or an empty one")
