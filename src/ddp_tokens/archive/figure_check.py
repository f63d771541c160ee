"""Is each figure there in each form, and does each begin as a file of its form does?"""

from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from ddp_tokens.archive.layout import CONTROLS, results_of

FIGURES = ("gradients", "resume", "tokens")  # of every experiment; it may have more
FORMS = (".pdf", ".png", ".svg")


def figures_in(names: Iterable[str], experiment: str) -> list[str]:
    """Paths without their endings: those every archive must have, and whatever else lies beside them."""
    folder = f"{results_of(experiment)}/figures"
    every = [PurePosixPath(name) for name in names]
    found = {str(path.with_suffix("")) for path in every if str(path.parent) == folder}
    controls = results_of(CONTROLS)
    of_controls = {f"{controls}/{CONTROLS}"} if any(path.is_relative_to(controls) for path in every) else set()
    return sorted({f"{folder}/{name}" for name in FIGURES} | found | of_controls)


def problems_of_figures(figures: Iterable[str], names: Iterable[str], read: Callable[[str], bytes]) -> list[str]:
    """`names`: of all files of the archive."""
    present, problems = set(names), []
    for figure in figures:
        for form in FORMS:
            if figure + form not in present:
                problems.append(f"{figure}{form} is missing")
            elif not _begins_as(form, read(figure + form)):
                problems.append(f"{figure}{form} does not begin as such a file does")
    return problems


def _begins_as(form: str, data: bytes) -> bool:
    if form == ".svg":
        return data.lstrip().startswith(b"<") and b"<svg" in data[:2000]
    return data.startswith({".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-"}[form])
