"""What the Snakefile asks of the archive while it is parsed."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ddp_tokens.archive.source import source_document
from ddp_tokens.errors import ConfigError
from ddp_tokens.layout import Layout
from ddp_tokens.workflow import ARCHIVE, ARCHIVE_LIMIT, RESULTS, file_by_content

DEFAULT_LIMIT_MIB = 256
MEASURED = ("manifest.json", "prediction.json")


def source_file() -> str:
    """A file that is another one when the commit, or a file of the source, is another: all of it is in the archive.

    Not beside the settings: Snakemake lists a target's input folders once, and misses what is put there later.
    """
    return file_by_content(".project", "source", source_document(Path()))


def measured(name: str) -> list[str]:
    """The scaling of the experiment, where it was measured before. It takes minutes, so it is not measured for the
    archive; but what is out of date is measured again, as everything that Snakemake has made.
    """
    scaling = Layout(Path(RESULTS) / name).scaling
    return [str(scaling / document) for document in MEASURED if (scaling / document).is_file()]


def archived(targets: Collection[str], names: Sequence[str]) -> list[str]:
    """The experiments whose archives a call asks for; `names`: those of the rule `archive`."""
    asked = {PurePosixPath(os.path.normpath(target)) for target in targets}
    each = [path.stem for path in sorted(asked) if path.parts[:-1] == (RESULTS, ARCHIVE)]
    return [*(names if PurePosixPath(ARCHIVE) in asked else []), *each]


def limit_mib(config: Mapping[str, Any]) -> int:
    """Files above it are left out of archives. Raises ConfigError where it is no positive whole number."""
    limit = config.get(ARCHIVE_LIMIT, DEFAULT_LIMIT_MIB)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigError(
            f"config/config.yaml: field '{ARCHIVE_LIMIT}' must be a whole number from 1 (MiB), not {limit!r}"
        )
    return limit
