"""A training script without DDP, in which one rank has no batch in the first window. It knows of no audit."""

import sys

import torch
import torch.distributed as dist
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def main() -> None:
    empty = int(sys.argv[1])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    before = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    before.step()  # of a module that no rank calls
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for window in range(3):
        optimizer.zero_grad()
        rows = 0 if dist.get_rank() == empty and window == 0 else 5 + 4 * dist.get_rank()
        total = torch.tensor(rows)
        dist.all_reduce(total)
        if rows:
            x, labels = torch.randn(rows, 6), torch.randint(0, 3, (rows,))
            loss = nn.functional.cross_entropy(model(x, labels), labels, reduction="sum")
            (loss / total).backward()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
