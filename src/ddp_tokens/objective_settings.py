"""What counts once in the mean, and by how much: the settings of the objective."""

from typing import Annotated, Literal

from pydantic import Field

from ddp_tokens.setting_types import Fraction, NonNegativeReal

TOKEN, SEQUENCE, DOCUMENT, SAMPLE = "token", "sequence", "document", "sample"
UNITS = (TOKEN, SEQUENCE, DOCUMENT, SAMPLE)
Unit = Literal["token", "sequence", "document", "sample"]
ClassWeights = Annotated[tuple[NonNegativeReal, ...], Field(min_length=2)] | None
Smoothing = Fraction
