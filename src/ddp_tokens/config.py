"""The one definition of every setting. Validation, command-line flags and config/README.md come from it."""

from typing import Literal, Self

from pydantic import Field, model_validator

from ddp_tokens.check_settings import Tolerance, Tolerances
from ddp_tokens.corpus_settings import Corpus, GeneratedCorpus, Images, OwnImages, OwnRows, VerbGrammar
from ddp_tokens.epochs import windows_per_epoch
from ddp_tokens.image_settings import require_images
from ddp_tokens.measure_settings import Exercise, Network, Scaling
from ddp_tokens.objective_settings import ClassWeights, Smoothing, Unit
from ddp_tokens.setting_types import NonNegative, Positive, Section
from ddp_tokens.strategy_settings import Strategy, require_strategy
from ddp_tokens.training_settings import (
    AdamW,
    Constant,
    Cosine,
    Model,
    Optimizer,
    OwnModel,
    ResNet,
    Schedule,
    Sgd,
    Transformer,
)
from ddp_tokens.workload_names import WorkloadName, is_own, place_of

__all__ = [
    "AdamW",
    "Constant",
    "Corpus",
    "Cosine",
    "Exercise",
    "Experiment",
    "GeneratedCorpus",
    "Images",
    "Model",
    "Network",
    "Optimizer",
    "OwnImages",
    "OwnModel",
    "OwnRows",
    "ResNet",
    "Scaling",
    "Schedule",
    "Section",
    "Sgd",
    "Tolerance",
    "Tolerances",
    "Transformer",
    "VerbGrammar",
]


