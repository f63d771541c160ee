import re

import pytest
import yaml
from pydantic import BaseModel

from ddp_tokens.config import (
    AdamW,
    Constant,
    Cosine,
    Experiment,
    GeneratedCorpus,
    Images,
    OwnImages,
    OwnModel,
    OwnRows,
    ResNet,
    Sgd,
    Tolerance,
    Transformer,
    VerbGrammar,
)
from ddp_tokens.config_reading import kinds_of, load_experiment, merge, sections_of
from ddp_tokens.epochs import place_in_epoch
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
    "corpus: {kind: verbs}": "field 'corpus.kind': Input should be one of 'generated', 'verb_grammar', 'own', "
    "'images', 'own_images' (got 'verbs')",
    "corpus: {kind: images, train: 0}": "field 'corpus.train'",
    "corpus: {kind: images, validation: -1}": "field 'corpus.validation'",
    "corpus: {kind: images, test: 0}": "field 'corpus.test'",
    "corpus: {kind: images, classes: 1}": "field 'corpus.classes': Input should be greater than or equal to 2 (got 1)",
    "corpus: {kind: images, channels: 0}": "field 'corpus.channels'",
    "corpus: {kind: images, size: 3}": "field 'corpus.size': Input should be greater than or equal to 4 (got 3)",
    "corpus: {kind: images, noise: -0.5}": "field 'corpus.noise'",
    "corpus: {kind: images, noise: .inf}": "field 'corpus.noise'",
    "corpus: {kind: own_images, train: 1, test: 1}": "field 'corpus.path' is missing",
    "corpus: {kind: own_images, path: p, test: 1}": "field 'corpus.train' is missing",
    "corpus: {kind: own_images, path: p, train: 1}": "field 'corpus.test' is missing",
    "corpus: {kind: own_images, path: 3, train: 1, test: 1}": "field 'corpus.path'",
    "corpus: {kind: own_images, path: p, train: 0, test: 1}": "field 'corpus.train'",
    "corpus: {kind: own_images, path: p, train: 1, test: 0}": "field 'corpus.test'",
    "corpus: {kind: own_images, path: p, train: 1, test: 1, validation: -1}": "field 'corpus.validation'",
    "corpus: {kind: own_images, path: p, train: 1, test: 1, channels: 2}": "field 'corpus.channels'",
    "corpus: {kind: own_images, path: p, train: 1, test: 1, size: 3}": "field 'corpus.size'",
    "corpus: {kind: verb_grammar, train: 0}": "field 'corpus.train'",
    "corpus: {kind: verb_grammar, validation: 0}": "field 'corpus.validation'",
    "corpus: {kind: verb_grammar, test: few}": "field 'corpus.test'",
    "corpus: {path: rows.jsonl, labels: shifted}": "field 'corpus.labels': Input should be 'given' or 'next_token'",
    "corpus: {path: rows.jsonl, labels: next_token, classes: 3}": "classes goes with labels that are given",
    "corpus: {kind: own}": "field 'corpus.path' is missing",
    "workload: Token-Labels": "field 'workload': a built-in kind of work (such as token_labels), a file with your own "
    "(path/to/mine.py:MyWork), or a module (package.module:MyWork) is needed (got 'Token-Labels')",
    "workload: mine.py:My:Work": "field 'workload': a built-in kind of work",
    "workload: 3": "field 'workload'",
    "workload: missing.py:MyWork": "workload 'missing.py:MyWork' has no file /",
    "workload: no_such_package.mine:MyWork": "Python finds no module no_such_package.mine",
    "model: [1]": "field 'model': a section with fields of its own is needed (got [1])",
    "model: {width: 0}": "field 'model.width'",
    "model: {width: 130}": "width 130 is not a multiple of heads 4",
    "model: {layers: 0}": "field 'model.layers'",
    "model: {heads: 3}": "width 128 is not a multiple of heads 3",
    "model: {feed_forward: x}": "field 'model.feed_forward'",
    "model: {dropout: 1}": "field 'model.dropout'",
    "model: {dropout: -0.1}": "field 'model.dropout'",
    "model: resnet": "a section with fields of its own is needed, such as {kind: resnet} (got 'resnet')",
    "model: {kind: vit}": "field 'model.kind': Input should be one of 'transformer', 'resnet', 'own' (got 'vit')",
    "model: {kind: own}": "model own needs a workload of your own, such as path/to/mine.py:MyWork, not token_labels",
    "model: {kind: own, settings: 3}": "field 'model.settings'",
    "model: {kind: own, settings: {width: .nan}}": "field 'model.settings': a number that is not finite cannot be a",
    "model: {kind: own, settings: {2: 3}}": "field 'model.settings",
    "model: {kind: own, width: 3}": "field 'model.width' belongs to kind transformer, and here the kind is own",
    "model: {kind: resnet, stages: 64}": "field 'model.stages': a list is needed (got 64)",
    "model: {kind: resnet, stages: []}": "field 'model.stages': the list is too short (got [])",
    "model: {kind: resnet, stages: [64, 0]}": "field 'model.stages.1'",
    "model: {kind: resnet, blocks: 0}": "field 'model.blocks'",
    "model: {kind: resnet, norm: layer}": "field 'model.norm': Input should be 'batch', 'sync_batch' or 'group'",
    "model: {kind: resnet, groups: 0}": "field 'model.groups'",
    "model: {kind: resnet, norm: group, stages: [8, 12]}": "groups 8 must divide the channels of every stage, [8, 12]",
    "strategy: zero2": "field 'strategy': Input should be 'ddp', 'fsdp2' or 'zero1' (got 'zero2')",
    "{strategy: fsdp2, world_size: 1}": "strategy fsdp2 needs world_size 2 or more: one rank has nobody to share with",
    "{strategy: fsdp2, use_amp: true, amp_dtype: float16}": "strategy fsdp2 does not go with float16, whose losses are "
    "scaled: each rank would look for an overflow in its own part of the gradient; set amp_dtype to bfloat16",
    "{strategy: fsdp2, workload: images, corpus: {kind: images}, model: {kind: resnet}}": "strategy fsdp2 sends no "
    "buffers, and model.norm batch keeps running statistics, which would differ between ranks: set model.norm to group",
    "optimizer: {lr: 0}": "field 'optimizer.lr'",
    "optimizer: {lr: fast}": "field 'optimizer.lr'",
    "optimizer: {lr: .nan}": "field 'optimizer.lr'",
    "optimizer: {momentum: 1}": "field 'optimizer.momentum'",
    "optimizer: {weight_decay: -1}": "field 'optimizer.weight_decay'",
    "optimizer: {clip_norm: 0}": "field 'optimizer.clip_norm'",
    "optimizer: {clip_norm: .inf}": "field 'optimizer.clip_norm'",
    "optimizer: {clip_norm: true}": "field 'optimizer.clip_norm'",
    "optimizer:": "field 'optimizer': a section with fields of its own is needed (got None)",
    "optimizer: adamw": "a section with fields of its own is needed, such as {kind: adamw} (got 'adamw')",
    "optimizer: [adamw]": "field 'optimizer': a section with fields of its own is needed (got ['adamw'])",
    "optimizer: {kind: adam}": "field 'optimizer.kind': Input should be one of 'sgd', 'adamw' (got 'adam')",
    "optimizer: {kind: }": "field 'optimizer.kind': Input should be one of 'sgd', 'adamw' (got None)",
    "optimizer: {kind: [sgd]}": "field 'optimizer.kind': Input should be one of 'sgd', 'adamw' (got ['sgd'])",
    "optimizer: {kind: adamw, lr: 0}": "field 'optimizer.lr'",
    "optimizer: {kind: adamw, betas: 0.9}": "field 'optimizer.betas': a list is needed (got 0.9)",
    "optimizer: {kind: adamw, betas: [0.9]}": "field 'optimizer.betas': the list is too short (got [0.9])",
    "optimizer: {kind: adamw, betas: [0.9, 0.9, 0.9]}": "field 'optimizer.betas': Tuple should have at most 2 items",
    "optimizer: {kind: adamw, betas: [0.9, 1]}": "field 'optimizer.betas.1'",
    "optimizer: {kind: adamw, eps: 0}": "field 'optimizer.eps'",
    "optimizer: {kind: adamw, weight_decay: -0.1}": "field 'optimizer.weight_decay'",
    "optimizer: {kind: adamw, clip_norm: 0}": "field 'optimizer.clip_norm'",
    "schedule: cosine": "a section with fields of its own is needed, such as {kind: cosine} (got 'cosine')",
    "schedule: {kind: linear}": "field 'schedule.kind': Input should be one of 'constant', 'cosine' (got 'linear')",
    "schedule: {kind: cosine, per: step}": "field 'schedule.per': Input should be 'epoch' or 'update' (got 'step')",
    "schedule: {kind: cosine, final_lr: -1}": "field 'schedule.final_lr'",
    "schedule: {kind: cosine}": "schedule.per epoch needs sharding by_epoch, not by_length, under which there are no "
    "epochs: set schedule.per to update",
    "epochs: 0": "field 'epochs': Input should be greater than or equal to 1 (got 0)",
    "epochs: [3]": "field 'epochs': Input should be a valid integer (got [3])",
    "epochs: 2.5": "field 'epochs'",
    "epochs: 3": "epochs needs sharding by_epoch, not by_length, under which there are no epochs",
    "{epochs: 3, steps: 96, sharding: by_epoch}": "give epochs or steps, not both: steps follows from epochs",
    "{epochs: 3, sharding: by_epoch, corpus: {path: r}}": "epochs needs a corpus that states its number of",
    "{epochs: 1, sharding: by_epoch}": "interrupt_at 50 must come before the last update, steps 32",
    "{epochs: 1, sharding: by_epoch, drop_last: true, batch: 500}": "1024 training rows over world_size 2 do not fill",
    "drop_last: true": "drop_last needs sharding by_epoch, not by_length",
    "drop_last: some": "field 'drop_last'",
    "save_every: 1": "save_every needs sharding by_epoch, not by_length",
    "save_every: -1": "field 'save_every'",
    "augmentation: flip": "field 'augmentation': Input should be 'none', 'shift' or 'shift_and_flip' (got 'flip')",
    "augmentation: shift": "augmentation shift is for images, not for corpus generated",
    "workers: -1": "field 'workers'",
    "use_amp: maybe": "field 'use_amp'",
    "amp_dtype: float32": "field 'amp_dtype': Input should be 'auto', 'bfloat16' or 'float16' (got 'float32')",
    "log_interval: 0": "field 'log_interval'",
    "tensorboard: 3": "field 'tensorboard'",
    "profile: x": "field 'profile'",
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
    "sharding: random": "field 'sharding': Input should be 'by_length', 'by_index', 'by_epoch' or 'by_document' (got "
    "'random')",
    "unit: word": "field 'unit': Input should be 'token', 'sequence', 'document' or 'sample' (got 'word')",
    "class_weights: 2": "field 'class_weights': a list is needed (got 2)",
    "class_weights: [1]": "field 'class_weights': the list is too short (got [1])",
    "class_weights: [1, -1]": "field 'class_weights.1': Input should be greater than or equal to 0 (got -1)",
    "class_weights: [1, .nan]": "field 'class_weights.1': Input should be a finite number (got nan)",
    "label_smoothing: 1": "field 'label_smoothing': Input should be less than 1 (got 1)",
    "strategy: fsdp": "field 'strategy': Input should be 'ddp', 'fsdp2' or 'zero1' (got 'fsdp')",
    "device: gpu": "field 'device'",
    "backend: mpi": "field 'backend'",
    "backend: nccl": "backend nccl needs device cuda",
    "launcher: slurm": "field 'launcher': Input should be 'auto', 'fork', 'torchrun' or 'spawn' (got 'slurm')",
    "{launcher: fork, device: cuda}": "launcher fork is for device cpu",
    "nodes: 0": "field 'nodes'",
    "nodes: 2\nworld_size: 3": "world_size 3 cannot be shared equally by nodes 2: set world_size to 2, for example",
    "gpus_per_node: 0": "field 'gpus_per_node'",
    "gpus_per_node: 2": "gpus_per_node needs device cuda",
    "device: cuda\nnodes: 2\ngpus_per_node: 4\nworld_size: 4": "world_size 4 over nodes 2 is 2 per host, and "
    "gpus_per_node says 4",
    "rendezvous_timeout_s: 0": "field 'rendezvous_timeout_s'",
    "threads_per_rank: 0": "field 'threads_per_rank'",
    "timeout_s: 0": "field 'timeout_s'",
    "tolerances: {native: -1}": "field 'tolerances.native'",
    "tolerances: {float64: {atol: 1.0e-12}}": "field 'tolerances.float64'",
    "tolerances: {power: 0.5}": "field 'tolerances.power'",
    "tolerances: {published: {atol: -1}}": "field 'tolerances.published.atol'",
    "tolerances: {published: {rtol: x}}": "field 'tolerances.published.rtol'",
    "train_anyway: perhaps": "field 'train_anyway'",
    "scaling: {processes: 4}": "field 'scaling.processes': a list is needed (got 4)",
    "scaling: {processes: [0, 1, 2]}": "field 'scaling.processes.0'",
    "scaling: {processes: []}": "processes must hold 1 and 2, each once, smallest first, not []",
    "scaling: {processes: [1, 4]}": "processes must hold 1 and 2, each once, smallest first, not [1, 4]",
    "scaling: {processes: [2, 1]}": "processes must hold 1 and 2, each once, smallest first, not [2, 1]",
    "scaling: {processes: [1, 2, 2]}": "processes must hold 1 and 2, each once, smallest first, not [1, 2, 2]",
    "scaling: {repeats: 0}": "field 'scaling.repeats'",
    "scaling: {windows: 0}": "field 'scaling.windows'",
    "scaling: {accuracy: 1}": "field 'scaling.accuracy'",
    "network: {latency_us: -1}": "field 'network.latency_us'",
    "network: {bandwidth_mb_s: 0}": "field 'network.bandwidth_mb_s'",
    "exercise: {counts_before: [0, 1]}": "field 'exercise.counts_before.0'",
    "exercise: {counts_after: [1]}": "counts_before, counts_after and losses need one entry per rank each",
    "exercise: {losses: [x, 1]}": "field 'exercise.losses.0'",
}


