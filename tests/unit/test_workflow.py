"""What the Snakefile asks while it is parsed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddp_tokens import workflow
from ddp_tokens.errors import ConfigError, CorpusError, LaunchError, PlanError
from ddp_tokens.workflow import (
    Experiments,
    command_line,
    named_experiments,
    needed_gpus,
    put_this_python_first,
    targets_of,
    visible_gpus,
)
from tests.helpers import PROJECT, record, write_lines
from tests.unit.corpora.image_data import pictures, write_folder


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """An empty project: defaults are valid, so an empty file is an experiment."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "tiny.yaml").touch()
    shutil.copy(PROJECT / "config" / "controls.yaml", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config"


def test_overrides_reach_every_experiment(configs):
    experiments = Experiments({"experiments": ["tiny"], "world_size": "4", "optimizer": {"lr": "1e-3"}})
    assert experiments.get("tiny").world_size == 4
    assert experiments.get("tiny").optimizer.lr == 0.001
    assert experiments.get("tiny").optimizer.momentum == 0.9


def test_an_override_that_is_wrong_is_not_blamed_on_the_file(configs):
    with pytest.raises(ConfigError, match=r"tiny\.yaml, as overridden on the command line: unknown field 'bacth'"):
        Experiments({"experiments": ["tiny"], "bacth": 3})


@pytest.fixture
def two_kinds(configs):
    """`tiny` is trained with SGD, whose momentum AdamW, the kind of `second`, does not have."""
    (configs / "second.yaml").write_text("optimizer: {kind: adamw}\n")
    return {"experiments": ["second", "tiny"], "optimizer": {"momentum": 0.5}}


HINT = "; to build one experiment only, name its target, such as results/tiny/gate.txt"


@pytest.mark.parametrize("targets", [(), ("all",), ("results/tiny/gate.txt", "all"), ("results/report.zip",)])
def test_an_override_must_fit_every_experiment_that_may_be_built(two_kinds, targets):
    with pytest.raises(ConfigError, match=r"second\.yaml.*'optimizer\.momentum' belongs to kind sgd") as refusal:
        Experiments(two_kinds, targets)
    assert str(refusal.value).endswith(HINT)


def test_a_named_target_limits_an_override_to_its_experiment(two_kinds):
    experiments = Experiments(two_kinds, ["results/tiny/gate.txt", "results/controls/gate.txt"])
    assert experiments.names == ["second", "tiny"]
    assert experiments.get("tiny").optimizer.momentum == 0.5
    experiments.require_ready()
    with pytest.raises(ConfigError, match="belongs to kind sgd"):
        experiments.get("second")


def test_a_named_target_is_refused_at_once_and_without_a_hint(two_kinds):
    with pytest.raises(ConfigError, match="belongs to kind sgd") as refusal:
        Experiments(two_kinds, ["results/second/gate.txt", "results/tiny/gate.txt"])
    assert "to build one experiment only" not in str(refusal.value)


def test_a_target_outside_of_the_list_is_read_too(two_kinds, configs):
    (configs / "mine.yaml").write_text("steps: none\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: field 'steps'"):
        Experiments(two_kinds, ["results/mine/gate.txt"])


def test_the_hint_names_only_what_the_override_fits(two_kinds, configs):
    (configs / "third.yaml").write_text("optimizer: {kind: adamw}\n")
    with pytest.raises(ConfigError) as refusal:
        Experiments({**two_kinds, "experiments": ["second", "third", "tiny"]})
    assert str(refusal.value).endswith(HINT)


@pytest.mark.parametrize(
    ("names", "overrides"),
    [
        (["second"], {"optimizer": {"momentum": 0.5}}),  # nothing else is in the list
        (["second", "tiny"], {"bacth": 4}),  # fits none
        (["tiny", "broken"], {}),  # the file is wrong, whatever the overrides
        (["tiny", "broken"], {"batch": 3}),
    ],
)
def test_no_hint_where_another_target_would_not_help(two_kinds, configs, names, overrides):
    (configs / "broken.yaml").write_text("stesp: 4\n")
    with pytest.raises(ConfigError) as refusal:
        Experiments({"experiments": names, **overrides})
    assert "to build one experiment only" not in str(refusal.value)


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        ((), []),
        (("all",), []),
        (("results/tiny/gate.txt",), ["tiny"]),
        (("./results//tiny/../second/runs/resume", "results/tiny/corpus/lock.json"), ["second", "tiny"]),
        (("results/tiny/gate.txt", "controls"), []),
        (("results/tiny",), []),
        (("other/tiny/gate.txt",), []),
    ],
)
def test_the_experiments_that_targets_name(targets, names):
    assert named_experiments(targets) == names


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("bin/snakemake", ["all"]),
        ("lib/snakemake/__main__.py", ["all"]),
        ("snakemake/bin/pytest", []),
        ("lib/pytest/__main__.py", []),
    ],
)
def test_only_the_command_line_of_snakemake_names_targets(program, arguments):
    assert command_line([program, "all"]) == arguments


