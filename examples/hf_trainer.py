"""The Trainer of Hugging Face transformers. What it does depends on a flag, and on the signature of forward.

torchrun --standalone --nproc-per-node=2 examples/hf_trainer.py --output hf.json --setting named
"""

import tempfile

import shared
from torch import nn
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.loss.loss_utils import fixed_cross_entropy

from ddp_tokens import audit


class TakesAny(nn.Module):
    """Takes **kwargs, as most models of the library do: so Trainer passes it the number of tokens in the window."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, tokens, padding, labels, **kwargs):
        logits = self.network(tokens, padding)
        return {"loss": fixed_cross_entropy(logits.flatten(0, 1), labels.flatten(), **kwargs), "logits": logits}


class Named(TakesAny):
    """Would take the number, but Trainer does not look for it by name: the loss is a mean of each batch."""

    def forward(self, tokens, padding, labels, num_items_in_batch=None):
        return super().forward(tokens, padding, labels, num_items_in_batch=num_items_in_batch)


class Declared(Named):
    """Says that it takes the number."""

    accepts_loss_kwargs = True


class OwnLoader(Trainer):
    def get_train_dataloader(self):
        return self.train_dataset


def main():
    settings = {
        "kwargs": (TakesAny, True),
        "kwargs_per_device": (TakesAny, False),
        "named": (Named, True),
        "named_per_device": (Named, False),
        "declared": (Declared, True),
    }
    own = shared.arguments(*settings)
    kind, across_devices = settings[own.setting]
    model = kind(own.windows.model())
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            output_dir=folder,
            average_tokens_across_devices=across_devices,
            gradient_accumulation_steps=shared.ACCUMULATION,
            max_steps=shared.STEPS,
            max_grad_norm=0,  # no clipping
            lr_scheduler_type="constant",
            ddp_find_unused_parameters=False,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        optimizer = own.windows.optimizer(model)
        trainer = OwnLoader(model, options, train_dataset=own.windows.loader(), optimizers=(optimizer, None))
        trainer.remove_callback(PrinterCallback)
        with audit(model, optimizer, loss_sum="token-classification") as report, shared.Clock() as clock:
            trainer.train()
    shared.write(own, report, clock, "transformers")


if __name__ == "__main__":
    main()
