"""The one definition of every setting. Validation, command-line flags and config/README.md come from it."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from ddp_tokens.sources import module_path


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


def _kind(default: Callable[[Mapping[str, Any]], str]) -> Discriminator:
    """By the field `kind` of what is given; `default` says which kind it is where that is left out."""

    def kind(value: Any) -> str:
        given = vars(value) if isinstance(value, Section) else value
        return str(given.get("kind", default(given))) if isinstance(given, Mapping) else default({})

    return Discriminator(kind)


class GeneratedCorpus(Section):
    """Sequences over a small alphabet, made from the seed. The label at each position is
    (token + position) mod classes, so every position is supervised and the rule can be learned."""

    kind: Literal["generated"] = Field("generated", description="sequences with a label at every position")
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


class VerbGrammar(Section):
    """English sentences made from the seed: tense, aspect, agreement, negation and questions of regular and common
    irregular verbs. Tokens are words, the label at each position is the next word, so that a row of n tokens has n - 1
    supervised units. No sentence stands there twice."""

    kind: Literal["verb_grammar"] = Field("verb_grammar", description="sentences of English verb grammar")
    train: Positive = Field(3200, description="training sentences")
    validation: Positive = Field(200, description="validation sentences")
    test: Positive = Field(400, description="test sentences")


class OwnRows(Section):
    """Your own data: one JSON object per line with the fields id, split, tokens and, unless they follow from these,
    labels."""

    kind: Literal["own"] = Field("own", description="rows of a file; may be left out where `path` is given")
    path: str = Field(description="a JSONL file; relative paths start at the current folder")
    classes: Positive | None = Field(
        None, description="number of label classes; when absent, the largest label of the file plus one"
    )
    labels: Literal["given", "next_token"] = Field(
        "given",
        description="next_token: rows have no field `labels`; each token is labelled with the one that comes next, the "
        "last with none, as the workload causal_lm needs it",
    )

    @model_validator(mode="after")
    def _classes_of_given_labels(self) -> Self:
        if self.labels == "next_token" and self.classes is not None:
            raise ValueError("classes goes with labels that are given; with labels: next_token leave it out")
        return self


Corpus = Annotated[
    Annotated[GeneratedCorpus, Tag("generated")]
    | Annotated[VerbGrammar, Tag("verb_grammar")]
    | Annotated[OwnRows, Tag("own")],
    _kind(lambda value: "own" if "path" in value else "generated"),
]


class Model(Section):
    """A small pre-norm Transformer. Vocabulary, positions and classes follow the corpus."""

    width: Positive = Field(128, description="embedding width; a multiple of heads")
    layers: Positive = Field(2, description="Transformer layers")
    heads: Positive = Field(4, description="attention heads")
    feed_forward: Positive = Field(256, description="width of the feed-forward part")
    dropout: Fraction = Field(0.1, description="on in training; off where gradients are compared and in evaluation")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


ClipNorm = PositiveReal | None
CLIP_NORM: ClipNorm = Field(
    None,
    description="largest norm of a window's gradient; larger ones are scaled down, once per window, after the last "
    "backward",
)


class Sgd(Section):
    """SGD with momentum."""

    kind: Literal["sgd"] = Field("sgd", description="stochastic gradient descent; the default")
    lr: PositiveReal = Field(0.02, description="learning rate")
    momentum: Fraction = Field(0.9, description="above 0, so that there is optimizer state that a resume could lose")
    clip_norm: ClipNorm = CLIP_NORM


class AdamW(Section):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"] = Field("adamw", description="Adam with decoupled weight decay")
    lr: PositiveReal = Field(3e-4, description="learning rate")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), description="decay of the running means of both moments")
    eps: PositiveReal = Field(1e-8, description="added to the root of the second moment")
    weight_decay: NonNegativeReal = Field(0.01, description="share of lr by which every weight shrinks in each update")
    clip_norm: ClipNorm = CLIP_NORM


Optimizer = Annotated[
    Annotated[Sgd, Tag("sgd")] | Annotated[AdamW, Tag("adamw")],
    _kind(lambda value: "sgd"),
]


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


class Scaling(Section):
    """What the rule `scaling` measures: the training loop on other numbers of processes, on this machine's CPU."""

    processes: tuple[Positive, ...] = Field(
        (1, 2, 4), description="numbers of processes, smallest first; 1 and 2 are needed, and world_size is added"
    )
    repeats: Positive = Field(5, description="runs of each number of processes, in turn; the spread is over these")
    windows: Positive = Field(10, description="updates of each run, at most `steps`")

    @model_validator(mode="after")
    def _processes_in_order(self) -> Self:
        if list(self.processes) != sorted(set(self.processes)) or not {1, 2} <= set(self.processes):
            raise ValueError(f"processes must hold 1 and 2, each once, smallest first, not {list(self.processes)}")
        return self


class Experiment(Section):
    """One experiment: what is trained, on what, in which order, by how many ranks, and how it is judged."""

    name: str = Field(
        description="results go to results/NAME; by default the YAML file's name; letters, digits, '.', '_' and '-'",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
    )
    seed: NonNegative = Field(
        17,
        description="corpus: seed; initial weights: seed; plan: seed + 10, or seed + r for rank r where sharding is "
        "by_index; dropout of rank r: seed + 1000 + r",
    )
    corpus: Corpus = Field(GeneratedCorpus(), description="generated sequences, sentences, or `{path: rows.jsonl}`")
    workload: str = Field(
        "token_labels", description="kind of work, a file in src/ddp_tokens/workloads/", pattern=r"^[a-z_]+$"
    )
    model: Model = Field(Model(), description="size of the model")
    optimizer: Optimizer = Field(Sgd(), description="how weights are updated")
    steps: Positive = Field(100, description="updates of the whole run")
    interrupt_at: Positive = Field(50, description="update after which the interrupted run stops; before `steps`")
    checkpoint_every: NonNegative = Field(
        10, description="updates between the working checkpoints from which a killed run continues; 0 for none"
    )
    keep: Positive = Field(2, description="number of working checkpoints that are kept while a run goes on")
    batch: Positive = Field(8, description="rows per rank and microbatch")
    accumulation: Positive = Field(2, description="microbatches per rank and update (gradient accumulation)")
    world_size: Positive = Field(2, description="number of ranks")
    sharding: Literal["by_length", "by_index"] = Field(
        "by_length",
        description="training rows that a rank draws from: by_length gives rank 0 the shortest and the last rank the "
        "longest; by_index gives rank r every row whose index modulo world_size is r",
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="cuda takes one GPU per rank")
    backend: Literal["auto", "gloo", "nccl"] = Field("auto", description="auto is gloo on cpu and nccl on cuda")
    launcher: Literal["auto", "fork", "torchrun", "spawn"] = Field(
        "auto",
        description="fork starts the ranks as copies of one process that has imported torch; auto is fork on cpu and "
        "torchrun on cuda; spawn, torch.multiprocessing.spawn without torchrun's agent, is the fallback where neither "
        "works",
    )
    threads_per_rank: Positive = Field(1, description="compute threads of each rank, on any machine")
    timeout_s: Positive = Field(120, description="seconds after which a collective without answer is an error")
    tolerances: Tolerances = Field(Tolerances(), description="what gradient parity accepts")
    train_anyway: bool = Field(
        False, description="train although check_loss or gradient parity is not as expected; the report says so"
    )
    scaling: Scaling = Field(Scaling(), description="what the rule `scaling` measures")
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

    @property
    def measured_processes(self) -> list[int]:
        return sorted({*self.scaling.processes, self.world_size})
