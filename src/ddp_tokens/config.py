"""The one definition of every setting. Validation, command-line flags and config/README.md come from it."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from ddp_tokens.errors import ConfigError
from ddp_tokens.sources import module_path
from ddp_tokens.yaml_files import read_yaml


def _no_boolean(value: Any) -> Any:
    """pydantic would read `batch: true` as 1."""
    if isinstance(value, bool):
        raise ValueError("a number is needed here")
    return value


NO_BOOLEAN = BeforeValidator(_no_boolean)
Positive = Annotated[int, Field(ge=1), NO_BOOLEAN]
NonNegative = Annotated[int, Field(ge=0), NO_BOOLEAN]
Real = Annotated[float, Field(allow_inf_nan=False), NO_BOOLEAN]
PositiveReal = Annotated[float, Field(gt=0, allow_inf_nan=False), NO_BOOLEAN]
NonNegativeReal = Annotated[float, Field(ge=0, allow_inf_nan=False), NO_BOOLEAN]
Fraction = Annotated[float, Field(ge=0, lt=1), NO_BOOLEAN]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class GeneratedCorpus(Section):
    """Sequences over a small alphabet, made from the seed. The label at each position is
    (token + position) mod classes, so every position is supervised and the rule can be learned."""

    train: Positive = Field(1024, description="training sequences; half of them short, half long")
    validation: Positive = Field(128, description="validation sequences, lengths uniform over the whole range")
    test: Positive = Field(256, description="test sequences, lengths uniform over the whole range")
    vocabulary: Positive = Field(4, description="number of symbols")
    classes: Positive = Field(4, description="number of label classes")
    min_length: Positive = Field(16, description="shortest sequence, in tokens")
    short_max_length: Positive = Field(64, description="longest of the short half, in tokens")
    max_length: Positive = Field(128, description="longest sequence, in tokens")

    @model_validator(mode="after")
    def _lengths_in_order(self) -> Self:
        if not self.min_length <= self.short_max_length < self.max_length:
            raise ValueError(
                "min_length <= short_max_length < max_length is needed, "
                f"not {self.min_length}, {self.short_max_length}, {self.max_length}"
            )
        return self


class OwnRows(Section):
    """Your own data: one JSON object per line with the fields id, split, tokens and labels."""

    path: str = Field(description="a JSONL file; relative paths start at the current folder")
    classes: Positive | None = Field(
        None, description="number of label classes; when absent, the largest label of the file plus one"
    )


def _corpus_kind(value: Any) -> str:
    own = isinstance(value, OwnRows) or (isinstance(value, Mapping) and "path" in value)
    return "own" if own else "generated"


Corpus = Annotated[
    Annotated[GeneratedCorpus, Tag("generated")] | Annotated[OwnRows, Tag("own")], Discriminator(_corpus_kind)
]


class Model(Section):
    """A Transformer encoder that labels every token. Vocabulary, positions and classes follow the corpus."""

    width: Positive = Field(128, description="embedding width; a multiple of heads")
    layers: Positive = Field(2, description="pre-norm encoder layers")
    heads: Positive = Field(4, description="attention heads")
    feed_forward: Positive = Field(256, description="width of the feed-forward part")
    dropout: Fraction = Field(0.1, description="on in training; off where gradients are compared and in evaluation")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class Optimizer(Section):
    """SGD with momentum."""

    lr: PositiveReal = Field(0.02, description="learning rate")
    momentum: Fraction = Field(0.9, description="above 0, so that there is optimizer state that a resume could lose")
    clip_norm: PositiveReal | None = Field(
        None,
        description="largest norm of a window's gradient; larger ones are scaled down, once per window, after the last "
        "backward",
    )


class Tolerance(Section):
    """A gradient value agrees when |ddp - ref| <= atol + rtol * |ref|."""

    atol: NonNegativeReal = Field(description="absolute part, in units of the gradient")
    rtol: NonNegativeReal = Field(description="relative part, as a fraction of |ref|")


class Tolerances(Section):
    """What gradient parity accepts. Errors are norms, parameter by parameter, against the reference in float64."""

    float64: PositiveReal = Field(
        1e-12,
        description="in float64, where only the formula can make a difference: error as a fraction of the norm",
    )
    native: PositiveReal = Field(
        4.0, description="in the training dtype: error as a multiple of that of one process in the same dtype"
    )
    power: Annotated[float, Field(ge=1, allow_inf_nan=False), NO_BOOLEAN] = Field(
        3.0,
        description="a wrong formula that is fewer tolerances away cannot be told from the right one: inconclusive",
    )
    published: Tolerance = Field(
        Tolerance(atol=1e-6, rtol=1e-4),
        description="the published criterion for each value, in the training dtype; reported beside, decides nothing",
    )


class Exercise(Section):
    """Two ranks whose token counts become unequal; loss per token times theta squared, at theta = 1."""

    counts_before: tuple[Positive, ...] = Field((12, 12), description="tokens per rank, before")
    counts_after: tuple[Positive, ...] = Field((12, 36), description="tokens per rank, after")
    losses: tuple[Real, ...] = Field((1.0, 3.0), description="loss per token on each rank")

    @model_validator(mode="after")
    def _one_entry_per_rank(self) -> Self:
        if not len(self.counts_before) == len(self.counts_after) == len(self.losses):
            raise ValueError("counts_before, counts_after and losses need one entry per rank each")
        return self


class Experiment(Section):
    """One experiment: what is trained, on what, in which order, by how many ranks, and how it is judged."""

    name: str = Field(
        description="results go to results/NAME; by default the YAML file's name; letters, digits, '.', '_' and '-'",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
    )
    seed: NonNegative = Field(
        17, description="corpus: seed; initial weights: seed; plan: seed + 10; dropout of rank r: seed + 1000 + r"
    )
    corpus: Corpus = Field(GeneratedCorpus(), description="generated sequences, or `{path: rows.jsonl}`")
    workload: str = Field(
        "token_labels", description="kind of work, a file in src/ddp_tokens/workloads/", pattern=r"^[a-z_]+$"
    )
    model: Model = Field(Model(), description="size of the model")
    optimizer: Optimizer = Field(Optimizer(), description="how weights are updated")
    steps: Positive = Field(100, description="updates of the whole run")
    interrupt_at: Positive = Field(50, description="update after which the interrupted run stops; before `steps`")
    checkpoint_every: NonNegative = Field(
        10, description="updates between the working checkpoints from which a killed run continues; 0 for none"
    )
    keep: Positive = Field(2, description="number of working checkpoints that are kept while a run goes on")
    batch: Positive = Field(8, description="rows per rank and microbatch")
    accumulation: Positive = Field(2, description="microbatches per rank and update (gradient accumulation)")
    world_size: Positive = Field(2, description="number of ranks")
    device: Literal["cpu", "cuda"] = Field("cpu", description="cuda takes one GPU per rank")
    backend: Literal["auto", "gloo", "nccl"] = Field("auto", description="auto is gloo on cpu and nccl on cuda")
    launcher: Literal["auto", "fork", "torchrun"] = Field(
        "auto",
        description="fork starts the ranks as copies of one process that has imported torch; "
        "auto is fork on cpu and torchrun on cuda",
    )
    threads_per_rank: Positive = Field(1, description="compute threads of each rank, on any machine")
    timeout_s: Positive = Field(120, description="seconds after which a collective without answer is an error")
    tolerances: Tolerances = Field(Tolerances(), description="what gradient parity accepts")
    train_anyway: bool = Field(
        False, description="train although check_loss or gradient parity is not as expected; the report says so"
    )
    exercise: Exercise = Field(Exercise(), description="the exercise by hand, for `ddp_tokens.cli exercise`")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.interrupt_at >= self.steps:
            raise ValueError(f"interrupt_at {self.interrupt_at} must come before the last update, steps {self.steps}")
        if self.backend == "nccl" and self.device == "cpu":
            raise ValueError("backend nccl needs device cuda")
        if self.launcher == "fork" and self.device == "cuda":
            raise ValueError("launcher fork is for device cpu: a forked process cannot use CUDA; take torchrun")
        if module_path(f"ddp_tokens.workloads.{self.workload}") is None:
            raise ValueError(f"workload '{self.workload}' has no file src/ddp_tokens/workloads/{self.workload}.py")
        return self

    @property
    def resolved_backend(self) -> str:
        if self.backend != "auto":
            return self.backend
        return "nccl" if self.device == "cuda" else "gloo"

    @property
    def resolved_launcher(self) -> str:
        if self.launcher != "auto":
            return self.launcher
        return "torchrun" if self.device == "cuda" else "fork"


def load_experiment(path: Path | str, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """Read an experiment's YAML file, lay `overrides` (nested like the file) over it, and validate the whole.

    Raises ConfigError, naming the file and the field.
    """
    defaults = Experiment(name="defaults").model_dump() | {"name": Path(path).stem}
    values = merge(merge(defaults, read_yaml(path)), overrides or {})
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        overridden = overrides and error.errors()[0]["loc"][:1] and error.errors()[0]["loc"][0] in overrides
        source = f"{path}, as overridden on the command line" if overridden else f"{path}"
        raise ConfigError(f"{source}: {describe(error)}") from None


def merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides go over the base, mapping by mapping; own rows replace a generated corpus whole."""
    merged = dict(base)
    for name, value in overrides.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _becomes_own_rows(old, value):
            value = merge(old, value)
        merged[name] = value
    return merged


