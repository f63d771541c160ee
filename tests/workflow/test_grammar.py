"""Another kind of work through the same rules: a language model, AdamW, shards by index; and the scaling."""

import json

import pandas
import pytest
from safetensors.numpy import load_file

from tests.workflow.projects import build, copy_project, digests, rules_to_run
from tests.workflow.test_rebuild import verdicts

TINY_GRAMMAR = """\
seed: 35000
corpus: {kind: verb_grammar, train: 64, validation: 8, test: 12}
workload: causal_lm
model: {width: 16, layers: 1, heads: 2, feed_forward: 32, dropout: 0.1}
optimizer: {kind: adamw, lr: 0.003}
steps: 4
interrupt_at: 2
batch: 2
accumulation: 2
sharding: by_index
scaling: {repeats: 2, windows: 2}
"""
ASKED_FOR = [
    "seed",
    "lab",
    "launcher",
    "backend",
    "world_size",
    "model_params",
    "steps",
    "allreduce_p50_ms",
    "allreduce_p95_ms",
    "tokens_per_sec_1proc",
    "tokens_per_sec_2proc",
    "byte_equivalent",
    "lesson_notes",
    "machine",
]
MANIFEST = "results/tiny/scaling/manifest.json"
PREDICTION = "results/tiny/scaling/prediction.json"


@pytest.fixture(scope="module")
def grammar(tmp_path_factory):
    """Built, but for the scaling. Tests leave it as they found it."""
    project = copy_project(tmp_path_factory.mktemp("grammar") / "project", TINY_GRAMMAR)
    build(project, "results/tiny/gate.txt")
    return project


@pytest.fixture(scope="module")
def measured(grammar):
    before = digests(grammar / "results/tiny")
    build(grammar, PREDICTION)
    after = digests(grammar / "results/tiny")
    return {"project": grammar, "before": before, "after": after, "at": grammar / "results/tiny/scaling"}


def read(project, name):
    return json.loads((project / "results/tiny" / name).read_text())


def test_everything_that_is_proven_for_labels_is_proven_for_the_next_word(grammar):
    for case, verdict in verdicts(grammar, "gradient_parity").items():
        assert verdict["outcome"] == ("fail" if case.startswith("mean_of_means") else "pass"), case
        assert len(set(verdict["observed"]["units_per_rank"])) == 2, "equal counts would tell nothing"
    for check in ("loss", "window", "resume", "replicas", "checkpoints", "zero_window", "evaluation"):
        assert {verdict["outcome"] for verdict in verdicts(grammar, check).values()} == {"pass"}
    resume = verdicts(grammar, "resume")
    assert resume["weights_moved"]["observed"]["max_abs_difference"] > 0
    assert resume["parameters"]["observed"]["max_abs_difference"] == 0


def test_a_row_of_n_tokens_supervises_one_less(grammar):
    rows = [json.loads(line) for line in (grammar / "results/tiny/corpus/rows.jsonl").read_text().splitlines()]
    counts = read(grammar, "corpus/lock.json")["counts"]
    for split in ("train", "validation", "test"):
        of_split = [row for row in rows if row["split"] == split]
        assert counts[split]["supervised"] == counts[split]["tokens"] - len(of_split)
        assert counts[split]["tokens"] == sum(len(row["tokens"]) for row in of_split)
    history = (grammar / "results/tiny/runs/continuous/history.jsonl").read_text().splitlines()
    length = {row["id"]: len(row["tokens"]) for row in rows}
    plan = read(grammar, "plan.json")["plan"]
    for window, record in zip(plan, map(json.loads, history), strict=True):
        drawn = [row_id for of_rank in window for microbatch in of_rank for row_id in microbatch]
        assert record["units"] == sum(length[row_id] - 1 for row_id in drawn)


def test_rank_r_draws_only_from_rows_whose_index_modulo_the_world_size_is_r(grammar):
    for window in read(grammar, "plan.json")["plan"]:
        for rank, microbatches in enumerate(window):
            indices = {int(row_id.removeprefix("train-")) % 2 for ids in microbatches for row_id in ids}
            assert indices == {rank}
    log = (grammar / "results/tiny/logs/prepare.log").read_text()
    first = [line.rpartition("first ")[2] for line in log.splitlines() if line.startswith("rank ")]
    assert len(first) == len(set(first)) == 2