@pytest.mark.parametrize(("text", "problem"), WRONG_TYPES_AND_RANGES.items(), ids=WRONG_TYPES_AND_RANGES.keys())
def test_a_bad_value_is_refused_by_file_and_field(load, text, problem):
    with pytest.raises(ConfigError, match=re.escape(problem)) as refusal:
        load(text)
    assert "mine.yaml: " in str(refusal.value)


def leaves(section, prefix=(), kind=""):
    """(path, kind of the section, field) of every plain value."""
    for name, field in section.model_fields.items():
        nested = sections_of(field.annotation)
        if not nested:
            yield (*prefix, name), kind, field
        for part in nested:
            own = part.model_fields["kind"].default if "kind" in part.model_fields else kind
            yield from leaves(part, (*prefix, name), own)


def kind_in(name, section):
    """As the definition says where `kind` is left out."""
    first = {"corpus": "generated", "model": "transformer", "optimizer": "sgd", "schedule": "constant"}
    return section.get("kind", "own" if "path" in section else first[name])


def sets(text, path, kind):
    """Does the text give this field a value, in a section of this kind?"""
    values, above = yaml.safe_load(text), None
    for name in path:
        if not isinstance(values, dict) or name not in values:
            return False
        if kind and name == path[-1] != "kind" and kind_in(above, values) != kind:
            return False
        values, above = values[name], name
    return True


