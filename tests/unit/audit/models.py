"""Small modules and recorded windows of them, in one process."""

import torch
from torch import nn

from ddp_tokens.audit.evaluating import evaluated
from ddp_tokens.audit.inputs import batch_of
from ddp_tokens.audit.packing import pack
from ddp_tokens.audit.replaying import Recorded, Window
from ddp_tokens.generators import read_generators


class Model(nn.Module):
    """Tokens to logits, with dropout where `dropout` is not 0."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 7)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(7, 11)

    def forward(self, tokens, labels=None):
        return {"logits": self.head(self.dropout(torch.tanh(self.hidden(self.embedding(tokens)))))}


def tokens_of(number, lengths=(2, 5, 3, 1)):
    """Batches of one row each, of these lengths in turn."""
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(0, 11, (1, lengths[i % len(lengths)]), generator=generator) for i in range(number)]


def loss_sum(outputs, batch):
    logits = outputs["logits"]
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), batch["tokens"].flatten(), reduction="none")
    return losses.sum(), losses.numel()


def recorded(module, calls, loss=loss_sum, autocast=None):
    """A window of calls, [(arguments, named)], as (rank 0, microbatch), and the loss sums of the run."""
    found, sums = {}, {}
    for index, (arguments, named) in enumerate(calls):
        tree, tensors = pack([list(arguments), dict(named), None], "an input")
        tensors = [tensor.clone() for tensor in tensors]
        found[0, index] = Recorded(tree, tensors, read_generators("cpu"), autocast)
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            outputs = module(*arguments, **named)
            sums[0, index] = evaluated(loss, outputs, batch_of(module, list(arguments), dict(named), None))[0]
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    whole = {id(parameter): parameter.detach() for parameter in module.parameters()}
    return Window(module, loss, found, names, whole), sums


def gradients_of(module):
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
