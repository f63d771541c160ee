"""Confirm that experiments need no download: list what each reads besides the project's own code, and look whether it
is there. Writes nothing.

Without --config: every experiment in config/, those that config/config.yaml lists with the fields that it adds.
Relative paths start at the current folder, as they do for Snakemake. The SHA-256 of a folder of images is that of the
list of their names and SHA-256, as lock.json holds it.
"""

import argparse
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ddp_tokens.config import Experiment, OwnImages, OwnRows
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.corpora import own_images, own_sources
from ddp_tokens.corpora.lock import require_same_source
from ddp_tokens.errors import ConfigError, CorpusError, UserError
from ddp_tokens.files import read_json
from ddp_tokens.layout import Layout
from ddp_tokens.workflow import CONFIG_FOLDER, NOT_OVERRIDES, RESULTS
from ddp_tokens.yaml_files import read_yaml

LIST = CONFIG_FOLDER / "config.yaml"
COLUMNS = ("experiment", "reads", "where", "bytes", "SHA-256", "prepared")
INSIDE, OUTSIDE = "in the project", "outside"
NOT_YET, SAME, ANOTHER, CHANGED = "not yet", "from this", "from another corpus", "not from this"
PROBLEM = 1


@dataclass(frozen=True)
class Source:
    """What an experiment reads. Where it cannot be read, `bytes` and `digest` are missing."""

    path: str
    where: str
    bytes: int | None = None
    digest: str | None = None
    prepared: str = ""


def main(program: str, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--config", type=Path, action="append", metavar="FILE", help="an experiment's YAML file; may be repeated"
    )
    asked = parser.parse_args(arguments).config
    files, problems = ([(path, {}) for path in dict.fromkeys(asked)], []) if asked else every_experiment()
    found: list[tuple[str, Source | None]] = []
    for path, overrides in files:
        try:
            experiment = load_experiment(path, overrides)
        except ConfigError as error:
            problems.append(str(error))
            continue
        source, wrong = read(experiment)
        found.append((experiment.name, source))
        problems += wrong
    if found:
        print(tabulate(map(_row, found), headers=COLUMNS, disable_numparse=True, colalign=_alignment()) + "\n")
    for problem in problems:
        print(f"{program}: {problem}", file=sys.stderr)
    print(_conclusion([source for _, source in found], len(files), len(problems)))
    return PROBLEM if problems else 0


Overrides = Mapping[str, Any]


def every_experiment() -> tuple[list[tuple[Path, Overrides]], list[str]]:
    """Each YAML file in config/ with what lies over it when Snakemake builds it, and what is wrong with config.yaml.

    Raises ConfigError when there is no experiment.
    """
    paths = sorted(path for path in CONFIG_FOLDER.glob("*.yaml") if path != LIST)
    if not paths:
        raise ConfigError(
            f"{CONFIG_FOLDER.absolute()} holds no experiment: go to the project's folder, or give --config"
        )
    try:
        values = read_yaml(LIST)
    except ConfigError as error:
        return [(path, {}) for path in paths], [str(error)]
    listed = values.get("experiments")
    overrides = {name: value for name, value in values.items() if name not in NOT_OVERRIDES}
    return [(path, overrides if isinstance(listed, list) and path.stem in listed else {}) for path in paths], []


def read(experiment: Experiment) -> tuple[Source | None, list[str]]:
    """What the experiment reads, None where its rows are made from the seed; and what is wrong with it."""
    corpus = experiment.corpus
    if not isinstance(corpus, OwnRows | OwnImages):
        return None, []
    where = _where([Path(corpus.path)])
    try:
        files = _files(corpus)
        where = _where(files.values())
        number, digest = sum(path.stat().st_size for path in files.values()), own_sources.digest_of(files)
    except CorpusError as error:
        return Source(corpus.path, where), [f"{experiment.name}: field corpus.path: {error}"]
    except OSError as error:
        named = "" if str(error.filename) == corpus.path else f"{error.filename}: "
        problem = f"field corpus.path: {corpus.path} cannot be read: {named}{error.strerror}"
        return Source(corpus.path, where), [f"{experiment.name}: {problem}"]
    try:
        prepared = _prepared(corpus, Layout(Path(RESULTS) / experiment.name).lock)
    except (UserError, OSError) as error:
        return Source(corpus.path, where, number, digest, CHANGED), [f"{experiment.name}: {error}"]
    return Source(corpus.path, where, number, digest, prepared), []


def _files(corpus: OwnRows | OwnImages) -> dict[str, Path]:
    """By name in a folder; of a file "". Raises CorpusError and OSError for what cannot be read."""
    path = Path(corpus.path)
    kind = path.stat().st_mode
    if stat.S_ISDIR(kind):
        if isinstance(corpus, OwnRows):
            return own_sources.files_of(path)
        return {name: path / name for name in own_images.files_in(path)}
    if not stat.S_ISREG(kind):
        raise CorpusError(f"{path} is no file")
    return {"": path}


def source_files_of(corpus: OwnRows | OwnImages) -> list[Path]:
    """Every file that the corpus is read from, with paths as the experiment gives them; raises as _files does."""
    return sorted(_files(corpus).values())


def _where(paths: Iterable[Path]) -> str:
    """Where links lead, too."""
    project = Path.cwd().resolve()
    return INSIDE if all(path.resolve().is_relative_to(project) for path in paths) else OUTSIDE


def _prepared(corpus: OwnRows | OwnImages, lock_path: Path) -> str:
    """Raises CorpusError when what was prepared is not what is there now, EvidenceError for a lock that is no JSON."""
    if not lock_path.is_file():
        return NOT_YET
    lock = read_json(lock_path)
    if not _pins(lock, corpus):
        return ANOTHER
    require_same_source(corpus, lock, lock_path)
    for name, digest in lock.get("images", {}).get("files", {}).items():
        from ddp_tokens.corpora.image_files import unchanged

        unchanged(Path(corpus.path) / name, digest)
    return SAME


def _pins(lock: Mapping[str, Any], corpus: OwnRows | OwnImages) -> bool:
    """Whether the lock holds a digest of this source, or is of a corpus that the experiment had before."""
    if isinstance(corpus, OwnRows):
        return "source_sha256" in lock
    recipe = lock.get("images", {})
    return recipe.get("path") == corpus.path and ("files" in recipe) == Path(corpus.path).is_dir()


def _row(found: tuple[str, Source | None]) -> list[str]:
    name, source = found
    if source is None:
        return [name, "nothing", "", "", "", ""]
    size = "" if source.bytes is None else f"{source.bytes:,}"
    return [name, source.path, source.where, size, source.digest or "cannot be read", source.prepared]


def _alignment() -> list[str]:
    return ["right" if column == "bytes" else "left" for column in COLUMNS]


def _conclusion(sources: Sequence[Source | None], experiments: int, problems: int) -> str:
    start = f"{experiments} experiment{'s' * (experiments != 1)}"
    if problems:
        return f"{start}, {problems} problem{'s' * (problems != 1)}: not everything is there as it should be"
    outside = sum(source is not None and source.where == OUTSIDE for source in sources)
    others = f", {outside} read what is there outside it" if outside else ""
    return f"{start}, no download needed: {len(sources) - outside} read nothing from outside the project{others}"