def test_no_field_is_left_out_of_the_bad_values():
    missing = [
        (".".join(path), kind)
        for path, kind, _ in leaves(Experiment)
        if not any(sets(text, path, kind) for text in WRONG_TYPES_AND_RANGES)
    ]
    assert missing == []


NUMBERS = sorted(
    {(path, kind) for path, kind, field in leaves(Experiment) if re.search(r"\b(int|float)\b", str(field.annotation))}
)


@pytest.mark.parametrize(("path", "kind"), NUMBERS, ids=lambda part: part if isinstance(part, str) else ".".join(part))
def test_a_boolean_is_no_number(load, path, kind):
    """YAML's `batch: yes` would be read as 1."""
    in_a_list = path[-1] in ("counts_before", "counts_after", "losses", "betas", "processes", "stages", "class_weights")
    value = {"train": 1, "test": 1} if kind == "own_images" else {}
    value |= {path[-1]: [True, 1] if in_a_list else True}
    value |= {"kind": kind} if kind else {}
    value |= {"path": "rows.jsonl"} if kind.startswith("own") else {}
    for name in reversed(path[:-1]):
        value = {name: value}
    field = ".".join(path) + in_a_list * ".0"
    with pytest.raises(ConfigError, match=rf"field '{field}': a number is needed here \(got True\)"):
        load("", value)


