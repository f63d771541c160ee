"""The examples in sub-folders of examples/: each is run as its README says, with fewer updates."""

import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from statistics import multimode

import numpy
import pytest
from safetensors.numpy import load_file

from ddp_tokens.config_reading import load_experiment
from ddp_tokens.layout import FLOAT64, Layout
from ddp_tokens.prepare import prepare
from ddp_tokens.reference import write_references
from tests.workflow.projects import PROJECT, build, copy_project, environment_of

SHORTER = ("--config", "steps=6", "interrupt_at=3", "checkpoint_every=0")
# Name of the experiment -> folder, and the packages that it needs besides.
EXAMPLES = {
    "python_docs": ("python_docs", ["pydoc_data"]),
    "digits_weighted": ("digits", []),
    "hugging_face": ("hugging_face", ["transformers"]),
    "two_terms": ("two_terms", []),
}


def missing(name):
    return [package for package in EXAMPLES[name][1] if find_spec(package) is None]


EACH = [
    pytest.param(name, marks=pytest.mark.skipif(bool(missing(name)), reason=f"needs {', '.join(missing(name))}"))
    for name in EXAMPLES
]


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """A project in which every example whose packages are there has been built. Tests leave it as they found it."""
    project = copy_project(tmp_path_factory.mktemp("examples") / "project")
    targets = []
    for name, (folder, _) in EXAMPLES.items():
        if not missing(name):
            *before, last = commands(folder)
            for command in before:
                call(project, command)
            assert last == ["snakemake", "--cores", "2", f"results/{name}/summary.json"]
            targets.append(last[-1])
    build(project, *SHORTER, "--", *targets)
    return project


def commands(folder):
    """Those that its README shows, without comments."""
    text = (PROJECT / "examples" / folder / "README.md").read_text()
    return [shlex.split(line, comments=True) for line in re.findall(r"^ {4}(.+)$", text, re.MULTILINE)]


def call(project, command):
    program = [sys.executable, *command[1:]] if command[0] == "python" else command
    subprocess.run(program, cwd=project, env=environment_of(project), check=True, timeout=60)


def read(project, name, file):
    return json.loads((project / "results" / name / file).read_text())


@pytest.mark.parametrize("name", EACH)
def test_the_chain_is_as_expected(examples, name):
    summary = read(examples, name, "summary.json")["verdicts"]
    assert [verdict for verdict in summary if not verdict["as_expected"]] == []
    outcomes = {(verdict["check"], verdict["case"]): verdict["outcome"] for verdict in summary}
    for dtype in ("native", "float64"):
        assert outcomes["gradient_parity", f"token_mean.{dtype}.first"] == "pass"
        assert outcomes["gradient_parity", f"mean_of_means.{dtype}.first"] == "fail"
    assert outcomes["resume", "parameters"] == "pass"
    assert read(examples, name, "evaluation.json")["test"]["rows"] > 50


@pytest.mark.parametrize("name", EACH[:1])
def test_paragraphs_of_a_document_are_on_both_ranks_and_it_counts_once(examples, name):
    rows = [json.loads(line) for line in (examples / "data/python_docs.jsonl").read_text().splitlines()]
    document_of = {row["id"]: row["document"] for row in rows}
    plan = read(examples, name, "plan.json")["plan"]
    spread = defaultdict(set)
    for step, window in enumerate(plan):
        for rank, microbatches in enumerate(window):
            for row_id in (row_id for microbatch in microbatches for row_id in microbatch):
                spread[step, document_of[row_id]].add(rank)
    assert sum(ranks == {0, 1} for ranks in spread.values()) > len(plan), "documents lie on both ranks"
    history = [json.loads(line) for line in (examples / f"results/{name}/runs/continuous/history.jsonl").open()]
    documents = [sum(of_step == step for of_step, _ in spread) for step in range(len(plan))]
    assert [record["units"] for record in history] == pytest.approx(documents), "each counts 1"


