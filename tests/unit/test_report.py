import re
from dataclasses import asdict, replace

import pytest
import yaml

from ddp_tokens import report
from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.config import GeneratedCorpus, VerbGrammar
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.published import Comparison
from ddp_tokens.summary import summarize
from tests.helpers import PROJECT, tiny_experiment

EVIDENCE = {"results/tiny/b.safetensors": "bb", "results/tiny/a.safetensors": "aa"}


def verdict(case="token_mean.native.first", expected="pass", outcome="pass", first_difference=None, **observed):
    return Verdict(case, expected, outcome, "|ddp - ref| <= 1e-06", observed, EVIDENCE, first_difference)


def control():
    difference = {"ddp": 0.1, "index": [0, 1], "parameter": "head.weight"}
    return verdict("mean_of_means.native.first", "fail", "fail", difference, values=282628, max_abs_error=2.98e-8)


SCORE = {
    "rows": 8,
    "unit": "token",
    "units": 1860,
    "loss": 1.2358608,
    "perplexity": 3.441339,
    "accuracy": 0.5405,
}
WRITTEN = {"samples_at_start": ["The <b> not", "Ran."], "samples": ["She ran.", "Did they go?"]}


def scores_page(summary, corpus=None):
    return report.scores_page(summary, corpus or GeneratedCorpus())


def summary_of(checks, evaluation=None, **settings):
    row = Comparison("Test tokens", "18,231", "20 <b>", "level only")
    return summarize(tiny_experiment(**settings), checks, evaluation or {}, [asdict(row)])


def text_of(page):
    """What a reader sees, without tags and layout."""
    body = page[page.index("<body>") :]
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def pages():
    summary, experiment = summary_of({"gradient_parity": [verdict(), control()]}), tiny_experiment()
    return {
        "verdicts": report.verdicts_page(summary),
        "scores": scores_page(summary_of({}, {"test": SCORE} | WRITTEN)),
        "config": report.config_page(experiment),
        "versions": report.versions_page(experiment),
    }


def test_headline_is_the_first_sentence():
    text = text_of(report.verdicts_page(summary_of({"loss": [verdict()], "gradient_parity": [control()]})))
    assert text.startswith("Verdicts of tiny 2 verdicts in 2 checks, all as expected.")
    assert "not as expected" not in text


def test_control_shows_expectation_outcome_and_mark_side_by_side():
    text = text_of(report.verdicts_page(summary_of({"gradient_parity": [control()]})))
    assert "mean_of_means.native.first control |ddp - ref| &lt;= 1e-06 fail fail ✓ as expected" in text
    assert "values 282,628 max abs error 2.98e-08" in text
    assert "First difference: parameter head.weight, index [0, 1], ddp 0.1" in text


def test_what_decides_stands_before_what_is_reported_beside():
    observed = {"values": 4, "parameter": "w", "tolerance": 1e-6, "error": 0.5, "power": 9.0}
    names = [name for name, _ in report.numbers(observed)]
    assert names == ["error", "tolerance", "power", "values", "parameter"]


def test_diagnosis_is_explained_and_the_expected_one_shown_where_it_differs():
    refused = replace(control(), diagnosis=("stale_count",), expected_diagnosis=("mean_of_means", "one_rank_only"))
    text = text_of(report.verdicts_page(summary_of({"gradient_parity": [refused]})))
    assert "fail mean of means or one rank only fail stale count the window before gave the denominator ✗" in text
    as_expected = replace(refused, expected_diagnosis=("stale_count",))
    assert text_of(report.verdicts_page(summary_of({"loss": [as_expected]}))).count("stale count") == 1


def test_diagnosis_that_nobody_explains_is_shown_all_the_same():
    refused = replace(control(), diagnosis=("of_your_own",))
    assert "fail of your own ✓" in text_of(report.verdicts_page(summary_of({"gradient_parity": [refused]})))