def test_the_numbers_of_every_kind_are_among_them():
    kinds = {kind for _, kind in NUMBERS}
    with_numbers = {"transformer", "resnet", "sgd", "adamw", "cosine"}
    assert kinds == {"", "generated", "verb_grammar", "own", "images", "own_images"} | with_numbers
    assert len(NUMBERS) > 40


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


@pytest.mark.parametrize(
    ("text", "field", "owners", "kind"),
    [
        ("optimizer: {kind: adamw, momentum: 0.9}", "optimizer.momentum", "sgd", "adamw"),
        ("optimizer: {betas: [0.9, 0.99]}", "optimizer.betas", "adamw", "sgd"),
        ("optimizer: {kind: sgd, eps: 0.1}", "optimizer.eps", "adamw", "sgd"),
        ("corpus: {kind: verb_grammar, path: rows.jsonl}", "corpus.path", "own or own_images", "verb_grammar"),
        ("corpus: {kind: verb_grammar, classes: 3}", "corpus.classes", "generated or own or images", "verb_grammar"),
        (
            "corpus: {path: rows.jsonl, train: 3}",
            "corpus.train",
            "generated or verb_grammar or images or own_images",
            "own",
        ),
        ("corpus: {size: 8}", "corpus.size", "images or own_images", "generated"),
        ("model: {stages: [64]}", "model.stages", "resnet", "transformer"),
        ("model: {stages: 64}", "model.stages", "resnet", "transformer"),
        ("model: {kind: resnet, width: 8}", "model.width", "transformer", "resnet"),
        ("schedule: {final_lr: 0}", "schedule.final_lr", "cosine", "constant"),
    ],
)
def test_a_field_of_another_kind_is_refused_by_both_kinds(load, text, field, owners, kind):
    section = field.partition(".")[0]
    with pytest.raises(ConfigError) as refusal:
        load(text)
    assert str(refusal.value).endswith(
        f"mine.yaml: field '{field}' belongs to kind {owners}, and here the kind is {kind}: "
        f"leave the field out, or set '{section}.kind' too"
    )