GATE = "results/tiny/gate.txt"


@pytest.mark.parametrize(
    ("asked", "moved", "jobs", "targets"),
    [
        ((), (), (), []),
        ((), ("results/second/gate.txt",), (), []),  # beside the default target, all
        ((GATE,), ("prepare",), (), [GATE]),
        ((GATE,), ("results/second/gate.txt",), (), [GATE, "results/second/gate.txt"]),
        ((GATE,), ("all",), (), [GATE, "all"]),
        ((GATE,), ("audit",), (), [GATE, "audit"]),
        ((), (), ({"experiment": "tiny"},), ["results/tiny/job"]),
        ((), (), ({"world_size": "2"},), ["results/controls/job"]),
    ],
)
def test_what_a_call_is_to_make(asked, moved, jobs, targets):
    assert targets_of(asked, moved, jobs) == targets


HOLD = """
import os, time
from pathlib import Path
from ddp_tokens.workflow import Experiments
experiments = Experiments({"experiments": ["tiny"]})
experiments.require_alone()
print("held", flush=True)
time.sleep(600)
"""


def test_one_snakemake_at_a_time_and_a_killed_one_leaves_no_lock(configs):
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            experiments = Experiments({"experiments": ["tiny"]})
            with pytest.raises(
                LaunchError, match=f"another snakemake builds in this folder, process {process.pid}: wait"
            ):
                experiments.require_alone()
        finally:
            process.kill()
            process.wait()
    experiments.require_alone()


def test_nothing_to_build_is_an_error(configs):
    with pytest.raises(ConfigError, match=r"config/config\.yaml: field 'experiments' names no experiment"):
        Experiments({"experiments": []})


def test_a_name_that_is_not_the_files_is_refused(configs):
    (configs / "tiny.yaml").write_text("name: other\n")
    with pytest.raises(ConfigError, match="leave it out, or copy the file"):
        Experiments({"experiments": ["tiny"]})


@pytest.mark.parametrize(
    ("settings", "command", "gpus"),
    [
        ({}, "python -m ddp_tokens.launch --nproc-per-node=2", 0),
        ({"launcher": "spawn"}, "python -m ddp_tokens.spawn --nproc-per-node=2", 0),
        ({"launcher": "spawn", "device": "cuda", "world_size": 3}, "python -m ddp_tokens.spawn --nproc-per-node=3", 3),
        ({"launcher": "torchrun"}, "torchrun --standalone --local-addr=localhost --nnodes=1 --nproc-per-node=2", 0),
        (
            {"device": "cuda", "world_size": 3},
            "torchrun --standalone --local-addr=localhost --nnodes=1 --nproc-per-node=3",
            3,
        ),
        (
            {"device": "cuda", "backend": "gloo"},
            "torchrun --standalone --local-addr=localhost --nnodes=1 --nproc-per-node=2",
            1,
        ),
    ],
)
def test_launcher_and_gpus_follow_the_device(configs, settings, command, gpus):
    experiments = Experiments({"experiments": ["tiny"], **settings})
    assert experiments.launch("tiny") == command
    assert needed_gpus(experiments.get("tiny")) == gpus


def test_ranks_of_several_hosts_are_started_there_and_measured_here(configs):
    experiments = Experiments({"experiments": ["tiny"], "nodes": 2, "world_size": 4})
    assert experiments.launch("tiny").startswith("srun --nodes=2 ")
    assert experiments.launch_to_measure("tiny") == "python -m ddp_tokens.launch --nproc-per-node=4"
    assert experiments.launch("controls") == "python -m ddp_tokens.launch --nproc-per-node=2"


