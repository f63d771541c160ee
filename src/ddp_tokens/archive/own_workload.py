"""The user's own kind of work, as a part of the archive: its file, and the files beside it that it imports."""

from collections.abc import Iterable
from pathlib import Path

from ddp_tokens.archive.layout import INPUTS
from ddp_tokens.config import Experiment
from ddp_tokens.errors import ArchiveError
from ddp_tokens.workload_names import own_files, place_of

NOT_OF_THE_PROJECT = (".venv", ".snakemake")


def require_rebuildable(experiment: Experiment) -> None:
    """Raises ArchiveError for a workload that a rebuild in another folder would not find."""
    place = place_of(experiment.workload)
    if not place.is_own or _is_absolute(experiment.workload):
        return
    leads_out = place.path is not None and ".." in Path(place.path).parts
    if leads_out or not all(_below_project(path) for path in own_files(place)):
        raise ArchiveError(
            f"{experiment.name}: field workload, {experiment.workload}, leads out of the project's folder, where a "
            "rebuild would not find it: put the file into the folder, or give its whole path"
        )


def workload_inputs(experiment: Experiment, source: Iterable[str]) -> tuple[dict[str, Path], dict[str, Path]]:
    """As own_inputs: those in the project's folder that are no part of the source, and those that are elsewhere."""
    require_rebuildable(experiment)
    files, known = own_files(place_of(experiment.workload)), set(source)
    if _is_absolute(experiment.workload):
        return {}, {f"{INPUTS}/{str(path).lstrip('/')}": path for path in files}
    names = {str(path.relative_to(Path.cwd().resolve())): path for path in files}
    return {f"{INPUTS}/{name}": path for name, path in names.items() if name not in known}, {}


def _is_absolute(workload: str) -> bool:
    path = place_of(workload).path
    return path is not None and Path(path).is_absolute()


def _below_project(path: Path) -> bool:
    project = Path.cwd().resolve()
    return path.is_relative_to(project) and path.relative_to(project).parts[0] not in NOT_OF_THE_PROJECT
