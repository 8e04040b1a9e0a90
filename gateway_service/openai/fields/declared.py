"""Fields made from the SDK's declarations of options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, Field, create_model

from draftwire import Acceptance, GenerateOptions, Planning, Preset, Speculation
from draftwire._types.option import Option, options_of
from gateway_service.openai.fields.checks import Strings
from gateway_service.openai.fields.whole_numbers import TokenIds, Whole

_UINT32_END = 1 << 32


def _whole(option: Option) -> Any:
    least, most = int(option.range.least or 0), option.range.most
    bounds = Field(ge=least, lt=_UINT32_END) if most is None else Field(ge=least, le=int(most))
    return Annotated[int, bounds, Whole]


def _number(option: Option) -> Any:
    bounds = option.range
    return Annotated[float, Field(ge=bounds.least, le=bounds.most, gt=bounds.above)]


def _same(kind: Any, _: Option) -> Any:
    return kind


_KINDS: dict[Any, Callable[[Option], Any]] = {
    bool: partial(_same, bool),
    str: partial(_same, str),
    Acceptance: partial(_same, Acceptance),
    Planning: partial(_same, Planning),
    Preset: partial(_same, Preset),
    int: _whole,
    float: _number,
    Iterable[int]: partial(_same, TokenIds),
    Iterable[str]: partial(_same, Strings),
}
"""The fields' types, by the options' types."""


def fields_of(options: Mapping[str, Option]) -> dict[str, Any]:
    """Returns optional fields for a model, one for each option whose values JSON has."""
    return {
        name: (_KINDS[option.type](option) | None, Field(default=None, description=option.help or None))
        for name, option in options.items()
        if option.type in _KINDS
    }


_IN_BODY = {name: option for name, option in options_of(GenerateOptions).items() if option.in_body}


class _Given(BaseModel):
    @property
    def given(self) -> GenerateOptions:
        """The options that the request passes on unchanged, as far as they were given."""
        found = {name: getattr(self, name) for name in _IN_BODY}
        return cast(GenerateOptions, {name: value for name, value in found.items() if value is not None})


if TYPE_CHECKING:
    OptionFields = _Given
    SpeculationFields = BaseModel
else:
    OptionFields = create_model("OptionFields", __base__=_Given, **fields_of(_IN_BODY))
    SpeculationFields = create_model("SpeculationFields", **fields_of(options_of(Speculation)))