@pytest.mark.parametrize("name", ["own", "generated", "sgd", "images", "resnet", "cosine"])
def test_a_field_named_like_a_kind_is_named(load, name):
    """No part of a path is taken for pydantic's mark of a kind where it is none."""
    with pytest.raises(ConfigError, match=f"unknown field '{name}'"):
        load(f"{name}: 3")
    with pytest.raises(ConfigError, match=rf"unknown field 'optimizer\.{name}'"):
        load(f"optimizer: {{{name}: 3}}")
    with pytest.raises(ConfigError, match=rf"unknown field 'model\.{name}'"):
        load(f"model: {{{name}: 3}}")


def test_the_kinds_are_those_of_the_definition():
    assert kinds_of("optimizer") == {"sgd": Sgd, "adamw": AdamW}
    assert list(kinds_of("corpus")) == ["generated", "verb_grammar", "own", "images", "own_images"]
    assert kinds_of("model") == {"transformer": Transformer, "resnet": ResNet, "own": OwnModel}
    assert kinds_of("schedule") == {"constant": Constant, "cosine": Cosine}
    assert kinds_of("scaling") == kinds_of("batch") == kinds_of("nothing") == {}


def test_an_unknown_workload_is_refused(load):
    with pytest.raises(ConfigError, match=r"workload 'poems' has no file src/ddp_tokens/workloads/poems\.py"):
        load("workload: poems")


@pytest.fixture
def mine(tmp_path):
    """The name of a workload that raises when it is imported: reading an experiment must not."""
    path = tmp_path / "mine.py"
    path.write_text("raise SystemExit('imported')\n")
    return f"{path}:MyWork"


OF_IMAGES = {"corpus": {"kind": "images"}, "sharding": "by_epoch"}


@pytest.mark.parametrize(
    "values",
    [
        {"model": {"kind": "own", "settings": {"width": 8, "layers": [1, {"a": None}]}}},
        {"model": {"kind": "own"}, **OF_IMAGES, "augmentation": "shift"},
        {"model": {"kind": "transformer"}, **OF_IMAGES},
        {"model": {"kind": "resnet"}},
        {"corpus": {"kind": "verb_grammar"}, "model": {"kind": "own"}},
    ],
)
def test_a_workload_of_ones_own_goes_with_any_corpus_and_any_model(load, mine, values):
    experiment = load(yaml.safe_dump(values | {"workload": mine}))
    assert experiment.workload == mine
    assert experiment.model_dump(mode="json")["model"].items() >= values["model"].items()


def test_a_built_in_workload_still_needs_its_own_kind_of_model(load, mine):
    with pytest.raises(ConfigError, match="model resnet does not go with corpus generated"):
        load("model: {kind: resnet}")
    with pytest.raises(ConfigError, match="augmentation shift is for images"):
        load(f"{{workload: {mine!r}, augmentation: shift}}")


def test_a_setting_of_ones_own_model_lies_over_another_layer(load, mine):
    text = f"{{workload: {mine!r}, model: {{kind: own, settings: {{width: 8, depth: 2}}}}}}"
    experiment = load(text, {"model": {"settings": {"depth": 3}}})
    assert experiment.model.settings == {"width": 8, "depth": 3}


def test_a_workload_that_is_not_there_is_named_with_the_layer_that_sets_it(load, mine):
    with pytest.raises(ConfigError, match=r"mine\.yaml: workload 'gone\.py:A' has no file .*/gone\.py: write it, or"):
        load("workload: gone.py:A")
    with pytest.raises(ConfigError, match=r"mine\.yaml, as overridden on the command line: workload 'gone\.py:A'"):
        load(f"workload: {mine}", {"workload": "gone.py:A"})


def test_an_archived_experiment_is_read_without_its_workload(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("workload: gone.py:A\n")
    assert load_experiment(path, is_archived=True).workload == "gone.py:A"


def test_a_file_that_is_no_python_is_named_before_anything_is_built(load, tmp_path):
    (tmp_path / "bad.py").write_text("class A:\n    def f(self:\n")
    with pytest.raises(ConfigError, match=r"bad\.py, line 2 is no valid Python"):
        load(f"workload: {tmp_path}/bad.py:A")


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


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("{lr: 0.5, momentum: 0.1}", {"kind": "adamw", "lr": 0.1}, AdamW(lr=0.1)),
        ("{kind: adamw, lr: 0.5, eps: 0.25}", {"lr": 0.1}, AdamW(lr=0.1, eps=0.25)),
        ("{kind: adamw, lr: 0.5}", {"kind": "adamw", "eps": 0.25}, AdamW(lr=0.5, eps=0.25)),
        ("{kind: adamw, lr: 0.5}", {"kind": "sgd"}, Sgd()),
        ("{kind: sgd, momentum: 0.1}", {"lr": 0.1}, Sgd(lr=0.1, momentum=0.1)),
    ],
)
def test_an_optimizer_of_another_kind_replaces_the_section_whole(load, text, overrides, expected):
    assert load(f"optimizer: {text}", {"optimizer": overrides}).optimizer == expected