class Experiment(Section):
    """One experiment: what is trained, on what, in which order, by how many ranks, and how it is judged."""

    name: str = Field(
        description="results go to results/NAME; by default the YAML file's name; letters, digits, '.', '_' and '-'",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
    )
    seed: NonNegative = Field(
        17,
        description="corpus: seed; initial weights: seed; plan: seed + 10, or seed + r for rank r where sharding is "
        "by_index, or seed where it is by_epoch; augmentation of rank r: seed + r; dropout of rank r: seed + 1000 + r",
    )
    corpus: Corpus = Field(
        GeneratedCorpus(), description="generated sequences, sentences or images, or `{path: rows.jsonl}`"
    )
    workload: WorkloadName = Field(
        "token_labels",
        description="kind of work: a file in src/ddp_tokens/workloads/; or your own, `path/to/mine.py:MyWork`, from "
        "the current folder on, or `package.module:MyWork`, see docs/own-work.md",
    )
    model: Model = Field(Transformer(), description="kind and size of the model")
    unit: Unit = Field(
        "token",
        description="what counts once in the objective: each supervised token; each sequence, with the mean of its "
        "tokens (of a packed row, each of its sequences); each document, the rows with one field `document`; or each "
        "sample, a row",
    )
    class_weights: ClassWeights = Field(
        None,
        description="by class, how much a label of it counts, in the sum of losses and in the denominator, as in "
        "torch's CrossEntropyLoss; when absent, 1 each",
    )
    label_smoothing: Smoothing = Field(
        0.0, description="share of a label that is spread over all classes, as in torch's CrossEntropyLoss"
    )
    strategy: Strategy = Field(
        "ddp",
        description="what ranks hold: ddp all of the model and the optimizer's state; zero1 a share of the optimizer's "
        "state (ZeroRedundancyOptimizer); fsdp2 a share of everything (fully_shard)",
    )
    optimizer: Optimizer = Field(Sgd(), description="how weights are updated")
    schedule: Schedule = Field(Constant(), description="how the learning rate changes")
    steps: Positive = Field(100, description="updates of the whole run; leave it out where `epochs` is given")
    epochs: Positive | None = Field(
        None, description="passes over the training rows, with sharding by_epoch; `steps` follows from it"
    )
    interrupt_at: Positive = Field(50, description="update after which the interrupted run stops; before `steps`")
    checkpoint_every: NonNegative = Field(
        10, description="updates between the working checkpoints from which a killed run continues; 0 for none"
    )
    save_every: NonNegative = Field(
        0, description="epochs between working checkpoints, in place of checkpoint_every; 0: checkpoint_every decides"
    )
    keep: Positive = Field(2, description="number of working checkpoints that are kept while a run goes on")
    batch: Positive = Field(8, description="rows per rank and microbatch")
    accumulation: Positive = Field(2, description="microbatches per rank and update (gradient accumulation)")
    world_size: Positive = Field(2, description="number of ranks")
    sharding: Literal["by_length", "by_index", "by_epoch", "by_document"] = Field(
        "by_length",
        description="training rows that a rank draws from: by_length gives rank 0 the shortest and the last rank the "
        "longest; by_index gives rank r every row whose index modulo world_size is r; by_epoch deals each row once per "
        "epoch, in the order of torch's DistributedSampler; by_document draws whole documents for each window and "
        "deals their rows to the ranks, so that these may have unequal numbers of microbatches",
    )
    drop_last: bool = Field(
        False,
        description="with sharding by_epoch: leave out the rows at an epoch's end that do not fill a window; without, "
        "the last window is short and ranks may hold unequal numbers of rows",
    )
    augmentation: Literal["none", "shift", "shift_and_flip"] = Field(
        "none",
        description="of images, in training only: moved by up to an eighth of their size, mirrored half of the time",
    )
    workers: NonNegative = Field(0, description="processes per rank that make batches ahead; 0: the rank makes them")
    use_amp: bool = Field(
        False, description="train in mixed precision; gradients are compared, and rows scored, without it"
    )
    amp_dtype: Literal["auto", "bfloat16", "float16"] = Field(
        "auto",
        description="of mixed precision: auto is float16 on cuda and bfloat16 on cpu; float16 has its loss scaled",
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="cuda takes one GPU per rank")
    backend: Literal["auto", "gloo", "nccl"] = Field("auto", description="auto is gloo on cpu and nccl on cuda")
    launcher: Literal["auto", "fork", "torchrun", "spawn"] = Field(
        "auto",
        description="fork starts the ranks as copies of one process that has imported torch; auto is fork on cpu and "
        "torchrun on cuda; spawn, torch.multiprocessing.spawn without torchrun's agent, is the fallback where neither "
        "works",
    )
    nodes: Positive = Field(
        1,
        description="hosts that share the ranks of one run equally; more than 1 needs an engine that starts them, such "
        "as SLURM",
    )
    gpus_per_node: Positive | None = Field(
        None, description="GPUs that a run takes on each host; by default one per rank, with gloo one for all ranks"
    )
    rendezvous_timeout_s: Positive = Field(600, description="seconds in which all hosts must have met to start a run")
    threads_per_rank: Positive = Field(1, description="compute threads of each rank, on any machine")
    timeout_s: Positive = Field(120, description="seconds without an answer of other ranks, or a batch, until it fails")
    tolerances: Tolerances = Field(Tolerances(), description="what gradient parity accepts")
    train_anyway: bool = Field(
        False, description="train although check_loss or gradient parity is not as expected; the report says so"
    )
    log_interval: Positive = Field(10, description="updates between the lines on the terminal and in the logs")
    tensorboard: bool = Field(
        False, description="write event files for TensorBoard to results/NAME/logs/tensorboard; needs that package"
    )
    profile: bool = Field(
        False, description="trace a few updates of each run, by rank, to results/NAME/logs/profile; the report shows it"
    )
    scaling: Scaling = Field(Scaling(), description="what the rule `scaling` measures")
    network: Network = Field(
        Network(), description="a network for which the rule `predict` predicts, beside the measured one"
    )
    exercise: Exercise = Field(Exercise(), description="the exercise by hand, for `ddp_tokens.cli exercise`")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._require_epochs()
        require_images(self)
        amp_dtype = self.resolved_amp_dtype if self.use_amp else None
        require_strategy(self.strategy, self.world_size, amp_dtype, self.model)
        self._follow_epochs()
        if self.interrupt_at >= self.steps:
            raise ValueError(
                f"interrupt_at {self.interrupt_at} must come before the last update, steps {self.steps}: set "
                f"interrupt_at to {max(1, self.steps // 2)}, for example"
            )
        if self.backend == "nccl" and self.device == "cpu":
            raise ValueError("backend nccl needs device cuda")
        if self.launcher == "fork" and self.device == "cuda":
            raise ValueError("launcher fork is for device cpu: a forked process cannot use CUDA; take torchrun")
        self._require_nodes()
        if not is_own(self.workload) and place_of(self.workload).file is None:
            raise ValueError(
                f"workload '{self.workload}' has no file src/ddp_tokens/workloads/{self.workload}.py: one of your own "
                "is given as path/to/mine.py:MyWork"
            )
        return self

    def _require_nodes(self) -> None:
        if self.world_size % self.nodes:
            raise ValueError(
                f"world_size {self.world_size} cannot be shared equally by nodes {self.nodes}: set world_size to "
                f"{self.nodes * max(1, self.world_size // self.nodes)}, for example"
            )
        if self.gpus_per_node is None:
            return
        if self.device == "cpu":
            raise ValueError("gpus_per_node needs device cuda")
        if self.resolved_backend == "nccl" and self.gpus_per_node != self.ranks_per_node:
            raise ValueError(
                f"backend nccl takes one GPU per rank: world_size {self.world_size} over nodes {self.nodes} is "
                f"{self.ranks_per_node} per host, and gpus_per_node says {self.gpus_per_node}"
            )

    def _require_epochs(self) -> None:
        by_epoch = self.sharding == "by_epoch"
        needing = {
            "epochs": self.epochs is not None,
            "drop_last": self.drop_last,
            "save_every": self.save_every > 0,
            "schedule.per epoch": isinstance(self.schedule, Cosine) and self.schedule.per == "epoch",
        }
        for field, is_set in needing.items():
            if is_set and not by_epoch:
                raise ValueError(
                    f"{field} needs sharding by_epoch, not {self.sharding}, under which there are no epochs"
                    + (": set schedule.per to update" if field.startswith("schedule") else "")
                )

    def _follow_epochs(self) -> None:
        if self.epochs is None:
            return
        steps = self.epochs * self.windows_per_epoch(self.training_rows)
        if "steps" in self.model_fields_set and self.steps != steps:
            raise ValueError(
                f"give epochs or steps, not both: epochs {self.epochs} are {steps} updates, and steps says {self.steps}"
            )
        vars(self)["steps"] = steps

    @property
    def training_rows(self) -> int:
        """As the corpus states it. Raises ValueError for own rows, whose number only the file tells."""
        if isinstance(self.corpus, OwnRows):
            raise ValueError("epochs needs a corpus that states its number of training rows: give steps instead")
        return self.corpus.train

    def windows_per_epoch(self, training_rows: int) -> int:
        """With sharding by_epoch. Raises ValueError when there is not even one."""
        return windows_per_epoch(training_rows, self.world_size, self.accumulation * self.batch, self.drop_last)

    @property
    def resolved_amp_dtype(self) -> str:
        if self.amp_dtype != "auto":
            return self.amp_dtype
        return "float16" if self.device == "cuda" else "bfloat16"

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
    def ranks_per_node(self) -> int:
        return self.world_size // self.nodes

    @property
    def resolved_gpus_per_node(self) -> int:
        """NCCL wants one GPU per rank; gloo ranks may share one."""
        if self.device != "cuda":
            return 0
        if self.gpus_per_node is not None:
            return self.gpus_per_node
        return self.ranks_per_node if self.resolved_backend == "nccl" else 1

    @property
    def measured_processes(self) -> list[int]:
        return sorted({*self.scaling.processes, self.world_size})
