"""Write an experiment of your own: config/NAME.yaml, the kind of work that it trains in workloads/NAME.py, and a test
of it on two ranks, tests/own/test_NAME.py. All three work as written; docs/own-work.md says what to change.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_tokens.errors import ConfigError
from ddp_tokens.files import write_text
from ddp_tokens.workflow import ARCHIVE, AUDIT, CONTROLS

TEMPLATES = Path(__file__).parent / "templates" / "new"
# Template -> where its copy lies, below the project.
WRITTEN = {
    "experiment.yaml": "config/NAME.yaml",
    "workload.txt": "workloads/NAME.py",
    "test.txt": "tests/own/test_NAME.py",
}
PLACEHOLDER = "NAME"
PATTERN = re.compile(r"[a-z][a-z0-9_]*")
LONGEST = 30
RESERVED = (CONTROLS, ARCHIVE, AUDIT, "config")


def main(program: str, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("name", metavar="NAME", help="of the experiment: lower-case letters, digits and _")
    name = parser.parse_args(arguments).name
    for path in write_new(name, Path()):
        print(f"wrote {path}")
    print(
        "\nBoth work as they are; change them into your own, and run them again:\n"
        f"  python -m pytest tests/own/test_{name}.py\n"
        f"  snakemake --cores 2 results/{name}/summary.json"
    )
    return 0


def write_new(name: str, project: Path) -> list[Path]:
    """The files written. Raises ConfigError for a name that cannot be, outside of a project, and where a file is there
    already, and OSError where one cannot be written; then none of them is left.
    """
    if not PATTERN.fullmatch(name) or len(name) > LONGEST:
        raise ConfigError(
            f"'{name}' cannot be the name of an experiment and of its files: take lower-case letters, digits and _, "
            f"a letter first, {LONGEST} at most, such as my_task"
        )
    if name in RESERVED:
        raise ConfigError(f"'{name}' is reserved ({', '.join(RESERVED)}): take another name")
    if not (project / "Snakefile").is_file():
        raise ConfigError(f"{project.absolute()} has no Snakefile: call this in the project's folder")
    texts = {
        project / path.replace(PLACEHOLDER, name): (TEMPLATES / template).read_text().replace(PLACEHOLDER, name)
        for template, path in WRITTEN.items()
    }
    for path in texts:
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} is there already, and nothing is overwritten: take another name, or delete it")
    _write_all_or_none(texts)
    return list(texts)


def _write_all_or_none(texts: Mapping[Path, str]) -> None:
    """Where one cannot be written, those before it would be in the way of the next try."""
    written = []
    try:
        for path, text in texts.items():
            write_text(path, text)
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