def test_rules_ask_for_nothing_where_their_experiment_has_none_of_it(configs):
    """Snakemake leaves out a resource that is None; for the plugin, `mpi` in any form makes a job an MPI job."""
    wildcards = SimpleNamespace(experiment="tiny")

    def asked(**settings):
        experiments = Experiments({"experiments": ["tiny"], **settings})
        return {name: of(wildcards) for name, of in experiments.resources_of_ranks().items()}

    nothing = dict.fromkeys(["nodes", "tasks", "mpi", "gres", "tasks_per_gpu"])
    assert asked() == {"cpus_per_task": 2, "gpu": 0} | nothing
    assert {name for name, value in asked(nodes=2, device="cuda").items() if value is None} == {"gpu"}


def test_several_hosts_are_refused_where_jobs_run_here(configs):
    experiments = Experiments({"experiments": ["tiny"], "nodes": 2})
    with pytest.raises(LaunchError, match="nodes is 2, and this call starts ranks on one host only"):
        experiments.require_ready()
    experiments.require_ready(is_submitted=True)


def test_a_host_that_only_submits_jobs_needs_no_gpu(configs, monkeypatch):
    monkeypatch.setattr(workflow, "visible_gpus", lambda: pytest.fail("torch was asked"))
    Experiments({"experiments": ["tiny"], "device": "cuda", "world_size": 64}).require_ready(is_submitted=True)


def test_too_few_gpus_are_refused_with_both_numbers(configs):
    seen = visible_gpus()
    experiments = Experiments({"experiments": ["tiny"], "device": "cuda", "world_size": seen + 1})
    with pytest.raises(LaunchError, match=rf"needs {seen + 1} GPUs? \(one per rank\) and torch sees {seen}"):
        experiments.require_ready()


def test_what_tells_why_a_rebuild_cannot_work_is_not_refused_by_itself(configs, monkeypatch):
    """Rows that are not there, several hosts, and more GPUs than any machine has."""
    monkeypatch.setattr(workflow, "visible_gpus", lambda: 0)
    settings = {"device": "cuda", "world_size": 64, "corpus": {"path": "gone.jsonl"}}
    experiments = Experiments({"experiments": ["tiny"], **settings})
    told = ["results/tiny/environment.json"]
    experiments.require_ready(targets=told)
    for targets in ([], ["all"], [*told, "results/tiny/gate.txt"]):
        with pytest.raises(CorpusError):
            experiments.require_ready(targets=targets)
    Experiments({"experiments": ["tiny"], "nodes": 2}).require_ready(targets=told)


def test_jobs_find_the_python_that_runs_snakemake():
    environment = {"PATH": "/usr/bin"}
    put_this_python_first(environment)
    assert environment["PATH"].split(":") == [str(Path(sys.executable).parent), "/usr/bin"]


@pytest.mark.parametrize(("ranks", "threads", "cores"), [(1, 1, 1), (2, 1, 1), (4, 1, 2), (2, 4, 4)])
def test_a_run_keeps_half_of_its_threads_busy(configs, ranks, threads, cores):
    experiments = Experiments({"experiments": ["tiny"], "world_size": ranks, "threads_per_rank": threads})
    assert experiments.threads("tiny") == cores


def test_the_checkpoint_to_resume_from(configs):
    experiments = Experiments({"experiments": ["tiny"], "interrupt_at": 7})
    assert experiments.interrupted_checkpoint("tiny", "runs/interrupt") == "runs/interrupt/step-0007"


def test_own_rows_are_an_input_of_prepare(configs):
    (configs / "mine.yaml").write_text("corpus: {path: rows.jsonl}")
    experiments = Experiments({"experiments": ["tiny", "mine"]})
    assert [experiments.source_of_rows(name) for name in experiments.names] == [[], ["rows.jsonl"]]


def test_a_folder_of_rows_is_an_input_by_what_it_holds(configs):
    folder = configs.parent / "rows"
    folder.mkdir()
    (configs / "mine.yaml").write_text("corpus: {path: rows}")
    experiments = Experiments({"experiments": ["mine"]})
    assert experiments.source_of_rows("mine") == []  # which prepare would refuse
    write_lines(folder / "a.jsonl", record("a"))
    [before] = experiments.source_of_rows("mine")
    assert experiments.source_of_rows("mine") == [before]
    write_lines(folder / "a.jsonl", record("longer"))
    [after] = experiments.source_of_rows("mine")
    assert len({before, after, "rows"}) == 3
    assert all(Path(path).is_file() for path in (before, after))


def of_images(path):
    return f"base: tiny.yaml\n{IMAGES}corpus: {{kind: own_images, path: {path}, train: 7, validation: 2, test: 3}}\n"


