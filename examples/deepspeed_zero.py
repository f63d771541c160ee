"""DeepSpeed with ZeRO stage 1: each rank keeps the gradient and the optimizer state of a part of the parameters.

torchrun --standalone --nproc-per-node=2 examples/deepspeed_zero.py --output deepspeed.json --setting documented
"""

import logging

import deepspeed
import shared
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_grad

from ddp_tokens import audit

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": shared.ACCUMULATION,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,  # SGD
}


class Shown(torch.optim.Optimizer):
    """Updates nothing. ZeRO keeps gradients where no optimizer of torch has them: here an audit finds them whole."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        return None

    def show(self):
        parameters = self.param_groups[0]["params"]
        for parameter in parameters:
            parameter.grad = safe_get_full_grad(parameter)  # a collective: every rank calls it
        self.step()
        for parameter in parameters:
            parameter.grad = None


def train(engine, shown, loader, setting):
    for window in shared.in_windows(loader):
        units = shared.count(window)
        dist.all_reduce(units)
        for batch in window:
            logits = engine(batch["tokens"], batch["padding"])
            if setting == "documented":
                engine.backward(shared.mean_loss(logits, batch["labels"]))  # divides by gradient_accumulation_steps
            else:
                loss = shared.loss_sum(logits, batch["labels"]) * dist.get_world_size() / units
                engine.backward(loss, scale_wrt_gas=False)
            if engine.is_gradient_accumulation_boundary():
                shown.show()
            engine.step()


def main():
    own = shared.arguments("documented", "global_count")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # an all-reduce for CPUs that it would compile first
    deepspeed.init_distributed("gloo", verbose=False)
    model = own.windows.model()
    engine, *_ = deepspeed.initialize(model=model, optimizer=own.windows.optimizer(model), config=CONFIG)
    shown = Shown(model.parameters())
    with audit(model, shown, loss_sum="token-classification") as report, shared.Clock() as clock:
        train(engine, shown, report.watch(own.windows.loader()), own.setting)
    shared.write(own, report, clock, "deepspeed")


if __name__ == "__main__":
    main()
