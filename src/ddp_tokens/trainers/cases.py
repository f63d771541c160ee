"""Every row of the table of trainers: which script makes it, what it must end as, how to make it right. No torch."""

from dataclasses import dataclass

from ddp_tokens.checks.verdict import FAIL, PASS
from ddp_tokens.normalization import MEAN_OF_MEANS

MEAN_OF_MICROBATCH_MEANS = "mean_of_microbatch_means"


@dataclass(frozen=True)
class Case:
    """`name`: a file name. `package`: what is imported and whose version is stated, as named on PyPI. `arguments`: of
    `examples/SCRIPT`. `expected`: an outcome; `diagnosis`: the names that a failure must have. `remedy`: a sentence
    that says how to make this trainer right, and the name of the case that does it; empty where it is right.
    """

    name: str
    trainer: str
    package: str
    setting: str
    script: str
    arguments: tuple[str, ...]
    expected: str
    diagnosis: tuple[str, ...] = ()
    remedy: str = ""
    made_right_by: str = ""


@dataclass(frozen=True)
class _Trainer:
    """What the cases of one script have in common."""

    name: str
    trainer: str
    package: str

    def right(self, case: str, setting: str, described: str) -> Case:
        return Case(case, self.trainer, self.package, described, f"{self.name}.py", ("--setting", setting), PASS)

    def wrong(self, setting: str, described: str, diagnosis: str, remedy: str, made_right_by: str) -> Case:
        return Case(
            name=f"{self.name}_{setting}",
            trainer=self.trainer,
            package=self.package,
            setting=described,
            script=f"{self.name}.py",
            arguments=("--setting", setting),
            expected=FAIL,
            diagnosis=(diagnosis,),
            remedy=remedy,
            made_right_by=made_right_by,
        )


_COUNTED = "the sum of the losses x ranks / tokens of all ranks"
_OWN_MEAN = "each rank's mean over its own tokens of the window"
_COUNT_ALL = (
    "Add up the window's tokens over all ranks, and backpropagate the sum of the losses times the number of ranks, "
    "divided by that."
)

_BARE = _Trainer("bare_ddp", "DistributedDataParallel", "torch")
_ZERO = _Trainer("zero_redundancy", "ZeroRedundancyOptimizer", "torch")
_FSDP = _Trainer("fsdp2", "FSDP2 (fully_shard)", "torch")
_ACCELERATE = _Trainer("accelerate_loop", "Accelerate", "accelerate")
_FABRIC = _Trainer("fabric_loop", "Lightning Fabric", "lightning")
_LIGHTNING = _Trainer("lightning_trainer", "Lightning Trainer", "lightning")
_HF = _Trainer("hf_trainer", "Hugging Face Trainer", "transformers")
_DEEPSPEED = _Trainer("deepspeed_zero", "DeepSpeed (ZeRO 1)", "deepspeed")

_OF_TORCH = tuple(
    case
    for of in (_BARE, _ZERO, _FSDP)
    for case in (
        of.right(of.name, "global_count", _COUNTED),
        of.wrong("mean_of_means", _OWN_MEAN, MEAN_OF_MEANS, _COUNT_ALL, of.name),
    )
)

_OF_HUGGING_FACE = (
    _ACCELERATE.right(
        "accelerate_gathered_count", "gathered_count", "counts gathered over ranks, as its guide describes"
    ),
    _ACCELERATE.wrong(
        "accumulate",
        "accumulate(), as documented",
        MEAN_OF_MICROBATCH_MEANS,
        "Gather the window's count over all ranks before its first backward, and backpropagate the sum of the losses "
        "times num_processes and gradient_accumulation_steps, divided by that.",
        "accelerate_gathered_count",
    ),
    _HF.right("hf_trainer", "kwargs", "forward takes **kwargs; average_tokens_across_devices, the default"),
    _HF.wrong(
        "kwargs_per_device",
        "forward takes **kwargs; average_tokens_across_devices=False",
        MEAN_OF_MEANS,
        "Leave average_tokens_across_devices at True, its default.",
        "hf_trainer",
    ),
    _HF.right("hf_trainer_declared", "declared", "forward names num_items_in_batch; accepts_loss_kwargs = True"),
    _HF.wrong(
        "named",
        "forward names num_items_in_batch only; average_tokens_across_devices, the default",
        MEAN_OF_MICROBATCH_MEANS,
        "Set accepts_loss_kwargs = True on the model's class, or let its forward take **kwargs: Trainer looks for "
        "nothing else.",
        "hf_trainer_declared",
    ),
    _HF.wrong(
        "named_per_device",
        "forward names num_items_in_batch only; average_tokens_across_devices=False",
        MEAN_OF_MICROBATCH_MEANS,
        "Leave average_tokens_across_devices at True, its default, and set accepts_loss_kwargs = True on the model's "
        "class, or let its forward take **kwargs.",
        "hf_trainer_declared",
    ),
)

_OF_LIGHTNING = (
    _FABRIC.right("fabric_global_count", "global_count", _COUNTED),
    _FABRIC.wrong(
        "documented", "no_backward_sync(), as documented", MEAN_OF_MICROBATCH_MEANS, _COUNT_ALL, "fabric_global_count"
    ),
    _LIGHTNING.right(
        "lightning_gathered_count", "gathered_count", "sums in training_step, divided in on_before_optimizer_step"
    ),
    _LIGHTNING.wrong(
        "mean",
        "accumulate_grad_batches, as documented",
        MEAN_OF_MICROBATCH_MEANS,
        "Return the sum of the losses times accumulate_grad_batches from training_step, and multiply each gradient in "
        "on_before_optimizer_step by world_size, divided by the tokens gathered from all ranks.",
        "lightning_gathered_count",
    ),
)

_OF_DEEPSPEED = (
    _DEEPSPEED.right("deepspeed_global_count", "global_count", _COUNTED),
    _DEEPSPEED.wrong(
        "documented",
        "the mean loss of each batch, as documented",
        MEAN_OF_MICROBATCH_MEANS,
        "Add up the window's tokens over all ranks, and call backward(loss, scale_wrt_gas=False) with the sum of the "
        "losses times the number of ranks, divided by that.",
        "deepspeed_global_count",
    ),
)

CASES: tuple[Case, ...] = (*_OF_TORCH, *_OF_HUGGING_FACE, *_OF_LIGHTNING, *_OF_DEEPSPEED)
BY_NAME: dict[str, Case] = {case.name: case for case in CASES}
