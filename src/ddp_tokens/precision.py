"""In which precision a window is computed: as the model is, or mixed, with float16's loss scaled. One code path."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch

from ddp_tokens.config import Experiment

DTYPES: Mapping[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def _no_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", enabled=False)


@dataclass(frozen=True)
class Precision:
    """`dtype`: of mixed precision, None for none. A scaler that is not enabled changes nothing."""

    device_type: str = "cpu"
    dtype: torch.dtype | None = None
    scaler: torch.amp.GradScaler = field(default_factory=_no_scaler)

    def autocast(self) -> AbstractContextManager[object]:
        """For forward and loss; backward takes the dtypes of forward by itself."""
        dtype = self.dtype or torch.bfloat16
        context: AbstractContextManager[object] = torch.autocast(
            self.device_type, dtype, enabled=self.dtype is not None
        )
        return context


def precision_of(experiment: Experiment, device: str) -> Precision:
    """float16 has its loss scaled, since its small gradients would vanish; bfloat16 has float32's range."""
    device_type = device.partition(":")[0]
    if not experiment.use_amp:
        return Precision(device_type)
    dtype = DTYPES[experiment.resolved_amp_dtype]
    return Precision(device_type, dtype, torch.amp.GradScaler(device_type, enabled=dtype == torch.float16))