def test_verdict_that_is_not_as_expected_is_named_on_top_and_marked():
    text = text_of(report.verdicts_page(summary_of({"resume": [verdict("parameters", "pass", "fail")]})))
    assert "not all as expected: resume/parameters is fail, expected pass." in text
    assert "pass fail ✗ not as expected" in text
    assert "✓" not in text


def test_check_without_verdicts_is_shown():
    assert "There is no verdict." in text_of(report.verdicts_page(summary_of({"checkpoints": []})))


def test_check_that_the_page_does_not_know_is_shown_all_the_same():
    text = text_of(report.verdicts_page(summary_of({"of_your_own": [verdict()]})))
    assert "of_your_own Case and criterion" in text


def test_training_on_an_unproven_gradient_is_told_only_where_it_was_allowed():
    unproven = {"gradient_parity": [verdict(outcome="fail")]}
    notice = "train_anyway was set: training was allowed on an unproven gradient."
    assert notice not in text_of(report.verdicts_page(summary_of(unproven)))
    text = text_of(report.verdicts_page(summary_of(unproven, train_anyway=True)))
    assert f"{notice} It did run on one: gradient_parity/token_mean.native.first is fail, expected pass." in text
    proven = text_of(report.verdicts_page(summary_of({"loss": [verdict()]}, train_anyway=True)))
    assert notice in proven
    assert "It did run on one" not in proven


def test_evidence_is_listed_once_per_check_by_path():
    text = text_of(report.verdicts_page(summary_of({"gradient_parity": [verdict(), control()]})))
    assert "2 files with their SHA-256 aa results/tiny/a.safetensors bb results/tiny/b.safetensors" in text


def test_whatever_a_verdict_says_is_escaped():
    page = report.verdicts_page(summary_of({"zero_window": [verdict(messages={"0": "a <script> & more"})]}))
    assert "<script>" not in page
    assert "a &lt;script&gt; &amp; more" in page
    assert "20 &lt;b&gt;" in scores_page(summary_of({}))
    assert "The &lt;b&gt; not" in pages()["scores"]


def test_scores_of_each_split_stand_in_a_table():
    text = text_of(scores_page(summary_of({}, {"test": SCORE, "validation": SCORE | {"rows": 1234}})))
    assert "Split Rows Tokens Loss per token Perplexity Accuracy per token validation 1,234 1,860 1.23586" in text
    assert "test 8 1,860 1.23586 3.44 54.05 %" in text
    assert "Sentences it writes" not in text


def test_scores_of_images_are_called_so_and_have_no_perplexity():
    images = {name: value for name, value in SCORE.items() if name != "perplexity"} | {"unit": "image", "units": 8}
    text = text_of(scores_page(summary_of({}, {"test": images})))
    assert "means over all images that have a label." in text
    assert "Split Rows Images Loss per image Accuracy per image test 8 8 1.23586 54.05 %" in text
    assert "token" not in text.split("Published")[0]


def test_what_is_written_before_and_after_training_stands_side_by_side():
    page = scores_page(summary_of({}, {"test": SCORE} | WRITTEN) | {"published": []})
    text = text_of(page)
    assert text.index("test 8") < text.index("Sentences it writes")
    assert "Before training After training The &lt;b&gt; not She ran. Ran. Did they go?" in text
    assert "first 2 test rows" in text
    assert "r1" not in text


def test_a_grammar_says_how_many_of_the_sentences_it_could_have_made():
    """All count, eight are shown: before, none of 9; after, "She ran." and "Did they run?", but not the others."""
    before, after = [f"The ran {number}." for number in range(9)], ["She ran.", *["We runs."] * 7, "Did they run?"]
    scores = {"test": SCORE, "samples_at_start": before, "samples": after}
    text = text_of(scores_page(summary_of({}, scores), VerbGrammar()))
    assert "Of 9 sentences, the grammar could have made 0 before training and 2 after it." in text
    assert ("The ran 7." in text, "The ran 8." in text, "Did they run?" in text) == (True, False, False)
    assert "the first 8 are shown" in text
    labelled = text_of(scores_page(summary_of({}, scores)))
    assert "the grammar" not in labelled
    assert "She ran." in labelled


