from pathlib import Path

import pytest

from ddp_tokens.config import AdamW, Cosine, Experiment, GeneratedCorpus, Images, OwnRows, ResNet, Sgd, VerbGrammar
from ddp_tokens.config_reading import load_experiment, sections_of
from ddp_tokens.errors import ConfigError, PlanError
from ddp_tokens.options import parse, parse_field_flags, run_as_program
from ddp_tokens.steps import settings_document
from tests.helpers import tiny_experiment

VALUES = {  # where 1 is no value of the field
    "name": "other",
    "path": "rows.jsonl",
    "workload": "images",
    "device": "cuda",
    "backend": "gloo",
    "launcher": "torchrun",
    "counts_before": "[1, 2]",
    "counts_after": "[1, 2]",
    "losses": "[0.5, 2]",
    "betas": "[0.8, 0.9]",
    "processes": "[1, 2]",
    "stages": "[4, 8]",
    "settings": '{"width": 8}',
    "class_weights": "[1, 2]",
}


def leaves(section, prefix=()):
    for name, field in section.model_fields.items():
        nested = sections_of(field.annotation)
        if not nested:
            yield (*prefix, name)
        for part in nested:
            yield from leaves(part, (*prefix, name))


SWITCHES = {(name,) for name, field in Experiment.model_fields.items() if field.annotation is bool}
FIELDS = sorted(set(leaves(Experiment)) - SWITCHES)


def at(values, path):
    for name in path:
        values = values[name]
    return values


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_every_field_has_a_flag(path):
    flag = "--" + ".".join(path).replace("_", "-")
    value = VALUES.get(path[-1], "1")
    parsed = at(parse_field_flags("program", [flag, value]), path)
    assert str(parsed).replace("'", '"') == value


def test_the_fields_are_all_there():
    assert {("world_size",), ("model", "feed_forward"), ("tolerances", "published", "rtol"), ("corpus", "path")} <= set(
        FIELDS
    )
    assert len(FIELDS) > 30


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("{batch: 4, corpus: {train: 64}}")
    return path


def parse_all(config, *flags):
    return parse("program", ["--config", str(config), *flags], "summary")[0]


def test_flags_go_over_the_file(config):
    experiment = parse_all(config, "--world-size", "4", "--optimizer.lr", "0.5", "--model.feed-forward=64")
    assert experiment.batch == 4
    assert experiment.world_size == 4
    assert (experiment.optimizer.lr, experiment.optimizer.momentum) == (0.5, 0.9)
    assert experiment.model.feed_forward == 64


def test_the_spelling_of_the_file_works_too(config):
    experiment = parse_all(config, "--world_size=4", "--model.feed_forward", "64")
    assert (experiment.world_size, experiment.model.feed_forward) == (4, 64)


def test_without_flags_the_file_decides(config):
    assert parse_all(config).model_dump() == load_experiment(config).model_dump()


def test_the_switches_are_these():
    assert {name for (name,) in SWITCHES} == {"train_anyway", "use_amp", "drop_last", "tensorboard", "profile"}


@pytest.mark.parametrize("name", sorted(name for (name,) in SWITCHES))
def test_a_switch_needs_no_value(config, name):
    config.write_text(f"{{sharding: by_epoch, {name}: true}}")
    assert getattr(parse_all(config), name) is True
    for off in (f"--no-{name.replace('_', '-')}", f"--no_{name}"):
        assert getattr(parse_all(config, off), name) is False
    config.write_text("sharding: by_epoch")
    assert getattr(parse_all(config), name) is False
    for on in (f"--{name.replace('_', '-')}", f"--{name}"):
        assert getattr(parse_all(config, on), name) is True


def test_a_switch_takes_no_value(config):
    with pytest.raises(ConfigError) as refusal:
        parse_all(config, "--use-amp", "false")
    assert str(refusal.value) == (
        "'false' belongs to no flag: one like --use-amp or --no-use-amp has no value; --help lists every flag"
    )


OF_IMAGES = ["--corpus.kind", "images", "--model.kind", "resnet", "--workload", "images"]


