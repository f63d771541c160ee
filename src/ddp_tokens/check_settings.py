"""What the checks accept."""

from typing import Annotated

from pydantic import Field

from ddp_tokens.setting_types import NO_BOOLEAN, NonNegativeReal, PositiveReal, Section


class Tolerance(Section):
    """A gradient value agrees when |ddp - ref| <= atol + rtol * |ref|."""

    atol: NonNegativeReal = Field(description="absolute part, in units of the gradient")
    rtol: NonNegativeReal = Field(description="relative part, as a fraction of |ref|")


class Tolerances(Section):
    """What gradient parity accepts. Errors are norms, parameter by parameter, against the reference in float64."""

    float64: PositiveReal = Field(
        1e-12,
        description="in float64, where only the formula can make a difference: error as a fraction of the norm",
    )
    native: PositiveReal = Field(
        4.0, description="in the training dtype: error as a multiple of that of one process in the same dtype"
    )
    power: Annotated[float, Field(ge=1, allow_inf_nan=False), NO_BOOLEAN] = Field(
        3.0,
        description="a wrong formula that is fewer tolerances away cannot be told from the right one: inconclusive",
    )
    published: Tolerance = Field(
        Tolerance(atol=1e-6, rtol=1e-4),
        description="the published criterion for each value, in the training dtype; reported beside, decides nothing",
    )
