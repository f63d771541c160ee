"""The kinds of work of the controls: images, or token_labels with the head tied to the embedding or a forward in
bfloat16.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch

from ddp_tokens.config import Experiment, Model
from ddp_tokens.controls.gradient_windows import Case
from ddp_tokens.controls.term_workload import InTerms
from ddp_tokens.corpora.lock import ImageShape, Shape
from ddp_tokens.labelled import of_tokens
from ddp_tokens.workloads import Workload, images, token_labels


@dataclass(frozen=True)
class Altered:
    """token_labels with a change; the rest is passed on."""

    tied: bool = False
    autocast: bool = False

    collate = staticmethod(token_labels.collate)
    loss_sum = staticmethod(token_labels.loss_sum)
    metrics = staticmethod(token_labels.metrics)

    def build_model(self, settings: Model, shape: Shape | ImageShape) -> torch.nn.Module:
        """Tying needs as many classes as symbols."""
        model = token_labels.TokenLabeller(*of_tokens("token_labels", settings, shape))
        if self.tied:
            model.head.weight = model.embedding.weight
        return model

    def forward(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """Logits in the parameters' dtype. Autocast leaves float64 as it is."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            logits = token_labels.forward(model, batch)
        return logits.to(next(model.parameters()).dtype)


def workload_of(case: Case) -> Workload:
    if case.counting.several:
        return cast(Workload, InTerms())  # loss_terms stands for loss_sum
    return images if case.of_images else Altered(case.tied, case.autocast)


def settings_of(case: Case, experiment: Experiment) -> Experiment:
    """The controls' settings, with the case's own model and objective where it has one."""
    model = {"model": case.of_images.model} if case.of_images else {}
    return experiment.model_copy(update=case.counting.settings | model)
