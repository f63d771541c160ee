import json
import os
import shutil
import subprocess
import sys

import pytest

from ddp_tokens.config import Experiment, OwnRows
from ddp_tokens.layout import Layout
from ddp_tokens.sources import source_files
from ddp_tokens.steps import (
    LOCK_FILE,
    PROJECT_ROOT,
    STEPS,
    code_of_training,
    dump,
    read_settings,
    settings_document,
    view,
)
from ddp_tokens.train import run_identity
from tests.helpers import tiny_experiment

EXPERIMENTS = {
    "defaults": Experiment(name="defaults"),
    "tiny": tiny_experiment(),
    "own rows": tiny_experiment(corpus={"path": "rows.jsonl", "classes": 3}),
}


@pytest.mark.parametrize("step", STEPS)
def test_the_entry_of_each_step_exists(step):
    assert (PROJECT_ROOT / STEPS[step].entry).is_file()


@pytest.mark.parametrize("step", STEPS)
def test_each_step_lists_fields_that_exist(step):
    assert set(STEPS[step].fields) <= set(Experiment.model_fields)


@pytest.mark.parametrize("step", STEPS)
def test_a_view_holds_the_listed_fields_and_no_other(step):
    experiment = tiny_experiment()
    seen = view(experiment, step)
    for name in Experiment.model_fields:
        if name == "name" or name in STEPS[step].fields:
            assert getattr(seen, name) == getattr(experiment, name)
        else:
            with pytest.raises(AttributeError, match=name):
                getattr(seen, name)


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS.keys())
@pytest.mark.parametrize("step", STEPS)
def test_a_settings_file_gives_the_view_back(tmp_path, step, experiment):
    path = tmp_path / f"{step}.json"
    path.write_text(settings_document(experiment, step))
    assert read_settings(path).__dict__ == view(experiment, step).__dict__


def test_own_rows_stay_own_rows(tmp_path):
    path = tmp_path / "prepare.json"
    path.write_text(settings_document(EXPERIMENTS["own rows"], "prepare"))
    assert read_settings(path).corpus == OwnRows(path="rows.jsonl", classes=3)


def test_a_dump_is_plain_json():
    experiment = tiny_experiment()
    dumped = dump(view(experiment, "summary"))
    assert json.loads(json.dumps(dumped)) == dumped
    assert dumped == experiment.model_dump(mode="json")


CHANGES = {
    "schedule": {"kind": "cosine", "per": "update"},
    "use_amp": True,
    "amp_dtype": "float16",
    "sharding": "by_index",
    "workers": 2,
    "log_interval": 3,
    "tensorboard": True,
    "profile": True,
    "seed": 3,
    "steps": 5,
    "interrupt_at": 1,
    "batch": 1,
    "world_size": 4,
    "model": {"width": 4, "heads": 2},
    "optimizer": {"lr": 0.5},
    "tolerances": {"native": 5.0},
    "exercise": {"losses": [2.0, 3.0]},
    "train_anyway": True,
    "checkpoint_every": 1,
    "keep": 9,
}


IMAGES = {
    "corpus": {"kind": "images", "train": 21},
    "model": {"kind": "resnet", "stages": [4]},
    "workload": "images",
    "sharding": "by_epoch",
    "steps": 9,
}
CHANGES_OF_IMAGES = {
    "augmentation": "shift",
    "drop_last": True,
    "save_every": 2,
    "schedule": {"kind": "cosine"},
    "corpus": IMAGES["corpus"] | {"noise": 0.5},
    "model": IMAGES["model"] | {"norm": "group", "groups": 2},
}


@pytest.mark.parametrize("field", CHANGES_OF_IMAGES)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_images_changes_with_its_own_fields_only(step, field):
    before, after = tiny_experiment(**IMAGES), tiny_experiment(**(IMAGES | {field: CHANGES_OF_IMAGES[field]}))
    changed = settings_document(before, step) != settings_document(after, step)
    assert changed == (field in STEPS[step].fields)


