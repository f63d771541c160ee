"""Nothing trains on an unproven gradient."""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from ddp_tokens.checks.verdict import read_verdicts
from ddp_tokens.errors import UnprovenGradientError
from ddp_tokens.files import sha256


def require_proven(verdict_files: Iterable[Path], train_anyway: bool) -> list[str]:
    """Raises UnprovenGradientError unless every verdict there is is as expected, or `train_anyway` is set.

    Returns what a reader must be told all the same. A missing verdict is told, not refused: by hand, training may
    come first, while the rules have both verdicts as inputs.
    """
    files = list(verdict_files)
    digest_of = cache(sha256)
    problems = [problem for path in files if path.is_file() and (problem := _problem(path, digest_of))]
    if problems and not train_anyway:
        raise UnprovenGradientError(f"{problems[0]}: training is refused; set train_anyway to train all the same")
    return problems + [
        f"{path} does not exist: the gradient of this run is not proven" for path in files if not path.is_file()
    ]


def _problem(path: Path, digest_of: Callable[[str], str]) -> str | None:
    """One sentence on why this verdict file proves nothing: empty, not as expected, or judged on other files."""
    _, verdicts = read_verdicts(path)
    if not verdicts:
        return f"{path} holds no verdict, check again"
    for verdict in verdicts:
        if verdict.problem:
            return f"{path}: case '{verdict.case}' {verdict.problem}"
        for evidence, digest in verdict.evidence.items():
            if not Path(evidence).is_file() or digest_of(evidence) != digest:
                return f"{path}: case '{verdict.case}' was judged on another {evidence}, check again"
    return None