IMAGES = "workload: images\nmodel: {kind: resnet, stages: [4]}\nbatch: 2\naccumulation: 1\n"


def test_a_file_of_images_is_an_input_of_prepare(configs):
    (configs / "mine.yaml").write_text(of_images("mine.npz"))
    assert Experiments({"experiments": ["mine"]}).source_of_rows("mine") == ["mine.npz"]


def test_a_folder_of_images_is_an_input_by_what_it_holds(configs):
    """An image that is written over does not change the time of its folder, which is all that Snakemake looks at."""
    folder = write_folder(configs.parent / "folder", *pictures())
    (configs / "mine.yaml").write_text(of_images("folder"))
    experiments = Experiments({"experiments": ["mine"]})
    [before] = experiments.source_of_rows("mine")
    assert Path(before).is_file()
    assert experiments.source_of_rows("mine") == [before]
    (folder / "bee" / "005.png").write_text("longer than nothing")
    [after] = experiments.source_of_rows("mine")
    assert after != before


def test_images_that_prepare_would_refuse_are_refused_before_the_first_job(configs):
    (configs / "mine.yaml").write_text(of_images("folder"))
    experiments = Experiments({"experiments": ["mine"]})
    with pytest.raises(CorpusError, match=r"corpus\.path folder does not exist"):
        experiments.require_ready()
    folder = write_folder(configs.parent / "folder", *pictures())
    experiments.require_ready()
    (folder / "bee" / "more").mkdir()
    assert experiments.source_of_rows("mine") == []
    with pytest.raises(CorpusError, match=r"bee/more is no file"):
        experiments.require_ready()


def test_rows_that_prepare_would_refuse_are_refused_before_the_first_job(configs):
    Experiments({"experiments": ["tiny"]}).require_ready()
    with pytest.raises(PlanError, match="accumulation x batch = 2 x 512 = 1024 rows"):
        Experiments({"experiments": ["tiny"], "batch": 512}).require_ready()
    with pytest.raises(CorpusError, match=r"corpus\.path gone\.jsonl cannot be read"):
        Experiments({"experiments": ["tiny"], "corpus": {"path": "gone.jsonl"}}).require_ready()
    too_many = {"kind": "verb_grammar", "train": 100_000}
    with pytest.raises(CorpusError, match="= 100600 sentences, but the grammar makes only 63569 different ones"):
        Experiments({"experiments": ["tiny"], "corpus": too_many}).require_ready()


def test_the_controls_are_no_experiment(configs):
    with pytest.raises(ConfigError, match=r"'controls' is no experiment: `snakemake controls` builds them"):
        Experiments({"experiments": ["tiny", "controls"]})


def test_the_audit_of_trainers_is_no_experiment(configs):
    with pytest.raises(ConfigError, match=r"'audit' is no experiment: `snakemake audit` builds them"):
        Experiments({"experiments": ["tiny", "audit"]})


@pytest.fixture
def minimum(configs):
    (configs / "minimum.yaml").write_text("batch: 5\n")
    (configs / "audit.yaml").write_text("batch: 6\n")  # not read
    return configs / "minimum.yaml"


@pytest.mark.parametrize("targets", [("audit",), ("results/audit/gate.txt",), ("results/tiny/gate.txt", "audit")])
def test_the_audit_has_the_settings_of_the_experiment_that_it_takes_its_windows_from(minimum, targets):
    experiments = Experiments({"experiments": ["tiny"], "seed": 3}, targets)
    audited = experiments.get("audit")
    assert (audited.name, audited.batch, audited.seed) == ("minimum", 5, 3)
    assert audited is experiments.get("minimum")
    minimum.write_text("stesp: 4\n")
    with pytest.raises(ConfigError, match=r"config/minimum\.yaml.*stesp"):
        Experiments({"experiments": ["tiny"]}, targets)


def test_what_the_audit_needs_is_asked_of_no_other_build(configs):
    """Not even where config/minimum.yaml is gone."""
    for targets in ((), ("all",), ("results/tiny/gate.txt",), ("report_items",)):
        Experiments({"experiments": ["tiny"]}, targets)


def test_no_override_reaches_the_controls(configs):
    experiments = Experiments({"experiments": ["tiny"], "batch": 3, "device": "cuda"})
    assert (experiments.get("tiny").batch, experiments.get("tiny").device) == (3, "cuda")
    assert (experiments.get("controls").batch, experiments.get("controls").device) == (2, "cpu")