OWN_IMAGES = OwnImages(path="p", train=3, test=2)


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("{train: 9}", {"kind": "verb_grammar"}, VerbGrammar()),
        ("{kind: verb_grammar, train: 9}", {"test": 7}, VerbGrammar(train=9, test=7)),
        ("{kind: verb_grammar, train: 9}", {"kind": "generated"}, GeneratedCorpus()),
        ("{kind: verb_grammar, train: 9}", {"path": "rows.jsonl"}, OwnRows(path="rows.jsonl")),
        ("{kind: own, path: rows.jsonl, classes: 5}", {"path": "more.jsonl"}, OwnRows(path="more.jsonl", classes=5)),
        ("{path: rows.jsonl}", {"kind": "own", "classes": 5}, OwnRows(path="rows.jsonl", classes=5)),
        ("{path: rows.jsonl}", {"kind": "verb_grammar", "train": 9}, VerbGrammar(train=9)),
        ("{kind: verb_grammar, train: 9}", {"path": "p", "kind": "own_images", "train": 3, "test": 2}, OWN_IMAGES),
        ("{kind: own_images, path: q, train: 3, test: 2}", {"path": "p"}, OWN_IMAGES),
    ],
)
def test_a_corpus_of_another_kind_replaces_the_section_whole(load, text, overrides, expected):
    of_images = ", model: {kind: resnet}, workload: images" * isinstance(expected, OwnImages)
    assert load(f"{{corpus: {text}{of_images}}}", {"corpus": overrides}).corpus == expected


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
    undescribed = [".".join(path) for path, _, field in leaves(Experiment) if not field.description]
    assert undescribed == []


def test_an_experiment_cannot_be_changed_by_accident():
    experiment: BaseModel = Experiment(name="x")
    with pytest.raises(ValueError, match="frozen"):
        experiment.batch = 1


IMAGES = "corpus: {kind: images, train: 203}, model: {kind: resnet}, workload: images"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{corpus: {kind: images}}", "model transformer does not go with corpus images: images need model.kind resnet"),
        (
            "{model: {kind: resnet}}",
            "model resnet does not go with corpus generated: images need model.kind resnet and",
        ),
        (
            "{corpus: {kind: images}, model: {kind: resnet}}",
            "workload token_labels does not go with corpus images: images need workload images, tokens need",
        ),
        (
            "{workload: images}",
            "workload images does not go with corpus generated: images need workload images, tokens",
        ),
        (
            "{corpus: {kind: images}, model: {kind: resnet, norm: sync_batch}, workload: images}",
            "model.norm sync_batch needs device cuda, since torch's SyncBatchNorm refuses CPU tensors: take norm",
        ),
        (
            "{corpus: {kind: images, size: 4}, model: {kind: resnet}, workload: images}",
            "the 3 stages of model.stages halve images of corpus.size 4 to a single pixel: take fewer stages, 5",
        ),
    ],
)
def test_images_and_tokens_do_not_mix(load, text, problem):
    with pytest.raises(ConfigError) as refusal:
        load(text)
    assert f"mine.yaml: {problem}" in str(refusal.value)


def test_ranks_that_wait_for_each_other_in_every_forward_need_as_many_of_them(load):
    """203 images, 2 x 8 per window: the last holds 6 and 5; with 17 left, ranks would have 2 and 1."""
    synchronized = f"{{{IMAGES}, device: cuda, sharding: by_epoch}}"
    norm = {"model": {"norm": "sync_batch"}}
    with pytest.raises(ConfigError, match=r"unequal numbers of microbatches: set drop_last to true, or accumulation"):
        load(synchronized, norm | {"accumulation": 2})
    for fitting in ({"accumulation": 1}, {"accumulation": 2, "drop_last": True}, {"sharding": "by_length"}):
        assert load(synchronized, norm | fitting).model.norm == "sync_batch"


