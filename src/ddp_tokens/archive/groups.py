"""The files of a run by the part of the chain that makes them, whatever the experiment is called."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from ddp_tokens.archive.layout import CONTROLS, RESULTS, results_of

# As the chain makes them; a group that is not here comes last, by name.
ORDER = (
    "config",
    "corpus",
    "plan",
    "initial",
    "reference",
    "gradients",
    "window",
    "zero_window",
    "runs",
    "checks",
    "evaluation",
    "figures",
    "summary",
    CONTROLS,
)


def short_name(path: str, experiment: str) -> str:
    """results/minimum/plan.json is plan.json; what belongs to the controls keeps their name in front."""
    return path.removeprefix(f"{results_of(experiment)}/").removeprefix(f"{RESULTS}/")


def group_of(name: str) -> str:
    """Of a short name: its folder, or the name of the file itself without what tells its format."""
    first, *rest = PurePosixPath(name).parts
    return first if rest else first.partition(".")[0]


def in_order(groups: Iterable[str]) -> list[str]:
    return sorted(set(groups), key=lambda group: (ORDER.index(group) if group in ORDER else len(ORDER), group))
