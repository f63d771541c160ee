"""Lightning's Trainer with accumulate_grad_batches: a training_step that returns a mean, and an exact one.

torchrun --standalone --nproc-per-node=2 examples/lightning_trainer.py --output lightning.json --setting mean
"""

import logging
import tempfile

import shared
import torch
from lightning.pytorch import LightningModule, Trainer

from ddp_tokens import audit


class Mean(LightningModule):
    """As it is written everywhere."""

    def __init__(self, windows):
        super().__init__()
        self.network, self.windows = windows.model(), windows

    def training_step(self, batch):
        return shared.mean_loss(self.network(batch["tokens"], batch["padding"]), batch["labels"])

    def configure_optimizers(self):
        return self.windows.optimizer(self.network)


class GatheredCount(Mean):
    """Sums are backpropagated; before the update the gradient is divided by the tokens of all ranks."""

    def on_fit_start(self):
        self.units = torch.tensor(0, device=self.device)

    def training_step(self, batch):
        self.units += shared.count([batch])
        total = shared.loss_sum(self.network(batch["tokens"], batch["padding"]), batch["labels"])
        return total * self.trainer.accumulate_grad_batches  # by which Trainer divides

    def on_before_optimizer_step(self, optimizer):
        factor = self.trainer.world_size / self.all_gather(self.units).sum()  # DDP has averaged over ranks
        for parameter in self.parameters():
            parameter.grad *= factor
        self.units.zero_()


def main():
    settings = {"mean": Mean, "gathered_count": GatheredCount}
    own = shared.arguments(*settings)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = settings[own.setting](own.windows)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            devices=own.windows.world.size,
            strategy="ddp",
            accumulate_grad_batches=shared.ACCUMULATION,
            max_steps=shared.STEPS,
            use_distributed_sampler=False,  # each rank's batches are its own already
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with audit(module.network, loss_sum="token-classification") as report, shared.Clock() as clock:
            trainer.fit(module, report.watch(own.windows.loader()))
    shared.write(own, report, clock, "lightning")


if __name__ == "__main__":
    main()
