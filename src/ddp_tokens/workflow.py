"""What the Snakefile asks of the project while it is parsed. No torch."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ddp_tokens.config import Experiment, OwnImages, OwnRows
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.control_settings import require_suitable
from ddp_tokens.corpora import own_images, own_sources
from ddp_tokens.errors import ConfigError, CorpusError, LaunchError
from ddp_tokens.files import to_json, write_text
from ddp_tokens.launchers import shell_command
from ddp_tokens.layout import ENVIRONMENT, Layout, checkpoint_name
from ddp_tokens.locks import holders, lock_alone
from ddp_tokens.prepare import require_preparable
from ddp_tokens.slurm import (
    launch_on_hosts,
    require_engine,
    resources_of_environment,
    resources_of_one_process,
    resources_of_ranks,
    resources_to_measure,
)
from ddp_tokens.steps import settings_document

CONFIG_FOLDER = Path("config")
RESULTS = "results"
SETTINGS_FOLDER = Path(".snakemake/settings")
LOCK = Path(".snakemake/ddp-tokens.lock")
ARCHIVE_LIMIT = "archive_limit_mib"
NOT_OVERRIDES = ("experiments", ARCHIVE_LIMIT)
CONTROLS, ARCHIVE, AUDIT, AUDITED = "controls", "archive", "audit", "minimum"  # trainers are audited on its windows
EVERY_EXPERIMENT = ("all", "report_items", ARCHIVE, AUDIT)  # the rules for which all of them are read
CONTROL_WORLD_SIZES = (1, 2, 3, 4)
RANKS_MAY_ASK = ("gpu", "cpus_per_task", "nodes", "tasks", "mpi", "gres", "tasks_per_gpu")
Resource = Callable[[Any], int | str | None]


class Experiments:
    """The experiments of one workflow, each read once: its YAML file with the overrides of the workflow's config."""

    def __init__(self, config: Mapping[str, Any], targets: Collection[str] = ()) -> None:
        """Reads what `targets` need, paths and rules: every experiment, unless each is a path below results/NAME.

        Here and not when a rule asks, since Snakemake swallows an error in an input function where outputs exist.
        Raises ConfigError when an experiment that is to be built is not valid.
        """
        names = config.get("experiments") or []
        if not isinstance(names, list):
            raise ConfigError(f"config/config.yaml: field 'experiments' must be a list, [{names}], not {names!r}")
        self.names: list[str] = names
        self._overrides = {name: value for name, value in config.items() if name not in NOT_OVERRIDES}
        self._read_so_far: dict[str, Experiment] = {}
        self._lock: IO[str] | None = None
        if not self.names:
            raise ConfigError("config/config.yaml: field 'experiments' names no experiment to build")
        for name in {CONTROLS, ARCHIVE, AUDIT}.intersection(self.names):
            raise ConfigError(f"config/config.yaml: '{name}' is no experiment: `snakemake {name}` builds them")
        require_suitable(self.get(CONTROLS))
        named = named_experiments(targets)
        if not named:
            self._read_all()
        for name in (*named, *{AUDIT}.intersection(targets)):
            self.get(name)

    def _read_all(self) -> None:
        for name in self.names:
            try:
                self.get(name)
            except ConfigError as error:
                raise ConfigError(f"{error}{self._hint(name)}") from None

    def _hint(self, failing: str) -> str:
        """What to do where the overrides, and not the file, are wrong for one experiment and fit another."""
        if not self._is_valid(failing, {}):
            return ""
        fitting = next((name for name in self.names if self._is_valid(name, self._overrides)), None)
        target = f"{RESULTS}/{fitting}/gate.txt"
        return f"; to build one experiment only, name its target, such as {target}" if fitting else ""

    def _is_valid(self, name: str, overrides: Mapping[str, Any]) -> bool:
        try:
            self._read(name, overrides)
        except ConfigError:
            return False
        return True

    def get(self, name: str) -> Experiment:
        name = AUDITED if name == AUDIT else name  # which has no settings of its own
        if name not in self._read_so_far:
            self._read_so_far[name] = self._read(name, {} if name == CONTROLS else self._overrides)
        return self._read_so_far[name]

    @staticmethod
    def _read(name: str, overrides: Mapping[str, Any]) -> Experiment:
        path = CONFIG_FOLDER / f"{name}.yaml"
        experiment = load_experiment(path, overrides)
        if experiment.name != name:
            raise ConfigError(
                f"{path}: field 'name' says {experiment.name}, but its results go to results/{name}: leave it out, "
                f"or copy the file to config/{experiment.name}.yaml"
            )
        return experiment

    def settings_file(self, name: str, step: str) -> str:
        """A file with what a step may read; its name holds its digest, so another content is another input.

        A parameter of the rule would do, but Snakemake imports pandas to compare parameters, and prints both in full.
        """
        return file_by_content(name, step, settings_document(self.get(name), step))

    def source_of_rows(self, name: str) -> list[str]:
        """The user's own file: an input of prepare. For a folder, a list of its files: its time tells of no change."""
        corpus = self.get(name).corpus
        if isinstance(corpus, OwnRows | OwnImages) and Path(corpus.path).is_dir():
            of, what = (own_images, "images") if isinstance(corpus, OwnImages) else (own_sources, "rows")
            try:
                return [file_by_content(name, what, to_json(of.stamps(Path(corpus.path))))]
            except CorpusError:  # which require_ready will say
                return []
        return [corpus.path] if isinstance(corpus, OwnRows | OwnImages) else []

    def launch(self, name: str) -> str:
        """The beginning of a command that starts the experiment's ranks, on this host or on as many as `nodes` says."""
        experiment = self.get(name)
        return launch_on_hosts(experiment) if experiment.nodes > 1 else self._launch(name, experiment.world_size)

    def launch_to_measure(self, name: str) -> str:
        """The same for the rule `measure`, which starts as many ranks on the CPU as the most that it measures."""
        return self._launch(name, max(self.get(name).measured_processes))

    def _launch(self, name: str, ranks: int) -> str:
        return shell_command(self.get(name).resolved_launcher, ranks)

    def threads(self, name: str) -> int:
        """Cores that the ranks of one run keep busy: half of their threads.

        Ranks wait for the one with the longest sequences, so two runs side by side fill the cores that one leaves idle.
        """
        experiment = self.get(name)
        return max(1, experiment.world_size * experiment.threads_per_rank // 2)

    def interrupted_checkpoint(self, name: str, run: str) -> str:
        return f"{run}/{checkpoint_name(self.get(name).interrupt_at)}"

    def guard(self, run: str, check: str, ancient: Callable[[str], str]) -> Callable[[Any], str]:
        """The verdicts of a check as an input that only guards, by Snakemake's `ancient`: when they are made again, the
        run is not.

        Snakemake does not ask for a job's own reasons to run below a job that must run, and does not go through an
        `ancient` input: so where the run is out of date, it is an input like others.
        """

        def verdicts(wildcards: Any) -> str:
            path = f"{RESULTS}/{wildcards.experiment}/checks/{check}.json"
            return path if self.is_out_of_date(wildcards.experiment, run) else ancient(path)

        return verdicts

    def is_out_of_date(self, name: str, run: str) -> bool:
        """As Snakemake would say of a run: it, or what it is made from, is not there, or is newer."""
        at = Layout(Path(RESULTS) / name)
        made_from = [at.root / "settings" / f"{run}.json", at.rows, at.lock, at.plan, at.initial]
        if run == "resume":
            made_from.append(_stamp(at.run("interrupt")))
        files = [_stamp(at.run(run)), *made_from]
        return not all(path.exists() for path in files) or any(_time(path) > _time(files[0]) for path in made_from)

    def forget_unfinished(self, made: Iterable[str], concluded: Iterable[str]) -> None:
        """Remove what was concluded earlier of an experiment where something is missing from which it was. For paths
        that hold {experiment}: of each that was read; otherwise of the controls, or of the audit.

        For the end of a failed build: Snakemake has removed what the failed job would have made anew, and would take
        what lies below for up to date.
        """
        made, concluded = list(made), list(concluded)
        for name in [name for name in self._read_so_far if name != CONTROLS]:
            if not all(Path(path.format(experiment=name)).exists() for path in made):
                for path in concluded:
                    Path(path.format(experiment=name)).unlink(missing_ok=True)

    def resources_of_ranks(self) -> dict[str, Resource]:
        """For the `resources:` of a rule that starts ranks; likewise the next three."""
        return self._resources(RANKS_MAY_ASK, resources_of_ranks)

    def resources_of_environment(self) -> dict[str, Resource]:
        return self._resources(("gpu", "cpus_per_task", "nodes"), resources_of_environment)

    def resources_of_one_process(self) -> dict[str, Resource]:
        return self._resources(("gpu", "nodes"), resources_of_one_process)

    def resources_to_measure(self) -> dict[str, Resource]:
        return self._resources(("cpus_per_task", "slurm_extra"), resources_to_measure)

    def _resources(
        self, names: Iterable[str], of: Callable[[Experiment], Mapping[str, int | str]]
    ) -> dict[str, Resource]:
        """Resource -> what a job has of it. Snakemake leaves out what is None."""

        def asking(resource: str) -> Resource:
            return lambda wildcards: of(self.get(wildcards.experiment)).get(resource)

        return {name: asking(name) for name in names}

    def require_alone(self) -> None:
        """Hold this folder until the process ends. Raises LaunchError when another Snakemake holds it.

        Snakemake's own lock outlives a killed process and asks for --unlock; the profile switches it off.
        """
        self._lock = lock_alone(LOCK)
        if self._lock is None:
            raise LaunchError(f"another snakemake builds in this folder, {holders(LOCK)}: wait until it has ended")

    def require_ready(self, is_submitted: bool = False, targets: Collection[str] = ()) -> None:
        """Refuse what can't work before the first job touches a file, but not where `targets` are only of the rule that
        tells what is wrong. `is_submitted`: jobs with tensors run elsewhere.

        Raises CorpusError or PlanError for rows that prepare would refuse, LaunchError when an experiment needs other
        hosts or more GPUs than torch sees, which a process of its own asks torch.
        """
        if {PurePosixPath(target).name for target in targets} == {ENVIRONMENT}:
            return
        for experiment in self._read_so_far.values():
            require_engine(experiment, is_submitted)
            require_preparable(experiment)
        needed = max(map(needed_gpus, self._read_so_far.values()))
        if not is_submitted and needed and (seen := visible_gpus()) < needed:
            raise LaunchError(
                f"device cuda needs {needed} GPU{'s' if needed > 1 else ''} (one per rank) and torch sees {seen}: "
                "lower world_size, or set device to cpu"
            )


def file_by_content(name: str, what: str, document: str) -> str:
    digest = hashlib.sha256(document.encode()).hexdigest()[:16]
    path = SETTINGS_FOLDER / name / f"{what}.{digest}.json"
    if not path.is_file():
        write_text(path, document)
    return str(path)


def _stamp(run: Path) -> Path:
    """By whose time Snakemake judges a folder."""
    return run / ".snakemake_timestamp"


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns


def named_experiments(targets: Collection[str]) -> list[str]:
    """The NAME of each target, where all are paths below results/NAME, or results/archive/NAME.zip; none where one may
    need every experiment.
    """
    paths = [PurePosixPath(os.path.normpath(target)).parts for target in targets]
    if not all(len(path) > 2 and path[0] == RESULTS for path in paths):
        return []
    return sorted({PurePosixPath(path[2]).stem if path[1] == ARCHIVE else path[1] for path in paths})


def command_line(arguments: Sequence[str]) -> list[str]:
    """What follows `snakemake` or `python -m snakemake` in sys.argv; nothing where another program called Snakemake."""
    program = Path(arguments[0])
    is_snakemake = program.name == "snakemake" or program.parts[-2:] == ("snakemake", "__main__.py")
    return list(arguments[1:]) if is_snakemake else []


def targets_of(asked: Collection[str], moved: Collection[str], jobs: Collection[Mapping[str, str]]) -> list[str]:
    """What one call of Snakemake is to make.

    `asked` are its targets. What --forcerun, --until and --prioritize name is `moved`: Snakemake takes files of it as
    targets too, and rules without wildcards, of which EVERY_EXPERIMENT count. A job in a process of its own parses the
    Snakefile again; it has no targets, but `jobs`, the wildcards of each, and needs their experiment only.
    """
    if jobs:
        return [f"{RESULTS}/{wildcards.get('experiment', CONTROLS)}/job" for wildcards in jobs]
    if not asked:
        return []
    return [*asked, *(name for name in moved if "/" in name or name in EVERY_EXPERIMENT)]


def needed_gpus(experiment: Experiment) -> int:
    """On each host."""
    return experiment.resolved_gpus_per_node


def put_this_python_first(environment: MutableMapping[str, str]) -> None:
    """Jobs say `python` and `torchrun`: the ones beside this process's own, also when no environment is active."""
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"


def visible_gpus() -> int:
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
