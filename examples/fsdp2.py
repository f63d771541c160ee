"""FSDP2: fully_shard gives each rank a part of each parameter, and averages gradients over ranks as DDP does.

torchrun --standalone --nproc-per-node=2 examples/fsdp2.py --output fsdp2.json --setting mean_of_means
"""

import shared
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ddp_tokens import audit


def train(model, optimizer, loader, setting):
    for window in shared.in_windows(loader):
        units, factor = shared.count(window), 1
        if setting == "global_count":
            dist.all_reduce(units)
            factor = dist.get_world_size()  # takes back FSDP's division
        for batch in window:
            model.set_requires_gradient_sync(batch is window[-1])
            logits = model(batch["tokens"], batch["padding"])
            loss = shared.loss_sum(logits, batch["labels"]) * factor / units
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    own = shared.arguments("global_count", "mean_of_means")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = own.windows.model()
    for layer in model.encoder.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = own.windows.optimizer(model)
    with audit(model, optimizer, loss_sum="token-classification") as report, shared.Clock() as clock:
        train(model, optimizer, report.watch(own.windows.loader()), own.setting)
    shared.write(own, report, clock, "torch")


if __name__ == "__main__":
    main()
