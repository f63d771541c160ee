"""A causal language model of Hugging Face transformers as a kind of work.

The model is given no labels, so that it computes no loss of its own: that would shift the labels, which the rows hold
shifted already, and take a mean over the tokens of one rank's batch, unless it is told the number of the whole window.
Here the loss is a sum over the labels as they are, and the number is what the rows count.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ddp_tokens import labelled
from ddp_tokens.corpora.rows import Row
from ddp_tokens.errors import WorkloadError
from ddp_tokens.labelled import Batch
from ddp_tokens.workloads import causal_lm


class CausalLM:
    def build_model(self, settings: Any, shape: Any) -> torch.nn.Module:
        """Of any architecture of the library: `settings.settings` are model_type and the settings of its config. Random
        weights. Embedding and head are one parameter under two names where tie_word_embeddings says so.
        """
        config = AutoConfig.for_model(
            **settings.settings,
            vocab_size=shape.vocabulary,
            max_position_embeddings=shape.positions,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,  # which is for writing, not for training
        )
        return AutoModelForCausalLM.from_config(config)

    def collate(self, rows: Sequence[Row], device: torch.device | str = "cpu") -> Batch:
        """Padded on the right. Labels that are not the next token are refused, and so are packed rows."""
        packed = next((row.id for row in rows if row.starts is not None), None)
        if packed is not None:
            raise WorkloadError(
                f"row '{packed}' is packed, and this model would look from one of its sequences into another: give "
                "each sequence a row of its own"
            )
        return causal_lm.collate(rows, device)

    def forward(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Logits (rows, longest, vocabulary)."""
        return model(input_ids=batch.tokens, attention_mask=(~batch.padding).long()).logits

    def loss_sum(self, outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
        """The sum of the cross entropies where there is a label, each times its weight; what the rows count."""
        return labelled.loss_sum(outputs, batch)

    def metrics(self, outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
        return labelled.metrics(outputs, batch)
