"""The import graph tells the story of the data flow: a room imports only rooms above it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_tokens.sources import SOURCE_ROOT, module_path, source_files
from ddp_tokens.steps import PROJECT_ROOT
from tests.architecture.code import dotted, modules, trees

# A folder is one room. A new module must be given its place here.
ROOMS = [
    "errors",
    "files",
    "machine",
    "hardware",
    "cgroups",
    "reach",
    "locks",
    "watching",
    "stopping",
    "sources",
    "workload_names",
    "own_work",
    "imported",
    "yaml_files",
    "setting_types",
    "epochs",
    "corpus_settings",
    "training_settings",
    "check_settings",
    "measure_settings",
    "image_settings",
    "objective_settings",
    "strategy_settings",
    "config",
    "config_reading",
    "config_docs",
    "control_settings",
    "world",
    "layout",
    "corpora",
    "other_units",
    "plan",
    "document_plan",
    "sampler",
    "normalization",
    "terms",
    "window_facts",
    "formulas",
    "term_facts",
    "term_formulas",
    "checkpoint_files",
    "identity",
    "checkpoint_contents",
    "start_files",
    "disagreement",
    "progress",
    "rank_log",
    "metrics",
    "training_log",
    "event_files",
    # no torch up to here, nor in what reads and judges files
    "steps",
    "options",
    "machine_facts",
    "rank_failure",
    "script",
    "prepare",
    "slurm",
    "launchers",
    "workflow",
    "checks",
    "judging",
    "listing",
    "environment_tables",
    "guard",
    "exercise",
    "published",
    "summary",
    "figures",
    "scaling_rows",
    "loads",
    "scaling",
    "lesson",
    "scaling_manifest",
    "scaling_figure",
    "step_figure",
    "scaling_further",
    "scaling_results",
    "ring",
    "scaling_prediction",
    "prediction_tables",
    "prediction_figure",
    "prediction_results",
    "report",
    "profile_page",
    "build",
    "acquire",
    "tracked",
    "sweep",
    "new_experiment",
    "clean",
    # with tensors
    "batches",
    "labelled",
    "workloads",
    "term_losses",
    "loading",
    "precision",
    "schedule",
    "determinism",
    "devices",
    "torch_facts",
    "probing",
    "profiling",
    "generators",
    "tensors",
    "quiet",
    "distributed",
    "shared_state",
    "strategies",
    "inputs",
    "term_trial",
    "workload_trial",
    "agreement",
    "window",
    "objectives",
    "window_trace",
    "term_reference",
    "reference",
    "gradients",
    "samples",
    "evaluation",
    "checkpoint_fit",
    "optimizer_state",
    "sharded_parts",
    "checkpoint",
    "start",
    "working",
    "run_files",
    "trainer",
    "telling",
    "train",
    "all_reduce_times",
    "measured_loop",
    "step_parts",
    "accuracy_times",
    "all_reduce_sweep",
    "measure",
    "controls",
    "audit",
    "trainers",
    "archive",
    "launch",
    "spawn",
    "fixed_hosts",
    "hosts",
    "faults",
    "dual_rank",
    "dual",
    "check_environment",
    "cli",
]


def room_of(module):
    """ddp_tokens.corpora.lock is in corpora; the package's own __init__ is in no room."""
    return module.split(".")[1] if "." in module else None


