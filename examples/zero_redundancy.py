"""ZeroRedundancyOptimizer around DDP: each rank updates a part of the parameters and sends it to the others.

torchrun --standalone --nproc-per-node=2 examples/zero_redundancy.py --output zero.json --setting mean_of_means
"""

from contextlib import nullcontext

import shared
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens import audit


def train(model, optimizer, loader, setting):
    """As with any other optimizer: it is DDP that averages gradients."""
    for window in shared.in_windows(loader):
        units, factor = shared.count(window), 1
        if setting == "global_count":
            dist.all_reduce(units)
            factor = dist.get_world_size()
        for batch in window:
            with nullcontext() if batch is window[-1] else model.no_sync():
                logits = model(batch["tokens"], batch["padding"])
                loss = shared.loss_sum(logits, batch["labels"]) * factor / units
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    own = shared.arguments("global_count", "mean_of_means")
    dist.init_process_group("gloo")
    model = DistributedDataParallel(own.windows.model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.02, momentum=0.9)
    with audit(model, optimizer, loss_sum="token-classification") as report, shared.Clock() as clock:
        train(model, optimizer, report.watch(own.windows.loader()), own.setting)
    shared.write(own, report, clock, "torch")


if __name__ == "__main__":
    main()