def _becomes_own_rows(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return "path" in new and "path" not in old


def describe(error: ValidationError) -> str:
    """The first problem in one sentence, and how many more there are."""
    first, *others = error.errors()
    names = [str(part) for part in first["loc"] if part not in ("generated", "own")]
    where = ".".join(names)
    if first["type"] == "extra_forbidden":
        text = f"unknown field '{where}'{suggestion(where)}; config/README.md lists every field"
    elif first["type"] == "missing":
        text = f"field '{where}' is missing"
    else:
        message = first["msg"].removeprefix("Value error, ")
        plain = not isinstance(first["input"], Mapping)
        text = (f"field '{where}': " if where else "") + message + (f" (got {first['input']!r})" if plain else "")
    return text + (f" (and {len(others)} more)" if others else "")


def suggestion(where: str) -> str:
    """ ", did you mean ...?" for a field that does not exist, by its last part; "" when nothing is close."""
    by_name = {path.rpartition(".")[2]: path for path in reversed(field_paths(Experiment)) if path != where}
    close = difflib.get_close_matches(where.rpartition(".")[2], by_name, n=1)
    return f", did you mean '{by_name[close[0]]}'?" if close else ""


def sections_of(annotation: Any) -> list[type[Section]]:
    """The sections that a field's annotation names: none for a plain value, two for the corpus."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Section) else []
    return [section for part in getattr(annotation, "__args__", ()) for section in sections_of(part)]


def field_paths(section: type[Section], above: str = "") -> list[str]:
    """Every field below a section, such as optimizer.lr."""
    paths: list[str] = []
    for name, field in section.model_fields.items():
        paths.append(above + name)
        for nested in sections_of(field.annotation):
            paths.extend(field_paths(nested, f"{above}{name}."))
    return paths
