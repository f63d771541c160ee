"""The types that settings are made of."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field


def _no_boolean(value: Any) -> Any:
    """pydantic would read `batch: true` as 1."""
    if isinstance(value, bool):
        raise ValueError("a number is needed here")
    return value


NO_BOOLEAN = BeforeValidator(_no_boolean)
Positive = Annotated[int, Field(ge=1), NO_BOOLEAN]
NonNegative = Annotated[int, Field(ge=0), NO_BOOLEAN]
Real = Annotated[float, Field(allow_inf_nan=False), NO_BOOLEAN]
PositiveReal = Annotated[float, Field(gt=0, allow_inf_nan=False), NO_BOOLEAN]
NonNegativeReal = Annotated[float, Field(ge=0, allow_inf_nan=False), NO_BOOLEAN]
Fraction = Annotated[float, Field(ge=0, lt=1), NO_BOOLEAN]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def kind_of(default: Callable[[Mapping[str, Any]], str]) -> Discriminator:
    """By the field `kind` of what is given; `default` says which kind it is where that is left out."""

    def kind(value: Any) -> str:
        given = vars(value) if isinstance(value, Section) else value
        return str(given.get("kind", default(given))) if isinstance(given, Mapping) else default({})

    return Discriminator(kind)