def test_without_its_settings_no_control_is_believed(configs):
    """Snakemake would take what lies in results/controls for up to date."""
    (configs / "controls.yaml").unlink()
    with pytest.raises(ConfigError, match=r"config/controls\.yaml cannot be read"):
        Experiments({"experiments": ["tiny"]})


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("dropout: 0.1", "dropout: 0.0", "field 'model.dropout' must be above 0"),
        ("momentum: 0.9", "momentum: 0.0", "field 'optimizer.momentum' must be above 0"),
        ("world_size: 2", "world_size: 3", "field 'world_size' must be 2"),
        ("accumulation: 2", "accumulation: 1", "field 'accumulation' must be 2 or more"),
        ("accumulation: 2", "accumulation: 2\nstrategy: zero1", "field 'strategy' must be ddp: what is known"),
        ("interrupt_at: 3", "interrupt_at: 4", "field 'steps' must be 3 or more above interrupt_at"),
        ("max_length: 128", "max_length: 64", "field 'corpus.max_length' must be 128 or more"),
        ("timeout_s: 60", "device: cuda", "field 'device' must be cpu"),
        ("corpus: {", "corpus: {classes: 3, ", "field 'corpus.classes' must be corpus.vocabulary"),
        ("batch: 2", "batch: two", "field 'batch'"),
    ],
)
def test_settings_of_the_controls_that_hide_a_mistake_are_refused(configs, old, new, problem):
    path = configs / "controls.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(problem)) as refusal:
        Experiments({"experiments": ["tiny"]})
    assert "config/controls.yaml" in str(refusal.value)


def test_own_rows_are_nothing_for_the_controls(configs):
    (configs / "controls.yaml").write_text("corpus: {path: rows.jsonl}\n")
    with pytest.raises(ConfigError, match="field 'corpus' must be generated"):
        Experiments({"experiments": ["tiny"]})


def made(*paths, at=1):
    """Files of the time `at`, in seconds."""
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (at, at))


RUN_IS_MADE_FROM = ["settings/resume.json", "corpus/rows.jsonl", "corpus/lock.json", "plan.json", "initial.safetensors"]
STAMPS = ["runs/interrupt/.snakemake_timestamp", "runs/resume/.snakemake_timestamp"]


def test_a_run_is_out_of_date_where_it_or_what_it_is_made_from_is_missing_or_newer(configs):
    experiments, root = Experiments({"experiments": ["tiny"]}), Path("results/tiny")
    needed = [root / name for name in (*RUN_IS_MADE_FROM, STAMPS[0])]
    assert experiments.is_out_of_date("tiny", "resume")
    made(*needed, at=1)
    made(root / STAMPS[1], at=2)
    assert not experiments.is_out_of_date("tiny", "resume")
    for path in needed:
        made(path, at=3)
        assert experiments.is_out_of_date("tiny", "resume"), path
        path.unlink()
        assert experiments.is_out_of_date("tiny", "resume"), path
        made(path, at=1)
    (root / STAMPS[1]).unlink()
    assert experiments.is_out_of_date("tiny", "resume")


def test_the_interrupted_run_is_not_made_from_itself(configs):
    made(*(Path("results/tiny") / name for name in ("settings/interrupt.json", *RUN_IS_MADE_FROM[1:])), at=1)
    made(Path("results/tiny") / STAMPS[0], at=2)
    assert not Experiments({"experiments": ["tiny"]}).is_out_of_date("tiny", "interrupt")


def test_what_was_concluded_from_something_that_is_gone_goes_too(configs):
    (configs / "second.yaml").touch()
    experiments = Experiments({"experiments": ["tiny", "second"]})
    of_all, concluded = "results/{experiment}/evaluation.json", "results/{experiment}/gate.txt"
    names = ("tiny", "second", "controls")
    made("results/tiny/evaluation.json", *(concluded.format(experiment=name) for name in names))
    experiments.forget_unfinished([of_all], [concluded])
    kept = [name for name in names if Path(concluded.format(experiment=name)).exists()]
    assert kept == ["tiny", "controls"], "the controls have no evaluation"
    made("results/controls/cases")
    experiments.forget_unfinished(["results/controls/cases"], ["results/controls/gate.txt"])
    assert Path("results/controls/gate.txt").exists()
    experiments.forget_unfinished(["results/controls/ranks/1"], ["results/controls/gate.txt", "results/controls/gone"])
    assert not Path("results/controls/gate.txt").exists()
