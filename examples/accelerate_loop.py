"""Hugging Face Accelerate: `accumulate()` as its guide shows it, and the guide's recipe for samples of unequal length.

torchrun --standalone --nproc-per-node=2 examples/accelerate_loop.py --output accelerate.json --setting accumulate
"""

from contextlib import nullcontext

import shared
from accelerate import Accelerator

from ddp_tokens import audit


def accumulate(accelerator, model, optimizer, loader):
    for batch in loader:
        with accelerator.accumulate(model):
            logits = model(batch["tokens"], batch["padding"])
            loss = shared.mean_loss(logits, batch["labels"])
            accelerator.backward(loss)  # divides by gradient_accumulation_steps
            optimizer.step()
            optimizer.zero_grad()


def gathered_count(accelerator, model, optimizer, loader):
    for window in shared.in_windows(loader):
        units = accelerator.gather(shared.count(window)).sum()
        # DDP will divide by the number of processes, and backward by the accumulation: both are taken back.
        factor = accelerator.num_processes * accelerator.gradient_accumulation_steps
        for batch in window:
            with nullcontext() if batch is window[-1] else model.no_sync():
                logits = model(batch["tokens"], batch["padding"])
                loss = shared.loss_sum(logits, batch["labels"]) * factor / units
                accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


def main():
    settings = {"accumulate": accumulate, "gathered_count": gathered_count}
    own = shared.arguments(*settings)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=shared.ACCUMULATION)
    model = own.windows.model()
    # The loader is not prepared: each rank's batches are its own already, and prepare would deal them out again.
    model, optimizer = accelerator.prepare(model, own.windows.optimizer(model))
    with audit(model, optimizer, loss_sum="token-classification") as report, shared.Clock() as clock:
        settings[own.setting](accelerator, model, optimizer, report.watch(own.windows.loader()))
    shared.write(own, report, clock, "accelerate")


if __name__ == "__main__":
    main()