def test_the_tied_weight_is_in_every_file_once(grammar):
    """Embedding and head are one parameter of vocabulary x 16."""
    vocabulary = len(read(grammar, "corpus/lock.json")["vocabulary"])
    parity = verdicts(grammar, "gradient_parity")["token_mean.native.first"]["observed"]["values"]
    for name in ("initial.safetensors", "runs/resume/step-0004/model.safetensors"):
        tensors = load_file(grammar / "results/tiny" / name)
        assert [tensor.shape for tensor in tensors.values()].count((vocabulary, 16)) == 1
        assert sum(tensor.size for tensor in tensors.values()) == parity


def test_the_model_writes_sentences_and_the_report_shows_them(grammar):
    evaluation = read(grammar, "evaluation.json")
    page = (grammar / "results/tiny/report/scores.html").read_text()
    assert evaluation["samples"] != evaluation["samples_at_start"]
    assert all(text in page for text in evaluation["samples"][:8])
    assert "Of 12 sentences, the grammar could have made" in page
    assert f"{evaluation['test']['perplexity']:.3g}" in page
    assert "published run" not in page


def test_the_manifest_holds_every_field_that_was_asked_for(measured):
    manifest = read(measured["project"], "scaling/manifest.json")
    assert list(manifest)[: len(ASKED_FOR)] == ASKED_FOR
    told = {"seed": 35000, "lab": "01-ddp-on-cpu", "launcher": "fork", "backend": "gloo", "world_size": 2, "steps": 4}
    assert {name: manifest[name] for name in told} == told
    assert manifest["byte_equivalent"] is True
    assert {"cpu", "cores", "torch", "threads"} <= set(manifest["machine"])
    assert all(manifest[name] > 0 for name in ("tokens_per_sec_1proc", "tokens_per_sec_2proc", "allreduce_p50_ms"))
    runs = [json.loads(line) for line in (measured["at"] / "runs.jsonl").read_text().splitlines()]
    speeds = [run["units"] / run["seconds"] for run in runs if (run["scaling"], run["processes"]) == ("strong", 2)]
    assert len(speeds) == 2
    assert manifest["tokens_per_sec_2proc"] == pytest.approx(
        sum(speeds) / 2, rel=5e-6
    )  # the median of two, in six digits


def test_the_table_has_a_row_for_each_number_of_processes_and_kind(measured):
    table = pandas.read_csv(measured["at"] / "scaling.csv")
    assert set(zip(table["scaling"], table["processes"], strict=True)) == {
        (scaling, processes) for scaling in ("strong", "weak") for processes in (1, 2, 4)
    }


def test_the_figure_is_there_for_print_and_for_screens(measured):
    assert (measured["at"] / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (measured["at"] / "scaling.svg").read_text()


def test_the_prediction_stands_beside_what_was_measured_and_reruns_by_itself(measured):
    prediction = read(measured["project"], "scaling/prediction.json")
    assert prediction["costs"]["position_ms"] > 0
    assert prediction["networks"]["measured"]["latency_us"] > 0
    assert {(each["scaling"], each["processes"]) for each in prediction["validation"]} == {
        (scaling, processes) for scaling in ("strong", "weak") for processes in (1, 2, 4)
    }
    assert max(each["ranks"] for each in prediction["predictions"]) == 1024
    assert (measured["at"] / "prediction.png").read_bytes().startswith(b"\x89PNG")
    assert "Predicted against measured" in (measured["project"] / "results/tiny/logs/predict.log").read_text()
    assert rules_to_run(measured["project"], PREDICTION) == set()
    assert rules_to_run(measured["project"], PREDICTION, "--config", "network={latency_us: 5}") == {"predict"}


def test_measuring_changes_no_result_and_no_result_needs_it(measured):
    assert {name: measured["after"][name] for name in measured["before"]} == measured["before"]
    assert rules_to_run(measured["project"], MANIFEST) == set()
    assert "scaling" not in rules_to_run(measured["project"], "--forceall")


def test_any_experiment_can_be_measured(tmp_path):
    project = copy_project(tmp_path / "project")
    assert rules_to_run(project, MANIFEST) == {"prepare", "reference", "scaling"}