def test_flags_make_an_experiment_of_images(config):
    """Of a file of tokens, whose sections they replace whole."""
    experiment = parse_all(
        config, *OF_IMAGES, "--corpus.train", "21", "--model.stages", "[4, 8]", "--schedule.kind", "cosine",
        "--sharding", "by_epoch", "--epochs", "40", "--batch", "8", "--accumulation", "1", "--no-use-amp"
    )  # fmt: skip
    assert (experiment.corpus, experiment.model) == (Images(train=21), ResNet(stages=(4, 8)))
    assert experiment.schedule == Cosine()
    assert experiment.steps == 40 * 2, "11 and 10 rows per rank make two windows of at most 8"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--epochs", "0"], "field 'epochs': Input should be greater than or equal to 1 (got '0')"),
        (["--epochs", "few"], "field 'epochs': Input should be a valid integer, unable to parse string as an integer"),
        (
            ["--model.norm", "sync_batch", *OF_IMAGES],
            "model.norm sync_batch needs device cuda, since torch's SyncBatch",
        ),
        (
            ["--model.kind", "resnet"],
            "model resnet does not go with corpus generated: images need model.kind resnet and",
        ),
        (["--model.stages", "[4]"], "field 'model.stages' belongs to kind resnet, and here the kind is transformer"),
        (
            ["--schedule", "cosine"],
            "field 'schedule': a section with fields of its own is needed, such as {kind: cosine}",
        ),
        (["--epochs", "3", "--steps", "60"], "give epochs or steps, not both"),
        (["--epochs", "3"], "epochs needs sharding by_epoch, not by_length"),
        (["--workers", "-1"], "field 'workers'"),
    ],
)
def test_flags_of_images_and_epochs_that_are_wrong(config, flags, problem):
    with pytest.raises(ConfigError) as refusal:
        parse_all(config, *flags)
    assert problem in str(refusal.value)
    assert str(config) in str(refusal.value)


def test_lists_are_read(config):
    experiment = parse_all(config, "--exercise.losses", "[0.5, 2]", "--exercise.counts-after", "[3, 4]")
    assert (experiment.exercise.losses, experiment.exercise.counts_after) == ((0.5, 2.0), (3, 4))


def test_a_path_makes_it_own_rows(config):
    assert parse_all(config, "--corpus.path", "rows.jsonl").corpus == OwnRows(path="rows.jsonl")


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("", ["--optimizer.kind", "adamw"], AdamW()),
        (
            "{optimizer: {lr: 0.5, momentum: 0.1}}",
            ["--optimizer.kind", "adamw", "--optimizer.lr", "0.1"],
            AdamW(lr=0.1),
        ),
        ("{optimizer: {kind: adamw, eps: 0.5}}", ["--optimizer.lr", "0.1"], AdamW(lr=0.1, eps=0.5)),
        ("{optimizer: {kind: adamw, lr: 0.5}}", ["--optimizer.kind", "sgd"], Sgd()),
        ("{optimizer: {kind: adamw}}", ["--optimizer.betas", "[0.5, 0.75]"], AdamW(betas=(0.5, 0.75))),
        ("{corpus: {train: 64}}", ["--corpus.kind", "verb_grammar", "--corpus.test", "9"], VerbGrammar(test=9)),
        ("{corpus: {kind: verb_grammar, test: 9}}", ["--corpus.train", "5"], VerbGrammar(train=5, test=9)),
        ("{corpus: {path: rows.jsonl}}", ["--corpus.kind", "generated"], GeneratedCorpus()),
        ("{corpus: {kind: verb_grammar}}", ["--corpus.path", "rows.jsonl"], OwnRows(path="rows.jsonl")),
    ],
)
def test_a_flag_may_change_the_kind_of_a_section_or_keep_it(config, text, flags, expected):
    config.write_text(text)
    experiment = parse_all(config, *flags)
    assert (experiment.optimizer if isinstance(expected, Sgd | AdamW) else experiment.corpus) == expected


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--optimizer.kind", "adam"], "field 'optimizer.kind': Input should be one of 'sgd', 'adamw' (got 'adam')"),
        (
            ["--optimizer.eps", "0.1"],
            "field 'optimizer.eps' belongs to kind adamw, and here the kind is sgd: "
            "leave the field out, or set 'optimizer.kind' too",
        ),
        (["--corpus.kind", "own"], "field 'corpus.path' is missing"),
    ],
)
def test_a_flag_that_does_not_fit_the_kind_is_refused(config, flags, problem):
    with pytest.raises(ConfigError) as refusal:
        parse_all(config, *flags)
    assert str(refusal.value) == f"{config}, as overridden on the command line: {problem}"


def test_a_flag_within_generated_rows_keeps_the_rest_of_the_file(config):
    corpus = parse_all(config, "--corpus.classes", "3").corpus
    assert (corpus.train, corpus.classes) == (64, 3)


