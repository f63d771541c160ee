"""Lightning Fabric: gradient accumulation as its guide shows it, and with the tokens of all ranks counted.

torchrun --standalone --nproc-per-node=2 examples/fabric_loop.py --output fabric.json --setting documented
"""

import shared
from lightning.fabric import Fabric

from ddp_tokens import audit


def documented(fabric, model, optimizer, loader):
    for iteration, batch in enumerate(loader, start=1):
        is_accumulating = iteration % shared.ACCUMULATION != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            logits = model(batch["tokens"], batch["padding"])
            loss = shared.mean_loss(logits, batch["labels"]) / shared.ACCUMULATION
            fabric.backward(loss)
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()


def global_count(fabric, model, optimizer, loader):
    for window in shared.in_windows(loader):
        units = fabric.all_reduce(shared.count(window), reduce_op="sum")
        for batch in window:
            with fabric.no_backward_sync(model, enabled=batch is not window[-1]):
                logits = model(batch["tokens"], batch["padding"])
                loss = shared.loss_sum(logits, batch["labels"]) * fabric.world_size / units
                fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


def main():
    settings = {"documented": documented, "global_count": global_count}
    own = shared.arguments(*settings)
    fabric = Fabric(accelerator="cpu", devices=own.windows.world.size, strategy="ddp")
    fabric.launch()
    model = own.windows.model()
    model, optimizer = fabric.setup(model, own.windows.optimizer(model))
    with audit(model, optimizer, loss_sum="token-classification") as report, shared.Clock() as clock:
        settings[own.setting](fabric, model, optimizer, report.watch(own.windows.loader()))
    shared.write(own, report, clock, "lightning")


if __name__ == "__main__":
    main()
