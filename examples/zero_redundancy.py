"""ZeroRedundancyOptimizer around DDP: each rank updates a part of the parameters and sends it to the others.

torchrun --standalone --nproc-per-node=2 examples/zero_redundancy.py --output zero.json --setting mean_of_means
"""

import bare_ddp
import shared
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens import audit


def main():
    own = shared.arguments("global_count", "mean_of_means")
    dist.init_process_group("gloo")
    model = DistributedDataParallel(own.windows.model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.02, momentum=0.9)
    with audit(model, optimizer, loss_sum="token-classification") as report, shared.Clock() as clock:
        # What is divided by what is as with any optimizer: the loop is that of plain DDP.
        bare_ddp.train(model, optimizer, report.watch(own.windows.loader()), own.setting)
    shared.write(own, report, clock, "torch")


if __name__ == "__main__":
    main()
