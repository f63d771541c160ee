"""A training script as people have one: started by torchrun, with its loop at the top level and a main guard.

`--in-code` audits it by two lines of its own; without, it knows of no audit. `--way`: how losses are divided.
"""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

WINDOWS, MICROBATCHES, CLASSES = 3, 2, 11


class Labeller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(tokens)))


def rows(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of 2 rows: those of rank 1 are longer, and so is every second one."""
    generator = torch.Generator().manual_seed(rank)
    lengths = [3 + 4 * rank + 2 * (place % 2) for place in range(WINDOWS * MICROBATCHES)]
    return [tuple(torch.randint(0, CLASSES, (2, 2, length), generator=generator)) for length in lengths]


def loss_sum(outputs: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, int]:
    labels = batch[1]
    return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="sum"), labels.numel()


def divided(way: str, total: torch.Tensor, units: int, of_rank: int, of_window: int) -> torch.Tensor:
    if way == "right":
        return total * dist.get_world_size() / of_window
    return total / of_rank if way == "mean_of_means" else total / units / MICROBATCHES


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, way: str) -> None:
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) < MICROBATCHES:
            continue
        own = sum(labels.numel() for _, labels in window)
        count = torch.tensor(own)
        dist.all_reduce(count)
        for place, (tokens, labels) in enumerate(window):
            with nullcontext() if place == MICROBATCHES - 1 else model.no_sync():
                total, units = loss_sum(model(tokens), (tokens, labels))
                divided(way, total, units, own, int(count)).backward()
        optimizer.step()
        optimizer.zero_grad()
        window = []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", default="right")
    parser.add_argument("--in-code", help="audit, and write the report here")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(Labeller())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(rows(dist.get_rank()), batch_size=None)
    if options.in_code:
        from ddp_tokens import audit

        with audit(model, optimizer, loss_sum=loss_sum, windows=2) as report:
            train(model, optimizer, report.watch(loader), options.way)
        report.save(options.in_code)
    else:
        train(model, optimizer, loader, options.way)
    total = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
    if dist.get_rank() == 0:
        print(f"trained to {total!r}")
    dist.barrier()


if __name__ == "__main__":
    main()