@pytest.mark.parametrize(
    ("flag", "suggested"),
    [
        ("--batches", "batch"),
        ("--model.widht", "model.width"),
        ("--lr", "optimizer.lr"),
        ("--warld-size", "world_size"),
    ],
)
def test_an_unknown_flag_is_refused_with_a_suggestion(config, flag, suggested):
    with pytest.raises(
        ConfigError, match=f"unknown flag {flag} 3, did you mean '{suggested}'.; --help lists every flag"
    ):
        parse_all(config, flag, "3")


@pytest.mark.parametrize("flag", ["--bat", "--batch-siz", "--result", "--setting"])
def test_no_flag_is_completed_silently(config, flag):
    with pytest.raises(ConfigError, match=f"unknown flag {flag} 3"):
        parse_all(config, flag, "3")


def test_a_flag_without_its_value_is_refused(config):
    with pytest.raises(ConfigError, match="expected one argument; --help lists every flag"):
        parse_all(config, "--seed")


def test_a_file_that_cannot_be_written_is_one_sentence(capsys):
    def main(arguments):
        Path("/dev/null/results").mkdir()

    assert run_as_program("ddp_tokens.cli", main, []) == 2
    assert capsys.readouterr().err == "ddp_tokens.cli: /dev/null/results: Not a directory\n"


def test_a_bad_value_is_a_config_error(config):
    with pytest.raises(ConfigError, match="field 'batch'"):
        parse_all(config, "--batch", "0")


@pytest.mark.parametrize("arguments", [[], ["--batch", "3"], ["--config", "a.yaml", "--settings", "b.json"]])
def test_either_a_config_or_settings_are_needed(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        parse("program", arguments, "summary")
    assert stop.value.code == 2
    assert "--settings" in capsys.readouterr().err


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "evaluate.json"
    path.write_text(settings_document(tiny_experiment(), "evaluate"))
    return path


def test_settings_give_the_step_its_view(settings):
    experiment, at_layout, _ = parse("program", ["--settings", str(settings), "--results", "out"], "evaluate")
    assert experiment.batch == 2
    assert str(at_layout.root) == "out/tiny"
    with pytest.raises(AttributeError):
        _ = experiment.optimizer


def test_settings_take_no_flag_beside_them(settings, capsys):
    with pytest.raises(SystemExit) as stop:
        parse("program", ["--settings", str(settings), "--batch", "3"], "evaluate")
    assert stop.value.code == 2
    assert "--settings holds every field already; --batch goes with --config" in capsys.readouterr().err


def test_a_config_gives_the_step_its_view_too(config):
    experiment, _, _ = parse("program", ["--config", str(config)], "exercise")
    assert experiment.exercise.losses == (1.0, 3.0)
    with pytest.raises(AttributeError):
        _ = experiment.batch


def test_the_step_may_depend_on_the_command(config):
    def add(parser):
        parser.add_argument("--continuous", action="store_true")

    def step(own):
        return "continuous" if own.continuous else "interrupt"

    stopping, _, _ = parse("program", ["--config", str(config)], step, add)
    going_on, _, own = parse("program", ["--config", str(config), "--continuous"], step, add)
    assert stopping.interrupt_at == 50
    assert own.continuous
    with pytest.raises(AttributeError):
        _ = going_on.interrupt_at


def test_help_lists_commands_and_fields(config, capsys):
    with pytest.raises(SystemExit) as stop:
        parse("program", ["--help"], "summary")
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--config", "--settings", "--world-size", "--optimizer.lr", "--corpus.path"):
        assert flag in text


def refuse(arguments):
    raise PlanError("the plan is for someone else")


@pytest.mark.parametrize(("rank", "who"), [(None, "program"), ("0", "program"), ("3", "program, rank 3")])
def test_a_user_error_becomes_one_sentence_and_exit_code_2(monkeypatch, capsys, rank, who):
    monkeypatch.delenv("RANK", raising=False)
    if rank:
        monkeypatch.setenv("RANK", rank)
    assert run_as_program("program", refuse, []) == 2
    assert capsys.readouterr().err == f"{who}: the plan is for someone else\n"


def test_any_other_error_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        run_as_program("program", lambda arguments: 1 // 0, [])


def test_the_exit_code_of_main_is_passed_on():
    assert run_as_program("program", len, ["a", "b", "c"]) == 3
