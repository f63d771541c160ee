"""Two runs side by side: the document that all three formats print."""

from dataclasses import replace

import pytest

from ddp_tokens.archive.comparison import Side, compare, differences, flat
from ddp_tokens.archive.groups import group_of, in_order, short_name
from ddp_tokens.archive.recorded import RecordedVerdict
from tests.unit.archive.archives import verdict


def judged(check="resume", case="parameters", outcome="pass", expected="pass", diagnosis=(), **observed):
    fields = verdict(check, case, outcome, expected, **observed) | {"diagnosis": tuple(diagnosis)}
    return RecordedVerdict(**fields)


BEFORE = Side(
    name="a.zip",
    experiment="tiny",
    comparison_digest="a" * 64,
    as_expected=True,
    settings={"seed": 1, "optimizer": {"kind": "sgd", "lr": 0.1}},
    verdicts=(judged(error=1e-8, tolerance=2e-8), judged("loss", "global_mean")),
    evaluation={"test": {"loss": 1.5, "accuracy": 0.5}, "checkpoint": "results/tiny/runs/continuous/step-0004"},
    controls="2 of 2",
    control_verdicts=(judged("window", "lost", "fail", "fail", ["lost"], error=3.0),),
    files={"plan.json": "1", "runs/resume/history.jsonl": "2", "controls/cases/plan.json": "3"},
    machine={"cores": 2, "memory_bytes": 10, "gpus": [{"name": "H", "free_bytes": 1}], "torch": {"threads": 1}},
    imported={"python": "3.11.7", "torch": "2.13.0"},
    source={"commit": "c1", "dirty": False},
)
NOTHING_DIFFERS = {"settings": [], "verdicts": [], "numbers": [], "environment": [], "source": []}


def compared(**changes):
    return compare(BEFORE, replace(BEFORE, **changes))


def test_a_run_and_itself():
    document = compare(BEFORE, BEFORE)
    assert {name: document[name] for name in NOTHING_DIFFERS} == NOTHING_DIFFERS
    assert document["same_results"]
    assert document["same_experiment"]
    assert document["controls"] == {"before": "2 of 2", "after": "2 of 2", "verdicts": [], "numbers": []}
    assert [folder["identical"] for folder in document["files"]["folders"]] == [1, 1, 1]
    assert document["scores"] == [
        {"split": "test", "name": "loss", "before": 1.5, "after": 1.5},
        {"split": "test", "name": "accuracy", "before": 0.5, "after": 0.5},
    ]


def test_settings_are_named_by_their_path():
    document = compared(settings={"seed": 1, "optimizer": {"kind": "adamw", "lr": 0.1, "eps": None}})
    assert document["settings"] == [
        {"name": "optimizer.kind", "before": "sgd", "after": "adamw"},
        {"name": "optimizer.eps", "after": None},
    ]


def test_a_value_of_null_is_not_one_that_is_absent():
    assert differences({"a": None}, {"a": None}) == []
    assert differences({"a": None}, {}) == [{"name": "a", "before": None}]


def test_verdicts_that_differ_and_that_only_one_has():
    other = (judged(outcome="fail", diagnosis=["optimizer_lost"], error=1e-8, tolerance=2e-8), judged("window", "one"))
    before = {"outcome": "pass", "expected": "pass", "diagnosis": []}
    assert compared(verdicts=other)["verdicts"] == [
        {
            "check": "resume",
            "case": "parameters",
            "before": before,
            "after": {"outcome": "fail", "expected": "pass", "diagnosis": ["optimizer_lost"]},
        },
        {"check": "loss", "case": "global_mean", "before": before},
        {"check": "window", "case": "one", "after": before},
    ]


def test_numbers_of_cases_that_both_judge():
    other = (judged(error=3e-8, tolerance=2e-8, power=5.0), judged("window", "one", error=0))
    assert compared(verdicts=other)["numbers"] == [
        {"check": "resume", "case": "parameters", "name": "error", "before": 1e-8, "after": 3e-8},
        {"check": "resume", "case": "parameters", "name": "power", "after": 5.0},
    ]


