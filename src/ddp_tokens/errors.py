"""Every error that a user can meet. Each message names the file, field, rank or id, and what to do.

UserError
├── ConfigError            a setting is unknown, of the wrong type, or contradicts another
├── CorpusError            a row, or the corpus against its lock
├── PlanError              the plan cannot be made, or does not belong to this experiment
├── NormalizationError     a denominator that is not positive
│   └── EmptyWindowError   no supervised unit on any rank in a window
├── WorkloadError          a kind of work lacks a function, raises, or sums over other units than the corpus counts
├── LoadingError           a process that makes batches ahead has died, or gives none
├── LaunchError            ranks were started in another way than the experiment says
├── CheckpointError        a checkpoint is missing, incomplete, altered, or of another experiment
├── RankFailedError        another rank failed or does not go on, so a collective of this one could not end
├── DivergedError          the loss or the gradient's norm of an update is not a number, or too large for float16
├── UnprovenGradientError  training was asked for although a verdict is not as expected
├── CleanError             files cannot be deleted: something is at work, or git does not say what it tracks
├── ArchiveError           an archive is damaged, unsafe, altered, or of a newer format; or cannot be made or rebuilt
├── AuditError             a training loop cannot be audited as asked, or its gradient is not that of the objective
├── GateError              the chain is done and an outcome is not the expected one
└── EvidenceError          a file that a check or a figure reads is missing or malformed
"""

PREPARE_AGAIN = (
    "prepare again (build the experiment's target with `--forcerun prepare`, or by hand `ddp_tokens.cli prepare`), or "
    "go back to what was prepared"
)


class UserError(Exception):
    """One sentence for the user; entry points print it and exit with code 2."""


class ConfigError(UserError):
    pass


class CorpusError(UserError):
    pass


class PlanError(UserError):
    pass


class NormalizationError(UserError):
    pass


class EmptyWindowError(NormalizationError):
    pass


class WorkloadError(UserError):
    """`theirs`: the traceback of what a user's own file raised, to be shown above the sentence."""

    def __init__(self, message: str, theirs: str = "") -> None:
        super().__init__(message)
        self.theirs = theirs


class LoadingError(UserError):
    pass


class LaunchError(UserError):
    pass


class CheckpointError(UserError):
    pass


class RankFailedError(UserError):
    """`rank`: the one that failed first."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class DivergedError(UserError):
    pass


class UnprovenGradientError(UserError):
    pass


class GateError(UserError):
    pass


class ArchiveError(UserError):
    pass


class AuditError(UserError):
    pass


class CleanError(UserError):
    pass


class EvidenceError(UserError):
    pass