@pytest.mark.parametrize("name", EACH[:1])
def test_prompts_do_not_count_and_no_document_is_in_two_splits(examples, name):
    made = [json.loads(line) for line in (examples / "data/python_docs.jsonl").read_text().splitlines()]
    prepared = [json.loads(line) for line in (examples / f"results/{name}/corpus/rows.jsonl").open()]
    assert len(made) == len(prepared) > 1000
    for row, kept in zip(made, prepared, strict=True):
        masked, tokens = row["prompt"] - 1, kept["tokens"]
        assert masked > 4
        assert kept["labels"] == [-100] * masked + tokens[masked + 1 :] + [-100]
    splits = defaultdict(set)
    for row in made:
        splits[row["document"]].add(row["split"])
    assert {len(found) for found in splits.values()} == {1}
    assert set.union(*splits.values()) == {"train", "validation", "test"}


def test_class_weights_are_the_inverse_of_how_often_a_digit_occurs_and_change_the_gradient(
    examples, tmp_path, monkeypatch
):
    """The same experiment without them: the reference in float64 is another gradient."""
    labels = numpy.load(examples / "data/digits.npz")["labels"]
    counts = numpy.bincount(labels)
    assert counts[:5].min() > 4 * counts[5:].max()
    weights = read(examples, "digits_weighted", "corpus/lock.json")["objective"]["class_weights"]
    assert weights == pytest.approx(len(labels) / (10 * counts), abs=0.005)
    monkeypatch.chdir(examples)
    plain, at = load_experiment("config/digits_weighted.yaml", {"class_weights": None}), Layout(tmp_path)
    prepare(plain, at.rows, at.lock, at.plan)
    write_references(plain, at)
    here, there = (
        load_file(path)
        for path in (Path("results/digits_weighted/reference/float64.safetensors"), at.reference(FLOAT64))
    )
    head = next(name for name in here if name.endswith("head.weight"))
    assert numpy.linalg.norm(here[head] - there[head]) > 0.1 * numpy.linalg.norm(there[head])


@pytest.mark.parametrize("name", EACH[2:3])
def test_the_embedding_is_the_head_and_both_learn(examples, name):
    """One tensor under the first of its two names, in every file that holds weights or gradients."""
    at = examples / "results" / name
    tied, other = "transformer.wte.weight", "lm_head.weight"
    files = ["initial.safetensors", "reference/float64.safetensors", "runs/resume/step-0006/model.safetensors"]
    found = {file: load_file(at / file) for file in files}
    for tensors in found.values():
        assert any(key.endswith(tied) for key in tensors)
        assert not any(key.endswith(other) for key in tensors)
    start, *_, end = (next(v for k, v in tensors.items() if k.endswith(tied)) for tensors in found.values())
    assert (start != end).any(axis=1).all(), "as head, every word's row gets a gradient"


def test_each_term_has_its_own_denominator_and_its_mistakes_could_be_seen(examples):
    """Rows are counted here as the workload's documentation says it, without its code."""
    lines = (examples / "results/two_terms/corpus/rows.jsonl").read_text().splitlines()
    tokens = {row["id"]: row["tokens"] for row in map(json.loads, lines)}
    plan = read(examples, "two_terms", "plan.json")["plan"]
    history = (examples / "results/two_terms/runs/continuous/history.jsonl").read_text().splitlines()
    for window, record in zip(plan, map(json.loads, history), strict=True):
        rows = [tokens[row_id] for of_rank in window for microbatch in of_rank for row_id in microbatch]
        labels, symbols = record["terms"]["labels"], record["terms"]["most_frequent"]
        assert labels["units"] == sum(map(len, rows))
        assert symbols["units"] == sum(len(multimode(row)) == 1 for row in rows) < len(rows)
        assert record["loss"] == pytest.approx(
            labels["sum"] / labels["units"] + 0.3 * symbols["sum"] / symbols["units"], rel=1e-12
        )
    parity = read(examples, "two_terms", "checks/gradient_parity.json")["verdicts"]
    right = [verdict["observed"] for verdict in parity if verdict["case"].startswith("token_mean.float64")]
    assert len(right) == 2
    for observed in right:
        assert observed["not_seen_here"] == []
        assert all(len(set(of_ranks)) == 2 for of_ranks in observed["units_per_rank"].values())