def test_epochs_are_known_by_the_steps_that_follow_from_them():
    """A run's identity does not depend on whether its 9 updates were asked for as 3 epochs; the run itself knows, since
    on another number of ranks 3 epochs would be other updates, and summary and archive say which.
    """
    of_epochs = {name: value for name, value in IMAGES.items() if name != "steps"} | {"epochs": 3}
    values = {"name": "tiny", "batch": 2, "accumulation": 2, "interrupt_at": 2}
    by_epochs, by_steps = Experiment(**values, **of_epochs), Experiment(**values, **IMAGES)
    assert (by_epochs.steps, by_steps.epochs) == (9, None)
    differing = {step for step in STEPS if settings_document(by_epochs, step) != settings_document(by_steps, step)}
    assert (
        differing
        == {step for step in STEPS if "epochs" in STEPS[step].fields}
        == {*("summary", "pack", "interrupt", "continuous", "resume")}
    )


NO_PART_OF_A_RUN = ["workers", "log_interval", "tensorboard", "profile", "save_every", "checkpoint_every", "keep"]
PARTS_OF_A_RUN = [
    "use_amp",
    "amp_dtype",
    "schedule",
    "augmentation",
    "drop_last",
    "corpus",
    "model",
    "optimizer",
    "seed",
]


def identity_of(at, **changes):
    return run_identity(view(tiny_experiment(**IMAGES | changes), "continuous"), at)


@pytest.fixture
def at(tmp_path):
    at = Layout(tmp_path)
    for path in (at.plan, at.rows, at.initial):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return at


@pytest.mark.parametrize("field", [*NO_PART_OF_A_RUN, *PARTS_OF_A_RUN])
def test_what_makes_a_run_another_run(at, field):
    """Batches are the same, whoever makes them; what is told of a run is no part of it."""
    change = (CHANGES | CHANGES_OF_IMAGES)[field]
    differing = {
        name for name, value in identity_of(at, **{field: change}).items() if value != identity_of(at).get(name)
    }
    assert differing == (set() if field in NO_PART_OF_A_RUN else {field})
    assert field in STEPS["continuous"].fields, "the step knows it"


@pytest.mark.parametrize("field", CHANGES)
@pytest.mark.parametrize("step", ["prepare", "reference", "check_parity", "interrupt", "continuous", "exercise"])
def test_a_step_changes_with_its_own_fields_only(step, field):
    before, after = tiny_experiment(), tiny_experiment(**{field: CHANGES[field]})
    assert getattr(before, field) != getattr(after, field)
    changed = settings_document(before, step) != settings_document(after, step)
    assert changed == (field in STEPS[step].fields)


def test_the_document_names_its_source_files_and_the_lock():
    document = json.loads(settings_document(tiny_experiment(), "reference"))
    assert document["step"] == "reference"
    assert "src/ddp_tokens/workloads/token_labels.py" in document["code"]  # loaded by name, not by an import
    assert "src/ddp_tokens/trainer.py" not in document["code"]
    assert len(document["lock_sha256"]) == 64


def test_a_run_of_a_trainer_depends_on_all_that_the_examples_import():
    """They run in processes of their own; each script itself is an input of its own runs."""
    scripts = sorted((PROJECT_ROOT / "examples").glob("*.py"))
    imported = {path for script in scripts for path in source_files(script)} - set(scripts)
    code = json.loads(settings_document(tiny_experiment(), "audit_run"))["code"]
    assert {str(path.relative_to(PROJECT_ROOT)) for path in imported} <= set(code)
    assert {"examples/shared.py", "src/ddp_tokens/trainers/run.py", "src/ddp_tokens/audit/attach.py"} < set(code)
    assert len(scripts) > 1


# A copy of the project, edited; a fresh process per state, as Snakemake starts one.

COPIED = ("src", "workflow_scripts", "envs")
PROBED = ("prepare", "reference", "check_loss", "interrupt", "exercise")
PROBE = f"""
import json
from ddp_tokens.config import Experiment
from ddp_tokens.steps import PROJECT_ROOT, settings_document
documents = {{step: settings_document(Experiment(name="x"), step) for step in {PROBED}}}
print(json.dumps([str(PROJECT_ROOT), documents]))
"""


