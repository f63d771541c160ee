"""Every row of the table of trainers: which script makes it, what it must end as, how to make it right. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """`name`: a file name. `package`: what is imported and whose version is stated, as named on PyPI. `arguments`: of
    `examples/SCRIPT`. `expected`: an outcome; `diagnosis`: the names that a failure must have. `remedy`: a sentence
    that says how to make this trainer right, and the name of the case that does it; empty where it is right.
    """

    name: str
    trainer: str
    package: str
    setting: str
    script: str
    arguments: tuple[str, ...]
    expected: str
    diagnosis: tuple[str, ...] = ()
    remedy: str = ""
    made_right_by: str = ""


CASES: tuple[Case, ...] = ()
