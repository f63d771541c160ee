"""Delete what was made, in the project in whose folder it is called.

Without --yes it lists what would go and changes nothing. It never deletes what git tracks (nor results/README.md), what
an experiment in config/ reads, other git repositories, and what is mounted; follows no symbolic link and deletes none;
and does not touch config, data, .env or .venv. Deleting is refused while snakemake builds in this folder or a run
trains.

scopes:
  checkpoints  results/EXP/runs, with the working checkpoints of unfinished runs. Each run goes as a whole, since it is
               one output of Snakemake. `snakemake` makes it again; a target that is there already, such as
               results/EXP/gate.txt, does not ask for it. Likewise results/FOLDER/EXP/runs of what was made by hand with
               --results results/FOLDER
  generated    all else below results/: the report, and what is there of experiments whose YAML file is gone. Runs stay,
               but the next build makes them again, as all that they are made from is new
  all          both, and what tools left in this folder: .snakemake, .pytest_cache, .mypy_cache, .ruff_cache,
               .hypothesis, and __pycache__ in the project's own folders
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ddp_tokens.acquire import every_experiment
from ddp_tokens.config import OwnImages, OwnRows
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.errors import CleanError, ConfigError
from ddp_tokens.layout import RUNS, Layout
from ddp_tokens.locks import holders, is_held, lock_alone
from ddp_tokens.sweep import Row, Sweep, combined, mount_points
from ddp_tokens.tracked import in_repository, tracked
from ddp_tokens.workflow import AUDIT, CONFIG_FOLDER, LOCK, RESULTS

CHECKPOINTS, GENERATED, ALL = "checkpoints", "generated", "all"
OF_RUNS = "runs"
README = f"{RESULTS}/README.md"
TOOLS = (".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__")
OWN_FOLDERS = ("benchmarks", "envs", "src", "tests", "workflow_scripts")
LOCKED = (*RUNS, "scaling")  # what ranks write below results/EXP while they hold a lock
FAILED = 1
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
MOST_NAMED = 20
TRACKED, MOUNTED = "is tracked by git", "is mounted from elsewhere"


def main(program: str, arguments: Sequence[str]) -> int:
    """Raises CleanError where nothing may be deleted now, or this folder is no project."""
    own = _parser(program).parse_args(arguments)
    root = Path.cwd()
    if not (root / "Snakefile").is_file() or not (root / CONFIG_FOLDER).is_dir():
        raise CleanError(f"{root} is no project (Snakefile and {CONFIG_FOLDER}/ are missing): go to its folder first")
    mounted = mount_points(root)
    if RESULTS in mounted and not in_repository(root):
        raise CleanError(
            f"{RESULTS} is mounted from elsewhere, where git may track what is in it: call this there, outside of the "
            "container, or delete by hand"
        )
    elsewhere = dict.fromkeys(mounted - {RESULTS}, MOUNTED)
    kept = dict.fromkeys(tracked(root), TRACKED) | _read_by_experiments(root) | elsewhere
    locks = _locks(root, mounted)
    last = {_below(root, path) for path in locks}
    sweep = Sweep(root, _why_kept(own.scope, kept), last, delete=own.yes)
    refusal = next(filter(None, map(_refusal, locks)), None)
    if refusal and own.yes:
        raise CleanError(refusal)
    starts = _starts(root, own.scope, mounted)  # before a lock makes .snakemake
    with _held(root, locks) if own.yes else ExitStack():
        for path in starts:
            sweep.take(path)
    print("\n".join(_told(sweep)))
    if not own.yes and sweep.rows:
        print(f"Nothing has been deleted{f', and --yes would be refused now: {refusal}' if refusal else ''}.")
    for path, why in sweep.failed[:MOST_NAMED]:
        print(f"{program}: {_shown(path)} cannot be deleted: {why}", file=sys.stderr)
    if len(sweep.failed) > MOST_NAMED:
        print(f"{program}: and {len(sweep.failed) - MOST_NAMED} more cannot be deleted", file=sys.stderr)
    return FAILED if sweep.failed else 0


def _parser(program: str) -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=program, description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--scope", required=True, choices=[GENERATED, CHECKPOINTS, ALL], help="what to delete")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--dry-run", action="store_true", help="list what would go, with sizes, and delete nothing (default)"
    )
    how.add_argument("--yes", action="store_true", help="delete it")
    return parser


def _why_kept(scope: str, kept: Mapping[str, str]) -> Callable[[str], str | None]:
    def why(path: str) -> str | None:
        if path == README or (scope == GENERATED and _is_of_runs(path)):
            return ""
        return kept.get(path)

    return why


def _read_by_experiments(root: Path) -> dict[str, str]:
    """Own rows and images of the experiments in config/, where they lie in the project: nobody could make them again.

    Raises CleanError for an experiment that cannot be read: it may have some.
    """
    found: dict[str, str] = {}
    try:
        files, problems = every_experiment()
        for path, overrides in files:
            corpus = load_experiment(path, overrides).corpus
            if isinstance(corpus, OwnRows | OwnImages):
                places = [Path(os.path.normpath(root / corpus.path)), *_where_it_leads(root / corpus.path)]
                inside = [_below(root, place) for place in places if place.is_relative_to(root)]
                found |= dict.fromkeys(inside, f"is read by {path}")
    except ConfigError as error:
        problems = [str(error)]
    if problems:
        raise CleanError(f"{problems[0]}; until it can be read, nothing is deleted: it may read what is in {RESULTS}")
    return found


def _is_of_runs(path: str) -> bool:
    """results/EXP/runs, or results/FOLDER/EXP/runs; what is deeper belongs to another output, as in controls/ranks, and
    what audited trainers left holds no checkpoint.
    """
    parts = path.split("/")
    return len(parts) in (3, 4) and parts[-1] == OF_RUNS and parts[1] != AUDIT


def _where_it_leads(source: Path) -> Iterator[Path]:
    """Behind links: of a file, or of a folder and of each image in its class folders."""
    yield source.resolve()
    for folder in source.iterdir() if source.is_dir() else ():
        yield from (image.resolve() for image in folder.iterdir()) if folder.is_dir() else ()


def _starts(root: Path, scope: str, mounted: frozenset[str]) -> list[str]:
    """What to walk, from the root on. The folder with Snakemake's lock comes last. Links and what is mounted are named,
    to be left.
    """
    results = [RESULTS] if (root / RESULTS).is_symlink() else _entries(root, RESULTS)
    if scope == CHECKPOINTS:
        named = [path for path in results if (root / path).is_symlink() or path in mounted]
        return named + _folders_of_runs(root, mounted)
    tools = [*_caches(root), *TOOLS, str(LOCK.parent)] if scope == ALL else []
    return results + [path for path in tools if os.path.lexists(root / path)]


def _folders_of_runs(root: Path, mounted: frozenset[str]) -> list[str]:
    """What is there of results/EXP/runs and results/FOLDER/EXP/runs, links too."""
    outer = [path for path in _entries(root, RESULTS) if path not in mounted]
    inner = [path for folder in outer for path in _entries(root, folder) if not _is_of_runs(path)]
    candidates = [f"{folder}/{OF_RUNS}" for folder in (*outer, *inner) if not (root / folder).is_symlink()]
    return sorted(path for path in candidates if _is_of_runs(path) and os.path.lexists(root / path))


def _entries(root: Path, folder: str) -> list[str]:
    """Of a real folder, from the root on; nothing where there is none, or a link in its place."""
    if (root / folder).is_symlink() or not (root / folder).is_dir():
        return []
    return sorted(f"{folder}/{name}" for name in os.listdir(root / folder))


def _caches(root: Path) -> Iterator[str]:
    for own in OWN_FOLDERS:
        if not (root / own).is_symlink():
            for folder, names, _ in os.walk(root / own):
                if "__pycache__" in names:
                    names.remove("__pycache__")
                    yield _below(root, Path(folder, "__pycache__"))


def _below(root: Path, path: Path) -> str:
    return str(path.relative_to(root))


def _locks(root: Path, mounted: frozenset[str]) -> list[Path]:
    """Snakemake's, and one for each thing that ranks may write now, whether or not its file is there."""
    folders = {root / path for path in _folders_of_runs(root, mounted) if (root / path).is_dir()}
    folders.update(_deeper_folders_of_runs(root, mounted))
    of_runs = [
        {Layout(folder.parent).run_lock(run) for run in LOCKED} | {*folder.glob(".*.lock")}
        for folder in sorted(folders)
    ]
    return [root / LOCK, *(path for paths in of_runs for path in sorted(paths))]