def test_a_rank_without_a_row_would_change_the_statistics_of_all(load):
    """33 images, 2 x 8 per window: one is left for two ranks. Of 34, each has one."""
    synchronized = f"{{{IMAGES}, device: cuda, sharding: by_epoch, accumulation: 1}}"
    norm = {"model": {"norm": "sync_batch"}}
    with pytest.raises(ConfigError, match=r"last window of an epoch has 1 rows for 2 ranks, .*: set drop_last to true"):
        load(synchronized, norm | {"corpus": {"train": 33}})
    for fitting in ({"corpus": {"train": 34}}, {"corpus": {"train": 32}}, {"corpus": {"train": 33}, "drop_last": True}):
        assert load(synchronized, norm | fitting).model.norm == "sync_batch"
    assert load(synchronized, {"corpus": {"train": 33}}).model.norm == "batch"


def test_what_fits_images(load):
    assert load(f"{{{IMAGES}}}").corpus == Images(train=203)
    synchronized = load(f"{{{IMAGES}, device: cuda}}", {"model": {"norm": "sync_batch"}})
    assert synchronized.model == ResNet(norm="sync_batch")
    assert load(f"{{{IMAGES}}}", {"corpus": {"size": 5}}).corpus.size == 5
    of_one_pixel = load(f"{{{IMAGES}}}", {"corpus": {"size": 4}, "model": {"norm": "group"}})
    assert of_one_pixel.model.norm == "group"
    assert load(f"{{{IMAGES}, augmentation: shift}}").augmentation == "shift"


EPOCHS = f"{IMAGES}, sharding: by_epoch, batch: 8, accumulation: 1, epochs: 4, interrupt_at: 20"


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ({}, 4 * 13),  # 203 rows on 2 ranks are 102 and 101: 12 windows of 8, and 6 and 5 rows are left
        ({"drop_last": True}, 4 * 12),
        ({"world_size": 1}, 4 * 26),  # 25 windows of 8, and 3 rows
        ({"batch": "16"}, 4 * 7),  # a flag's value is a text
        ({"accumulation": 2}, 4 * 7),
        ({"corpus": {"train": "208"}}, 4 * 13),
        ({"corpus": {"train": 209}}, 4 * 14),
        ({"epochs": "3"}, 3 * 13),
        ({"epochs": "2", "interrupt_at": "25"}, 2 * 13),
    ],
)
def test_steps_follow_from_epochs(load, overrides, steps):
    experiment = load(f"{{{EPOCHS}}}", overrides)
    assert experiment.steps == steps
    assert experiment.steps == experiment.epochs * experiment.windows_per_epoch(experiment.corpus.train)
    assert Experiment.model_validate(experiment.model_dump()) == experiment


def test_steps_that_do_not_follow_from_epochs_are_refused():
    values = {"name": "x", "sharding": "by_epoch", "epochs": 2}
    assert Experiment(**values).steps == Experiment(**values, steps=64).steps == 64
    with pytest.raises(ValueError, match="give epochs or steps, not both: epochs 2 are 64 updates, and steps says 63"):
        Experiment(**values, steps=63)


def test_steps_on_the_command_line_replace_epochs_and_the_other_way_round(load):
    assert (load(f"{{{EPOCHS}}}", {"steps": 30}).steps, load(f"{{{EPOCHS}}}", {"steps": 30}).epochs) == (30, None)
    assert load("{steps: 60, sharding: by_epoch}", {"epochs": 3}).steps == 3 * 32
    with pytest.raises(ConfigError, match=r"mine.yaml, as overridden on the command line: give epochs or steps, not b"):
        load(f"{{{EPOCHS}}}", {"steps": 30, "epochs": 3})


def test_mixed_precision_follows_the_device():
    of = {"float16": {"device": "cuda"}, "bfloat16": {}}
    for dtype, values in of.items():
        assert Experiment(name="x", **values).resolved_amp_dtype == dtype
    assert Experiment(name="x", amp_dtype="float16").resolved_amp_dtype == "float16"


def test_images_has_the_articles_values():
    """50,000 images on 2 ranks: 25,000 each, 391 windows of 64 per epoch, 3910 updates."""
    experiment = load_experiment(PROJECT / "config" / "images.yaml")
    assert experiment.optimizer == Sgd(lr=0.01, momentum=0.9, weight_decay=1e-4)
    assert experiment.schedule == Cosine(per="epoch")
    assert experiment.model == ResNet(stages=(64, 128, 256), blocks=2, norm="batch")
    assert experiment.corpus == Images(train=49_999, classes=10, channels=3, size=32)  # odd: unequal counts
    assert (experiment.epochs, experiment.batch, experiment.accumulation, experiment.workers) == (10, 64, 1, 4)
    assert (experiment.seed, experiment.save_every, experiment.log_interval) == (42, 1, 10)
    assert (experiment.use_amp, experiment.device, experiment.resolved_amp_dtype) == (True, "cuda", "float16")
    assert (experiment.steps, experiment.windows_per_epoch(49_999)) == (3910, 391)
    assert experiment.augmentation != "none"
    assert place_in_epoch(experiment.interrupt_at + 1, 391) == (5, 45), "the resume is inside an epoch"


