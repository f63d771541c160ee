"""What each step of the chain may read: its settings, its source files and the lock file.

A step receives exactly the fields listed here and no others, so a field that is read but not listed is an error,
and a changed field, source file or lock reruns the steps that use it. Snakemake sees both through one small file per
step, results/EXP/settings/STEP.json: content decides, not the time of the last edit.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from ddp_tokens.config import Experiment
from ddp_tokens.files import read_json, sha256_of_json, to_json
from ddp_tokens.sources import SOURCE_ROOT, source_files
from ddp_tokens.workload_names import files_of

PROJECT_ROOT = SOURCE_ROOT.parent
LOCK_FILE = PROJECT_ROOT / "envs" / "requirements.lock"
ALL_FIELDS = tuple(Experiment.model_fields)


@dataclass(frozen=True)
class Step:
    """`entry`: the file that runs, below the project's root. `fields`: settings that it may read, besides the name.
    `others`: files that it runs in processes of their own.
    """

    entry: str
    fields: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


PLAN_FIELDS = ("seed", "corpus", "steps", "batch", "accumulation", "world_size", "sharding", "drop_last")
OBJECTIVE_FIELDS = ("unit", "class_weights", "label_smoothing")
MODEL_FIELDS = ("workload", "model", "device", "threads_per_rank")
RANK_FIELDS = ("world_size", "backend", "launcher", "timeout_s")
UPDATE_FIELDS = ("strategy", "optimizer", "schedule", "use_amp", "amp_dtype", "augmentation", "workers")
TRAIN_FIELDS = tuple(
    dict.fromkeys((*PLAN_FIELDS, *OBJECTIVE_FIELDS, *MODEL_FIELDS, *RANK_FIELDS, *UPDATE_FIELDS, "train_anyway"))
)
TOLD_FIELDS = ("log_interval", "tensorboard", "profile")
RUN_FIELDS = (*TRAIN_FIELDS, *TOLD_FIELDS, "epochs", "checkpoint_every", "save_every", "keep")


def _script(name: str, *fields: str) -> Step:
    return Step(f"workflow_scripts/{name}.py", fields)


ENVIRONMENT_FIELDS = ("device", "nodes", "gpus_per_node", "threads_per_rank", "workers", "keep")

STEPS = {
    "environment": _script(
        "environment", *RANK_FIELDS, *ENVIRONMENT_FIELDS, "corpus", "batch", "accumulation", "optimizer"
    ),
    "prepare": _script("prepare", *PLAN_FIELDS, *OBJECTIVE_FIELDS),
    "reference": _script("reference", "seed", *MODEL_FIELDS),
    "check_loss": _script("check_loss"),
    "gradients": Step("src/ddp_tokens/gradients.py", (*MODEL_FIELDS, *RANK_FIELDS, "strategy")),
    "check_parity": _script("check_parity", "tolerances", "model", "use_amp"),
    "check_window": _script("check_window", "world_size"),
    "check_zero_window": _script("check_zero_window"),
    "interrupt": Step("src/ddp_tokens/train.py", (*RUN_FIELDS, "interrupt_at")),
    "continuous": Step("src/ddp_tokens/train.py", RUN_FIELDS),
    "resume": Step("src/ddp_tokens/train.py", (*RUN_FIELDS, "interrupt_at")),
    "check_resume": _script("check_resume", "steps", "interrupt_at"),
    "check_replicas": _script("check_replicas"),
    "check_checkpoints": _script("check_checkpoints"),
    "evaluate": _script("evaluate", *MODEL_FIELDS, "seed", "batch", "steps"),
    "check_evaluation": _script("check_evaluation"),
    "exercise": _script("exercise", "exercise"),
    "scaling": Step("src/ddp_tokens/measure.py", (*TRAIN_FIELDS, "scaling")),
    "predict": _script("predict", *PLAN_FIELDS, "network"),
    "figure": _script("figure", "interrupt_at", "tolerances"),
    "summary": _script("summary", *ALL_FIELDS),
    "gate": _script("gate"),
    "pack": _script("pack", *ALL_FIELDS),
    "control_cases": _script("control_cases", *TRAIN_FIELDS, "interrupt_at"),
    "control_ranks": Step("src/ddp_tokens/controls/ranks.py", (*TRAIN_FIELDS, "interrupt_at")),
    "control_table": _script("control_table", *TRAIN_FIELDS, "interrupt_at", "tolerances"),
    "control_gate": _script("control_gate"),
    # A trainer's own script is an input of its run only.
    "audit_run": Step(
        "src/ddp_tokens/trainers/run.py", TRAIN_FIELDS, ("examples/shared.py", "src/ddp_tokens/audit/__init__.py")
    ),
    "audit_table": _script("audit_table"),
    "audit_gate": _script("audit_gate"),
}


def view(experiment: Experiment, step: str) -> Experiment:
    """The experiment as a step sees it; reading any other field raises AttributeError."""
    return _only({name: getattr(experiment, name) for name in _fields(step)})


def settings_document(experiment: Experiment, step: str) -> str:
    """The content of settings/STEP.json: what the step may read, and what it is made of."""
    values = experiment.model_dump(mode="json", include=set(_fields(step)))
    code = code_of(experiment, step)
    return to_json({"step": step, "settings": values, "code": code, "lock_sha256": _digest(LOCK_FILE)})


def code_of(experiment: Experiment, step: str) -> dict[str, str]:
    """Source file -> SHA-256, of every file that the step runs, with this experiment's kind of work."""
    entries = [PROJECT_ROOT / name for name in (STEPS[step].entry, *STEPS[step].others)]
    found = {name: digest for entry in entries for name, digest in _digests_of_sources(entry)}
    return found | (_digests_of_work(experiment) if "workload" in _fields(step) else {})


def code_of_training(experiment: Experiment) -> str:
    """SHA-256 over the sources that training uses, wherever the project lies: the same by hand and by the rules."""
    entry = PROJECT_ROOT / STEPS["continuous"].entry
    return sha256_of_json(dict(_digests_of_sources(entry)) | _digests_of_work(experiment))


def read_settings(path: Path | str) -> Experiment:
    """The view of a step, from its settings file."""
    values = read_json(path)["settings"]
    return _only({name: _field_type(name).validate_python(value) for name, value in values.items()})


def dump(experiment: Experiment) -> dict[str, Any]:
    """The fields that a view holds, as plain JSON values."""
    return {
        name: value.model_dump(mode="json") if hasattr(value, "model_dump") else _plain(value)
        for name, value in sorted(experiment.__dict__.items())
    }


def _plain(value: Any) -> Any:
    """Of a field: as it is when it has been read back from JSON."""
    return list(value) if isinstance(value, tuple) else value


def _field_type(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, Experiment.model_fields[name].annotation))


def _fields(step: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("name", *STEPS[step].fields)))


def _only(values: dict[str, Any]) -> Experiment:
    experiment = Experiment.model_construct(**values)
    for name in set(experiment.__dict__) - set(values):
        del experiment.__dict__[name]
    return experiment


def _digests_of_work(experiment: Experiment) -> dict[str, str]:
    """With a user's own file and those beside it that it imports."""
    return {name: _digest(path) for name, path in files_of(experiment.workload).items()}


@cache
def _digests_of_sources(entry: Path) -> tuple[tuple[str, str], ...]:
    return tuple((str(path.relative_to(PROJECT_ROOT)), _digest(path)) for path in source_files(entry))


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