def _deeper_folders_of_runs(root: Path, mounted: frozenset[str]) -> Iterator[Path]:
    """Of work by hand with --results anywhere below results/."""
    for folder, names, _ in os.walk(root / RESULTS) if not (root / RESULTS).is_symlink() else ():
        if _below(root, Path(folder)) in mounted - {RESULTS}:
            names.clear()
        elif OF_RUNS in names and not Path(folder, OF_RUNS).is_symlink():
            names.remove(OF_RUNS)
            yield Path(folder, OF_RUNS)


@contextmanager
def _held(root: Path, locks: Sequence[Path]) -> Iterator[None]:
    """Hold all inside the block. Raises CleanError when another process holds one."""
    with ExitStack() as stack:
        for path in locks:
            stack.enter_context(_one_held(root, path))
        yield


@contextmanager
def _one_held(root: Path, path: Path) -> Iterator[None]:
    """A lock behind a link is asked for, but not taken, since that would write there; so is one that cannot be
    written. What was not there goes again.
    """
    was_there, had_folder = path.exists(), path.parent.exists()
    is_outside = path.is_symlink() or path.parent.is_symlink()
    if is_outside or not os.access(path if was_there else path.parent if had_folder else root, os.W_OK):
        if refusal := _refusal(path):
            raise CleanError(refusal)
        yield
        return
    stream = lock_alone(path)
    if stream is None:
        raise CleanError(_sentence(path))
    with stream:
        try:
            yield
        finally:
            if not was_there and os.fstat(stream.fileno()).st_nlink:
                path.unlink()
                if not had_folder:
                    with suppress(OSError):  # another process has put something there
                        path.parent.rmdir()


def _refusal(path: Path) -> str | None:
    return _sentence(path) if is_held(path) else None


def _sentence(path: Path) -> str:
    if path.name == LOCK.name:
        return f"snakemake builds in this folder, {holders(path)}: wait until it has ended"
    run = os.path.relpath(path.with_name(path.name.removeprefix(".").removesuffix(".lock")))
    return f"{run} is being written by {holders(path)}: wait until that has ended, or end it"


def _told(sweep: Sweep) -> list[str]:
    left = [f"left: {_shown(path)} {why}" for path, why in sweep.left]
    if not sweep.rows:
        return left if sweep.failed else [*left, "Nothing to clean."]
    paths = [_shown(row.path) + (" (in part)" if row.in_part else "") for row in sweep.rows]
    table = [_line(row, path) for row, path in zip(sweep.rows, paths, strict=True)]
    total = combined("deleted" if sweep.delete else "in all", sweep.rows)
    return [f"{'size':>10} {'files':>7}  path", *table, _line(total, total.path), *left]


def _line(row: Row, text: str) -> str:
    return f"{_human(row.bytes):>10} {row.files:>7,}  {text}"


def _human(size: float) -> str:
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _shown(path: str) -> str:
    """A name may hold line breaks and bytes that are no text."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in path)