def documents_of(project):
    environment = os.environ | {"PYTHONPATH": str(project / "src")}
    command = [sys.executable, "-c", PROBE]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    root, documents = json.loads(output)
    assert root == str(project)
    return documents


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    project = tmp_path_factory.mktemp("project")
    for folder in COPIED:
        shutil.copytree(
            PROJECT_ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    (project / "README.md").write_text("")
    return project, documents_of(project)


EDITS = {
    "README.md": set(),
    "src/ddp_tokens/gradients.py": set(),  # entry of a step that is not among the probed ones
    "src/ddp_tokens/prepare.py": {"prepare"},
    "src/ddp_tokens/corpora/generated.py": {
        "prepare",
        "reference",
        "check_loss",
        "interrupt",
        "exercise",
    },  # the package imports it
    "src/ddp_tokens/normalization.py": {"check_loss", "reference", "interrupt", "exercise"},
    "src/ddp_tokens/workloads/token_labels.py": {"reference", "interrupt"},
    "workflow_scripts/check_loss.py": {"check_loss"},
    "envs/requirements.lock": set(PROBED),
}


@pytest.mark.parametrize("edited", EDITS)
def test_an_edit_reruns_the_steps_that_use_the_file_and_no_other(copied, edited):
    project, before = copied
    path = project / edited
    content = path.read_text()
    path.write_text(content + "# edited\n")
    try:
        after = documents_of(project)
    finally:
        path.write_text(content)
    assert {step for step in PROBED if after[step] != before[step]} == EDITS[edited]


CODE_PROBE = """
from ddp_tokens.config import Experiment
from ddp_tokens.steps import code_of_training, view
print(code_of_training(view(Experiment(name="x"), "resume")))
"""


def code_in(project):
    environment = os.environ | {"PYTHONPATH": str(project / "src")}
    command = [sys.executable, "-c", CODE_PROBE]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("edited", "differs"),
    [
        ("src/ddp_tokens/trainer.py", True),
        ("src/ddp_tokens/workloads/token_labels.py", True),  # loaded by name, not by an import
        ("src/ddp_tokens/gradients.py", False),
        ("workflow_scripts/check_loss.py", False),
    ],
)
def test_the_code_of_training_is_what_training_uses_wherever_it_lies(copied, edited, differs):
    project, _ = copied
    by_hand, by_rules = (code_of_training(view(tiny_experiment(), step)) for step in ("interrupt", "resume"))
    assert by_hand == by_rules == code_in(project)
    path = project / edited
    content = path.read_text()
    path.write_text(content + "# edited\n")
    try:
        assert (code_in(project) != by_hand) == differs
    finally:
        path.write_text(content)


# A workload of the user's own, in a folder outside of the project.

OWN_PROBE = f"""
import json, sys
from ddp_tokens.config import Experiment
from ddp_tokens.steps import code_of_training, settings_document, view
experiment = Experiment(name="x", workload=sys.argv[1])
documents = {{step: settings_document(experiment, step) for step in {PROBED}}}
print(json.dumps([code_of_training(view(experiment, "resume")), documents]))
"""


def with_own_work(workload):
    command = [sys.executable, "-c", OWN_PROBE, workload]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def own_work(folder):
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text("import beside\nfrom ddp_tokens import labelled\nclass Work: ...\n")
    (folder / "beside.py").write_text("")
    (folder / "not_imported.py").write_text("")
    return f"{folder / 'mine.py'}:Work"


@pytest.mark.parametrize(("edited", "differs"), [("mine.py", True), ("beside.py", True), ("not_imported.py", False)])
def test_an_edit_of_ones_own_workload_reruns_the_steps_that_use_it_and_is_another_run(tmp_path, edited, differs):
    workload = own_work(tmp_path / "a")
    code, documents = with_own_work(workload)
    assert {"mine.py", "beside.py", "src/ddp_tokens/labelled.py"} < set(json.loads(documents["reference"])["code"])
    (tmp_path / "a" / edited).write_text((tmp_path / "a" / edited).read_text() + "# edited\n")
    other_code, after = with_own_work(workload)
    assert (code != other_code) == differs
    changed = {step for step in PROBED if after[step] != documents[step]}
    assert changed == ({"reference", "interrupt"} if differs else set())


def test_the_code_of_ones_own_workload_is_the_same_in_another_folder(tmp_path):
    """By its content and its names as seen from the file; where it lies is a setting."""
    (one, _), (other, _) = (with_own_work(own_work(tmp_path / name)) for name in ("a", "b/c"))
    assert one == other
    assert one != code_of_training(view(tiny_experiment(), "resume"))


def test_the_lock_file_is_there():
    assert LOCK_FILE.is_file()