def test_scores_of_a_split_that_only_one_scored():
    scores = compared(evaluation={"test": {"loss": 1.0}, "validation": {"perplexity": 2.0}, "samples": []})["scores"]
    assert scores == [
        {"split": "validation", "name": "perplexity", "after": 2.0},
        {"split": "test", "name": "loss", "before": 1.5, "after": 1.0},
        {"split": "test", "name": "accuracy", "before": 0.5},
    ]


def test_controls():
    document = compared(controls=None, control_verdicts=())["controls"]
    assert (document["before"], document["after"]) == ("2 of 2", None)
    assert [one["case"] for one in document["verdicts"]] == ["lost"]
    changed = compared(control_verdicts=(judged("window", "lost", "fail", "fail", ["lost"], error=4.0),))["controls"]
    assert changed["verdicts"] == []
    assert changed["numbers"] == [{"check": "window", "case": "lost", "name": "error", "before": 3.0, "after": 4.0}]


def test_files():
    after = {"plan.json": "9", "runs/resume/history.jsonl": "2", "figures/tokens.png": "4"}
    files = compared(files=after)["files"]
    counts = {folder["folder"]: list(folder.values())[1:] for folder in files["folders"]}
    assert counts == {
        "plan": [0, 1, 0, 0],
        "runs": [1, 0, 0, 0],
        "figures": [0, 0, 0, 1],
        "controls": [0, 0, 1, 0],
    }
    assert list(counts) == ["plan", "runs", "figures", "controls"]
    assert (files["differing"], files["only_before"], files["only_after"]) == (
        ["plan.json"],
        ["controls/cases/plan.json"],
        ["figures/tokens.png"],
    )


def test_of_a_machine_what_varies_anyway_is_left_aside():
    machine = {
        "host": "other",
        "cores": 4,
        "memory_bytes": 10,
        "memory_available_bytes": 3,
        "memory_left_in_group_bytes": 4,
        "disk_free_bytes": 5,
        "gpus": [{"name": "H", "free_bytes": 2}, {"name": "H", "uuid": "u"}],
        "torch": {"threads": 1, "said": "x"},
        "dual": {"processes": []},
        "packages": {},
        "results": "elsewhere",
    }
    assert compared(machine=machine, imported={"python": "3.12.0", "torch": "2.13.0"})["environment"] == [
        {"name": "python", "before": "3.11.7", "after": "3.12.0"},
        {"name": "cores", "before": 2, "after": 4},
        {"name": "gpus.1.name", "after": "H"},
    ]


def test_source():
    assert compared(source={"commit": "c2", "dirty": True})["source"] == [
        {"name": "commit", "before": "c1", "after": "c2"},
        {"name": "dirty", "before": False, "after": True},
    ]


def test_two_experiments():
    document = compared(experiment="other", comparison_digest="b" * 64)
    assert not document["same_experiment"]
    assert not document["same_results"]


def test_lists_are_values_unless_they_hold_mappings():
    assert flat({"a": {"b": [1, 2], "c": {}}, "d": [{"e": 1}]}) == {"a.b": [1, 2], "a.c": {}, "d.0.e": 1}


@pytest.mark.parametrize(
    ("path", "name", "group"),
    [
        ("results/minimum/plan.json", "plan.json", "plan"),
        ("results/minimum/corpus/rows.jsonl", "corpus/rows.jsonl", "corpus"),
        ("results/controls/cases/a/plan.json", "controls/cases/a/plan.json", "controls"),
        ("results/minimum/summary.csv", "summary.csv", "summary"),
    ],
)
def test_the_group_of_a_file(path, name, group):
    assert short_name(path, "minimum") == name
    assert group_of(name) == group


def test_groups_stand_as_the_chain_makes_them():
    assert in_order(["figures", "own", "controls", "corpus", "config", "corpus"]) == [
        "config",
        "corpus",
        "figures",
        "controls",
        "own",
    ]