def test_the_published_run_comes_last_and_only_where_there_is_a_comparison():
    summary = summary_of({}, {"test": SCORE} | WRITTEN)
    text = text_of(scores_page(summary))
    assert text.index("Sentences it writes") < text.index("Published run r1 beside tiny")
    assert "Test tokens 18,231 20 &lt;b&gt; level only" in text
    assert "r1" not in text_of(scores_page(summary | {"published": []}))


def test_a_page_without_scores_says_so():
    assert "Nothing was scored." in text_of(scores_page(summary_of({})))


def test_samples_of_different_numbers_are_an_error():
    with pytest.raises(ValueError, match="zip"):
        scores_page(summary_of({}, WRITTEN | {"samples": ["one"]}))


def test_config_page_holds_every_field():
    experiment = tiny_experiment(train_anyway=True)
    assert yaml.safe_load(report.settings_yaml(experiment)) == experiment.model_dump(mode="json")
    assert "train_anyway : true" in text_of(report.config_page(experiment))


def test_settings_are_escaped():
    page = report.config_page(tiny_experiment(corpus={"path": "a<script>.jsonl"}))
    assert "<script" not in page
    assert "a&lt;script&gt;.jsonl" in page


def test_versions_page_names_torch_and_what_auto_became():
    text = text_of(pages()["versions"])
    assert re.search(r"torch \d+\.\d+", text)
    assert "backend gloo (auto)" in text
    assert "threads per rank 1" in text


def of_images(**changes):
    """The small experiment of images, with other settings of its model or of training."""
    experiment = load_experiment(PROJECT / "config" / "images_small.yaml")
    model = experiment.model.model_copy(update={"norm": changes.pop("norm", "batch")})
    return experiment.model_copy(update={"model": model, **changes})


@pytest.mark.parametrize(
    ("norm", "told"),
    [
        ("batch", "BatchNorm: each rank normalizes with the statistics of its own rows; their running means and"),
        ("sync_batch", "SyncBatchNorm: every rank normalizes with the statistics of the rows of all ranks"),
        ("group", "GroupNorm: no statistics over rows, so there are none to synchronize"),
    ],
)
def test_versions_page_says_which_statistics_are_synchronized_in_training(norm, told):
    text = text_of(report.versions_page(of_images(norm=norm)))
    assert f"normalization in training {told}" in text
    assert "precision in training" not in text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_versions_page_says_that_gradients_are_compared_without_mixed_precision(dtype):
    text = text_of(report.versions_page(of_images(use_amp=True, amp_dtype=dtype)))
    assert f"precision in training mixed, {dtype}; gradients are compared without it, in float32, the dtype of " in text


def test_versions_page_says_nothing_of_layers_that_an_experiment_does_not_have():
    assert "in training" not in text_of(pages()["versions"])


@pytest.mark.parametrize("page", ["verdicts", "scores", "config", "versions"])
def test_page_needs_nothing_else(page):
    text = pages()[page]
    assert text == pages()[page]
    assert not re.findall(r"https?://|<script|<link|<img|src=|@import|url\(", text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (282628, "282,628"),
        (2.9802322387695312e-08, "2.98e-08"),
        (1831.7162480551233, "1,832"),
        (0.0, "0"),
        (True, "true"),
        (None, "none"),
        ([652, 1564], "(652, 1,564)"),
        ([], "none"),
        ("inf", "inf"),
        ({"0": "refused", "1": "refused", "2": "went on"}, "0, 1: refused; 2: went on"),
    ],
)
def test_numbers_read_as_numbers(value, text):
    assert report.number_text(value) == text


@pytest.mark.parametrize(
    ("settings", "ranks", "launcher"),
    [({}, "2, on one host", "fork (auto)"), ({"nodes": 2}, "2, on 2 hosts", "torchrun on each host")],
)
def test_the_report_says_on_how_many_hosts_the_ranks_were(settings, ranks, launcher):
    told = report.circumstances(tiny_experiment(**settings))
    assert told["ranks"] == ranks
    assert told["launcher"] == launcher
