import re

import pytest
from pydantic import BaseModel

from ddp_tokens.config import Experiment, GeneratedCorpus, OwnRows, Tolerance
from ddp_tokens.config_reading import load_experiment, merge, sections_of
from ddp_tokens.errors import ConfigError
from tests.helpers import PROJECT


@pytest.fixture
def load(tmp_path):
    def load_text(text, overrides=None):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return load_experiment(path, overrides)

    return load_text


def test_an_empty_file_is_the_default_experiment_named_after_it(load):
    assert load("") == Experiment(name="mine")


@pytest.mark.parametrize("path", sorted((PROJECT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_the_example_files_load(path):
    if path.name != "config.yaml":  # which experiments to build: no experiment itself
        assert load_experiment(path).name == path.stem


def test_minimum_is_the_published_setting():
    experiment = load_experiment(PROJECT / "config" / "minimum.yaml")
    assert (experiment.world_size, experiment.accumulation, experiment.batch) == (2, 2, 8)
    assert (experiment.steps, experiment.interrupt_at, experiment.seed) == (100, 50, 17)
    assert experiment.optimizer.momentum == 0.9


WRONG_TYPES_AND_RANGES = {
    "name: a/b": "field 'name'",
    "name: ''": "field 'name'",
    "name: .hidden": "field 'name'",
    "seed: -1": "field 'seed'",
    "corpus: text": "field 'corpus'",
    "corpus: {train: 0}": "field 'corpus.train'",
    "corpus: {validation: -1}": "field 'corpus.validation'",
    "corpus: {test: none}": "field 'corpus.test'",
    "corpus: {vocabulary: 0}": "field 'corpus.vocabulary'",
    "corpus: {classes: 0}": "field 'corpus.classes'",
    "corpus: {min_length: 0}": "field 'corpus.min_length'",
    "corpus: {min_length: 65}": "min_length <= short_max_length < max_length is needed, not 65, 64, 128",
    "corpus: {short_max_length: 128}": "is needed, not 16, 128, 128",
    "corpus: {max_length: long}": "field 'corpus.max_length'",
    "corpus: {path: 5}": "field 'corpus.path'",
    "corpus: {path: rows.jsonl, classes: 0}": "field 'corpus.classes'",
    "workload: Token-Labels": "field 'workload'",
    "model: [1]": "field 'model'",
    "model: {width: 0}": "field 'model.width'",
    "model: {width: 130}": "width 130 is not a multiple of heads 4",
    "model: {layers: 0}": "field 'model.layers'",
    "model: {heads: 3}": "width 128 is not a multiple of heads 3",
    "model: {feed_forward: x}": "field 'model.feed_forward'",
    "model: {dropout: 1}": "field 'model.dropout'",
    "model: {dropout: -0.1}": "field 'model.dropout'",
    "optimizer: {lr: 0}": "field 'optimizer.lr'",
    "optimizer: {lr: fast}": "field 'optimizer.lr'",
    "optimizer: {lr: .nan}": "field 'optimizer.lr'",
    "optimizer: {momentum: 1}": "field 'optimizer.momentum'",
    "optimizer: {clip_norm: 0}": "field 'optimizer.clip_norm'",
    "optimizer: {clip_norm: .inf}": "field 'optimizer.clip_norm'",
    "optimizer: {clip_norm: true}": "field 'optimizer.clip_norm'",
    "steps: 0": "field 'steps'",
    "steps: ten": "field 'steps'",
    "steps: [1]": "field 'steps'",
    "interrupt_at: 0": "field 'interrupt_at'",
    "interrupt_at: 100": "interrupt_at 100 must come before the last update, steps 100",
    "steps: 20": "interrupt_at 50 must come before the last update, steps 20",
    "checkpoint_every: -1": "field 'checkpoint_every'",
    "checkpoint_every: true": "field 'checkpoint_every'",
    "keep: 0": "field 'keep'",
    "batch: 0": "field 'batch'",
    "batch: 2.5": "field 'batch'",
    "accumulation: 0": "field 'accumulation'",
    "world_size: 0": "field 'world_size'",
    "device: gpu": "field 'device'",
    "backend: mpi": "field 'backend'",
    "backend: nccl": "backend nccl needs device cuda",
    "launcher: slurm": "field 'launcher'",
    "{launcher: fork, device: cuda}": "launcher fork is for device cpu",
    "threads_per_rank: 0": "field 'threads_per_rank'",
    "timeout_s: 0": "field 'timeout_s'",
    "tolerances: {native: -1}": "field 'tolerances.native'",
    "tolerances: {float64: {atol: 1.0e-12}}": "field 'tolerances.float64'",
    "tolerances: {power: 0.5}": "field 'tolerances.power'",
    "tolerances: {published: {atol: -1}}": "field 'tolerances.published.atol'",
    "tolerances: {published: {rtol: x}}": "field 'tolerances.published.rtol'",
    "train_anyway: perhaps": "field 'train_anyway'",
    "exercise: {counts_before: [0, 1]}": "field 'exercise.counts_before.0'",
    "exercise: {counts_after: [1]}": "counts_before, counts_after and losses need one entry per rank each",
    "exercise: {losses: [x, 1]}": "field 'exercise.losses.0'",
}


@pytest.mark.parametrize(("text", "problem"), WRONG_TYPES_AND_RANGES.items(), ids=WRONG_TYPES_AND_RANGES.keys())
def test_a_bad_value_is_refused_by_file_and_field(load, text, problem):
    with pytest.raises(ConfigError, match=re.escape(problem)) as refusal:
        load(text)
    assert "mine.yaml: " in str(refusal.value)


def leaves(section, prefix=()):
    """(path, field) of every plain value."""
    for name, field in section.model_fields.items():
        nested = sections_of(field.annotation)
        if not nested:
            yield (*prefix, name), field
        for part in nested:
            yield from leaves(part, (*prefix, name))


def test_no_field_is_left_out_of_the_bad_values(load):
    refused = " ".join([*WRONG_TYPES_AND_RANGES, *WRONG_TYPES_AND_RANGES.values()])
    missing = [".".join(path) for path, _ in leaves(Experiment) if path[-1] not in refused]
    assert missing == []


NUMBERS = sorted(
    {path for path, field in leaves(Experiment) if "int" in str(field.annotation) or field.annotation is float}
)


@pytest.mark.parametrize("path", NUMBERS, ids=".".join)
def test_a_boolean_is_no_number(load, path):
    """YAML's `batch: yes` would be read as 1."""
    value = [True, 1] if path[0] == "exercise" else True
    for name in reversed(path):
        value = {name: value}
    with pytest.raises(ConfigError, match=path[-1]):
        load("", value)


def test_a_boolean_is_no_number_in_own_rows(load):
    with pytest.raises(ConfigError, match="classes"):
        load("corpus: {path: rows.jsonl, classes: true}")


@pytest.mark.parametrize(
    ("text", "field", "suggestion"),
    [
        ("accumulaton: 2", "accumulaton", "accumulation"),
        ("lr: 0.1", "lr", "optimizer.lr"),
        ("optimiser: {lr: 0.1}", "optimiser", "optimizer"),
        ("model: {widht: 8}", "model.widht", "model.width"),
        ("corpus: {vocabluary: 8}", "corpus.vocabluary", "corpus.vocabulary"),
        ("corpus: {path: rows.jsonl, clases: 3}", "corpus.clases", "corpus.classes"),
        ("tolerances: {published: {atoll: 1}}", "tolerances.published.atoll", "tolerances.published.atol"),
    ],
)
def test_a_misspelt_field_is_refused_with_a_suggestion(load, text, field, suggestion):
    with pytest.raises(ConfigError, match=rf"unknown field '{field}', did you mean '{suggestion}'\?; config/README.md"):
        load(text)


def test_an_unknown_workload_is_refused(load):
    with pytest.raises(ConfigError, match=r"workload 'poems' has no file src/ddp_tokens/workloads/poems\.py"):
        load("workload: poems")


def test_an_unknown_field_without_a_near_one_is_refused_too(load):
    with pytest.raises(ConfigError, match=r"unknown field 'xyzzy'; config/README\.md lists every field"):
        load("xyzzy: 1")


def test_a_second_problem_is_counted(load):
    with pytest.raises(ConfigError, match=r"\(and 1 more\)"):
        load("{batch: 0, steps: 0}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"batch: [1", "is not valid YAML"),
        (b"- batch", "must hold fields and values, not list"),
        (b"just text", "must hold fields and values, not str"),
        (b"name: \xff\xfe", "mine.yaml"),
    ],
    ids=["broken", "list", "text", "not UTF-8"],
)
def test_a_file_that_holds_no_fields_is_refused(tmp_path, content, problem):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        load_experiment(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.yaml cannot be read \(No such file or directory\)"):
        load_experiment(tmp_path / "gone.yaml")


def test_a_file_name_that_is_no_experiment_name_is_refused(tmp_path):
    path = tmp_path / "my experiment.yaml"
    path.write_text("")
    with pytest.raises(ConfigError, match="field 'name'"):
        load_experiment(path)


def test_overrides_go_over_the_file_field_by_field(load):
    experiment = load("{batch: 4, optimizer: {lr: 0.5, momentum: 0.1}}", {"optimizer": {"lr": 0.25}, "steps": 60})
    assert (experiment.batch, experiment.steps) == (4, 60)
    assert (experiment.optimizer.lr, experiment.optimizer.momentum) == (0.25, 0.1)


def test_a_part_of_a_tolerance_keeps_the_other_default(load):
    tolerances = load("tolerances: {published: {atol: 1.0e-3}}").tolerances
    assert tolerances.published == Tolerance(atol=1e-3, rtol=1e-4)
    assert (tolerances.float64, tolerances.native, tolerances.power) == (1e-12, 4.0, 3.0)


def test_own_rows_replace_the_generated_corpus_whole(load):
    assert load("corpus: {path: rows.jsonl}").corpus == OwnRows(path="rows.jsonl")
    assert load("corpus: {train: 9}", {"corpus": {"path": "rows.jsonl"}}).corpus == OwnRows(path="rows.jsonl")


def test_an_override_inside_own_rows_keeps_the_path(load):
    """And does not silently turn the user's data into generated data."""
    experiment = load("corpus: {path: rows.jsonl}", {"corpus": {"classes": 5}})
    assert experiment.corpus == OwnRows(path="rows.jsonl", classes=5)


def test_an_override_of_generated_fields_keeps_the_others(load):
    assert load("corpus: {train: 9}", {"corpus": {"classes": 5}}).corpus == GeneratedCorpus(train=9, classes=5)


def test_merge_leaves_its_arguments_alone():
    base, over = {"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}
    assert merge(base, over) == {"a": {"b": 3, "c": 2}}
    assert (base, over) == ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})


@pytest.mark.parametrize(
    ("values", "backend", "launcher"),
    [
        ({}, "gloo", "fork"),
        ({"device": "cuda"}, "nccl", "torchrun"),
        ({"device": "cuda", "backend": "gloo"}, "gloo", "torchrun"),
        ({"launcher": "torchrun"}, "gloo", "torchrun"),
    ],
)
def test_auto_follows_the_device(values, backend, launcher):
    experiment = Experiment(name="x", **values)
    assert (experiment.resolved_backend, experiment.resolved_launcher) == (backend, launcher)


def test_every_field_is_described():
    undescribed = [".".join(path) for path, field in leaves(Experiment) if not field.description]
    assert undescribed == []


def test_an_experiment_cannot_be_changed_by_accident():
    experiment: BaseModel = Experiment(name="x")
    with pytest.raises(ValueError, match="frozen"):
        experiment.batch = 1