def test_images_small_is_images_in_another_size():
    whole, small = (load_experiment(PROJECT / "config" / f"{name}.yaml") for name in ("images", "images_small"))
    for field in ("seed", "model", "optimizer", "schedule", "sharding", "augmentation", "workload", "save_every"):
        assert getattr(small, field) == getattr(whole, field), field
    assert (small.device, small.use_amp) == ("cpu", False)
    assert small.interrupt_at % small.windows_per_epoch(small.corpus.train), "the resume is inside an epoch"


@pytest.fixture
def files(tmp_path):
    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return tmp_path

    return write


def test_a_file_lies_over_its_base_field_by_field(files):
    folder = files(
        lowest="{batch: 4, seed: 3, optimizer: {lr: 0.5, momentum: 0.1}, name: first}",
        middle="{base: lowest.yaml, batch: 2, optimizer: {lr: 0.25}}",
        top="{base: middle.yaml, seed: 5}",
    )
    top = load_experiment(folder / "top.yaml", {"keep": 7})
    assert (top.batch, top.seed, top.keep, top.optimizer) == (2, 5, 7, Sgd(lr=0.25, momentum=0.1))
    assert top.name == "top", "a name is that of one file's results"
    assert load_experiment(folder / "lowest.yaml").name == "first"


def test_a_base_in_another_folder_is_looked_for_from_the_file(files):
    folder = files(base="batch: 4")
    (folder / "below").mkdir()
    (folder / "below" / "mine.yaml").write_text("base: ../base.yaml")
    assert load_experiment(folder / "below" / "mine.yaml").batch == 4


def test_steps_and_epochs_of_an_upper_file_replace_both(files):
    folder = files(
        epochs=f"{{{EPOCHS}}}",
        steps="{base: epochs.yaml, steps: 70}",
        epochs_again="{base: steps.yaml, epochs: 5}",
        neither="{base: epochs.yaml, epochs: null}",
        both="{base: steps.yaml, epochs: 5, steps: 65}",
    )
    found = {name: load_experiment(folder / f"{name}.yaml") for name in ("epochs", "steps", "epochs_again", "neither")}
    assert {name: (experiment.epochs, experiment.steps) for name, experiment in found.items()} == {
        "epochs": (4, 52),
        "steps": (None, 70),
        "epochs_again": (5, 65),
        "neither": (None, 100),
    }
    with pytest.raises(ConfigError, match=r"both\.yaml: give epochs or steps, not both"):
        load_experiment(folder / "both.yaml")


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"mine": "base: mine.yaml"}, r"mine\.yaml: field 'base' leads back to .*mine\.yaml: an experiment cannot lie"),
        (
            {"mine": "base: other.yaml", "other": "base: mine.yaml"},
            r"other\.yaml: field 'base' leads back to .*mine\.yaml: an experiment cannot lie over itself",
        ),
        ({"mine": "base: gone.yaml"}, r"mine\.yaml: field 'base': \S+gone\.yaml does not exist$"),
        (
            {"mine": "base: [a.yaml]"},
            r"mine\.yaml: field 'base': the name of a YAML file beside this one is needed \(got \[",
        ),
        ({"mine": "base: other.yaml", "other": "[1]"}, r"other\.yaml must hold fields and values, not list"),
        ({"mine": "base: other.yaml", "other": "batch: 0"}, r"other\.yaml: field 'batch'"),
        ({"mine": "{base: other.yaml, batch: 0}", "other": "batch: 1"}, r"mine\.yaml: field 'batch'"),
        ({"mine": "base: other.yaml", "other": "bach: 1"}, r"other\.yaml: unknown field 'bach', did you mean 'batch'"),
        ({"mine": "base: other.yaml", "other": "interrupt_at: 500"}, r"mine\.yaml: interrupt_at 500 must come before"),
    ],
)
def test_a_base_that_cannot_be_used_is_named(files, texts, problem):
    folder = files(**texts)
    with pytest.raises(ConfigError, match=problem):
        load_experiment(folder / "mine.yaml")


@pytest.mark.parametrize(
    ("values", "gpus"),
    [
        ({}, 0),
        ({"device": "cuda", "world_size": 8, "nodes": 2}, 4),
        ({"device": "cuda", "world_size": 8, "nodes": 2, "gpus_per_node": 4}, 4),
        ({"device": "cuda", "world_size": 8, "nodes": 2, "backend": "gloo"}, 1),
        ({"device": "cuda", "world_size": 8, "nodes": 2, "backend": "gloo", "gpus_per_node": 2}, 2),
    ],
)
def test_gpus_of_a_host_follow_from_its_ranks(values, gpus):
    assert Experiment(name="mine", **values).resolved_gpus_per_node == gpus