def imports_of(tree):
    """Modules of this package that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute: sources.py reads only those"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("ddp_tokens."):
                yield name if module_path(name) else name.rpartition(".")[0]


@pytest.mark.parametrize("module", modules())
def test_every_module_has_its_place(module):
    assert room_of(module) in (*ROOMS, None), f"{module} stands in no room of ROOMS"


def test_no_room_is_empty():
    assert {room_of(module) for module in modules()} - {None} == set(ROOMS)


@pytest.mark.parametrize("module", modules())
def test_a_room_imports_only_rooms_above_it(module):
    own = room_of(module)
    for imported in imports_of(trees()[module]):
        other = room_of(imported)
        if other not in (own, None):
            assert ROOMS.index(other) < ROOMS.index(own), f"{module} imports {imported}, which stands below it"


def test_the_rule_can_be_broken():
    """The injected fault: a plan that imports the trainer is noticed."""
    [imported] = imports_of(ast.parse("from ddp_tokens.trainer import train"))
    assert imported == "ddp_tokens.trainer"
    assert ROOMS.index(room_of(imported)) > ROOMS.index("plan")


FORBIDDEN_TO_CHECKS = (
    "trainer",
    "train",
    "all_reduce_times",
    "measured_loop",
    "step_parts",
    "accuracy_times",
    "all_reduce_sweep",
    "measure",
    "distributed",
    "shared_state",
    "strategies",
    "inputs",
    "agreement",
    "window",
    "window_trace",
    "checkpoint",
    "start",
    "controls",
    "audit",
    "trainers",
    "launch",
    "spawn",
    "torch_facts",
    "probing",
    "dual_rank",
    "dual",
)


@pytest.mark.parametrize("module", [name for name in modules() if room_of(name) == "checks"])
def test_checks_read_files_and_never_train(module):
    """Not even through a module in between."""
    for path in source_files(module_path(module)):
        assert path.relative_to(SOURCE_ROOT / "ddp_tokens").parts[0].removesuffix(".py") not in FORBIDDEN_TO_CHECKS
        assert "torch" not in top_level_packages(path), path


def top_level_packages(path):
    """First names of what a file imports when it is imported itself, not inside a function."""
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            yield from node.module.split(".")


# The package imports its function, and torch, when it is called.
OF_AUDITS = [
    "ddp_tokens.audit",
    "ddp_tokens.audit.meanings",
    "ddp_tokens.audit.judging",
    "ddp_tokens.audit.seeing",
    "ddp_tokens.audit.report",
]
WITHOUT_TORCH = [
    *OF_AUDITS,
    "ddp_tokens.workflow",
    "ddp_tokens.slurm",
    "ddp_tokens.prepare",
    "ddp_tokens.steps",
    "ddp_tokens.options",
    "ddp_tokens.script",
    "ddp_tokens.guard",
    "ddp_tokens.disagreement",
    "ddp_tokens.rank_failure",
    "ddp_tokens.rank_log",
    "ddp_tokens.metrics",
    "ddp_tokens.training_log",
    "ddp_tokens.event_files",
    "ddp_tokens.exercise",
    "ddp_tokens.judging",
    "ddp_tokens.published",
    "ddp_tokens.summary",
    "ddp_tokens.figures",
    "ddp_tokens.scaling",
    "ddp_tokens.scaling_manifest",
    "ddp_tokens.scaling_figure",
    "ddp_tokens.step_figure",
    "ddp_tokens.scaling_further",
    "ddp_tokens.scaling_results",
    "ddp_tokens.prediction_results",
    "ddp_tokens.report",
    "ddp_tokens.profile_page",
    "ddp_tokens.build",
    "ddp_tokens.acquire",
    "ddp_tokens.clean",
    "ddp_tokens.new_experiment",
    "ddp_tokens.cli",
    "ddp_tokens.cgroups",
    "ddp_tokens.machine_facts",
    "ddp_tokens.environment_tables",
    "ddp_tokens.check_environment",
    "ddp_tokens.controls.resume_cases",
    "ddp_tokens.controls.table",
    "ddp_tokens.controls.page",
    "ddp_tokens.controls.figure",
    "ddp_tokens.trainers.cases",
    "ddp_tokens.trainers.run",
    *(name for name in modules() if room_of(name) == "archive"),
    *(name for name in modules() if room_of(name) == "trainers" and name != "ddp_tokens.trainers.windows"),
    *(name for name in modules() if room_of(name) == "checks"),
]


def loads_torch(*imported):
    code = f"import sys, {', '.join(imported)}; sys.exit('torch' in sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_no_torch_is_imported_where_none_is_needed():
    """It would cost seconds in each process. All at once: when this fails, the next test says which one it is."""
    result = loads_torch(*WITHOUT_TORCH)
    assert result.returncode == 0, result.stderr
    assert loads_torch("ddp_tokens.tensors").returncode == 1  # the measurement sees torch where it is


# They import what they need when they are called, torch included: check-environment in processes of its own.
IMPORT_WHEN_CALLED = ("ddp_tokens.cli", "ddp_tokens.check_environment", *OF_AUDITS)


@pytest.mark.parametrize("module", [name for name in WITHOUT_TORCH if name not in IMPORT_WHEN_CALLED])
def test_no_file_behind_it_imports_torch(module):
    for path in source_files(module_path(module)):
        assert "torch" not in top_level_packages(path), path


@pytest.mark.parametrize("module", OF_AUDITS)
def test_no_file_of_an_audit_that_judges_or_reports_imports_torch(module):
    """Nor does what it imports itself, but for what the package imports when it is called."""
    path = module_path(module)
    imported = {name for name in imports_of(trees()[module]) if module != "ddp_tokens.audit"}
    assert "torch" not in top_level_packages(path), path
    assert not {name for name in imported if room_of(name) == "audit"} - set(OF_AUDITS)
    for name in imported - set(OF_AUDITS):
        for behind in source_files(module_path(name)):
            assert "torch" not in top_level_packages(behind), behind


TENSOR_SCRIPTS = ("environment", "reference", "evaluate", "control_cases")
SCRIPTS = sorted((PROJECT_ROOT / "workflow_scripts").glob("*.py"))


def test_only_what_loads_torch_is_submitted_to_a_cluster():
    """A queue takes longer than a step without tensors. A rule is local where the Snakefile's `localrules` names it."""
    rules = "\n".join(path.read_text() for path in (PROJECT_ROOT / "rules").glob("*.smk"))
    bodies = re.findall(r"^rule (\w+):\n(.*?)(?=^rule |\Z)", rules, flags=re.MULTILINE | re.DOTALL)
    launcher = re.compile(r"launch\b.* -m ddp_tokens|-m ddp_tokens\.trainers\.run\b", flags=re.DOTALL)
    starts_ranks = {name for name, body in bodies if launcher.search(body)}
    local = (PROJECT_ROOT / "Snakefile").read_text().split("localrules:")[1].replace(",", " ").split()
    assert {name for name, _ in bodies} - set(local) == starts_ranks | set(TENSOR_SCRIPTS)
    assert starts_ranks >= {"gradients", "interrupt", "continuous", "resume", "scaling", "audit_run"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_only_scripts_with_tensors_load_torch(script):
    uses_torch = any("torch" in top_level_packages(path) for path in source_files(script))
    assert uses_torch == (script.stem in TENSOR_SCRIPTS)


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "torch.load",
    "torch.save",
    "yaml.load",
    "yaml.unsafe_load",
    "numpy.load",
    "numpy.save",
}


def dangers_in(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ({alias.name.split(".")[0] for alias in node.names} & FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from ({node.module.split(".")[0]} & FORBIDDEN_MODULES) | (names & FORBIDDEN_CALLS)
        elif isinstance(node, (ast.Attribute, ast.Name)) and dotted(node) in FORBIDDEN_CALLS:
            yield dotted(node)


@pytest.mark.parametrize("path", [*sorted(SOURCE_ROOT.rglob("*.py")), *SCRIPTS], ids=lambda path: Path(path).stem)
def test_no_file_can_run_what_it_reads(path):
    assert list(dangers_in(ast.parse(path.read_bytes()))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import save",
        "eval('1')",
    ],
)
def test_a_danger_is_noticed(code):
    assert list(dangers_in(ast.parse(code)))


def test_evaluation_mode_is_no_danger():
    assert list(dangers_in(ast.parse("model.eval()\nsafetensors.torch.save({})"))) == []
