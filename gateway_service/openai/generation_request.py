"""The common part of requests for completions and for chat completions."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from draftwire import GenerateOptions
from draftwire._types.quoting import shortened
from gateway_service.http.errors import GatewayError
from gateway_service.openai.fields.checks import MOST_STRINGS, Strings, members_at_most, one_of
from gateway_service.openai.fields.content import text_of
from gateway_service.openai.fields.declared import OptionFields
from gateway_service.openai.fields.whole_numbers import TokenLimit, Whole
from gateway_service.openai.other_fields import check_others, left_out
from gateway_service.openai.output_form import FormFields
from gateway_service.openai.speculation_options import PredictedOutput, SpeculationOptions

_INT64_END, _UINT32_END, _UINT64_END = 1 << 63, 1 << 32, 1 << 64
_MOST_CHOICES = 128
_MOST_BIASES = 1024
"""Most biased tokens, as the verifier allows."""
_DIGITS = re.compile("[0-9]{1,10}")
_LEAST_TOP_P = 1e-9
"""A top_p that keeps the likeliest token alone, as OpenAI takes 0."""
_RANDOM_SEED = -1
"""The seed that asks for another one each time, as in other engines."""
_SEED_BITS = 52
"""Bits of a seed chosen by the gateway; JavaScript represents it, and the seeds that follow it, exactly."""


class StreamOptions(BaseModel):
    """Options of streaming."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None
    """Send the usage in a last chunk without choices."""
    continuous_usage_stats: bool | None = None
    """Left out, which a header of the response says: chunks before the last one have no usage."""


class GenerationRequest(FormFields, OptionFields):
    """A generation request: the options that it passes on to the SDK unchanged (`OptionFields`), and those that OpenAI
    or other servers spell otherwise. Fields that it does not have are refused if they would change the output; see
    `gateway_service.openai.other_fields`."""

    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Fields that other endpoints have and this one does not, and why."""

    model_config = ConfigDict(
        strict=True, extra="allow", use_attribute_docstrings=True, allow_inf_nan=False, populate_by_name=True
    )

    model: str | None = None
    """Name of the model; by default the served one."""
    max_tokens: TokenLimit | None = None
    """Most tokens to generate; -1 stands for the end of the context."""
    n: Annotated[int, Field(ge=1, le=_MOST_CHOICES), Whole] | None = None
    """Choices for each prompt. The choice with index i has the seed `seed` + i."""
    stream: bool | None = None
    """Send chunks as server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of streaming."""
    stop: Annotated[str | Strings | None, one_of(f"a string or a list of at most {MOST_STRINGS} strings")] = None
    """The output ends before the first of these strings."""
    seed: Annotated[int, Field(ge=-_INT64_END, lt=_UINT64_END), Whole] | None = None
    """Key of the sampling noise: the same seed gives the same output. -1 stands for one chosen at random, another
    negative one for 2**64 plus itself."""
    logit_bias: Annotated[dict[str, float], members_at_most(_MOST_BIASES)] | None = None
    """Added to the logits of tokens, by token id."""
    prediction: PredictedOutput | None = None
    """The expected output, to draft from."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Keep the most likely tokens up to this total probability; 0 keeps the likeliest one."""
    top_k: Annotated[int, Field(ge=-1, lt=_UINT32_END), Whole] | None = None
    """Keep the k most likely tokens; 0 and -1 keep all."""
    skip_special_tokens: bool | None = None
    """false keeps special tokens in the text, by their names, except one that ends the output; default true."""
    include_stop_str_in_output: bool | None = None
    """Keep in the text the stop string or token that ended it."""
    speculation: SpeculationOptions | None = None
    """Options of speculation."""
    store: bool | None = None
    """false keeps the request private: its text is neither streamed to those who follow the verifier's traffic, nor
    used to draft for others. Nothing can be retrieved later in any case. Default: true."""

    @property
    def choices_each(self) -> int:
        """Number of choices for each prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def report_sources(self) -> bool:
        """Whether a stream reports which drafter guessed each token."""
        return self.speculation is not None and self.speculation.report_sources

    def check(self) -> None:
        """Checks fields whose validity depends on other fields.

        Raises:
            GatewayError: a field is not supported, or needs another one that is missing.
        """
        extra = self.model_extra or {}
        for name, reason in self.elsewhere.items():
            if extra.get(name):
                raise GatewayError(f"{name}: {reason}", param=name, code="unsupported_parameter")
        check_others({name: value for name, value in extra.items() if name not in self.elsewhere}, self.__dict__)
        if self.stream_options is not None and not self.stream:
            name = "stream_options"
            raise GatewayError(f"{name}: requires stream", param=name, code="invalid_value")

    @property
    def left_out(self) -> list[str]:
        """Names of fields that nothing is known about, or that are done in part."""
        unknown = [name for name in left_out(self.model_extra or {}) if name not in self.elsewhere]
        continuous = self.stream_options is not None and self.stream_options.continuous_usage_stats
        return [*unknown, "stream_options.continuous_usage_stats"] if continuous else unknown

    def field_names(self) -> dict[str, str]:
        """Returns this request's names for those contract fields that have several names."""
        names = {"speculation.prediction": "speculation.prediction" if self.prediction is None else "prediction"}
        if isinstance(self.stop, str):
            names["stop[0]"] = "stop"
        form = self.form_name()
        return names if form is None else names | {"structured_output": form}

    def seeds(self) -> list[int]:
        """Returns the seeds of a prompt's choices."""
        first = secrets.randbits(_SEED_BITS) if self.seed in (None, _RANDOM_SEED) else self.seed
        return [(first + index) % _UINT64_END for index in range(self.choices_each)]

    def options(self, max_tokens: int | None, seconds: float) -> GenerateOptions:
        """Returns the SDK's options except seed, form and log-probabilities. seconds: time limit of the request.

        Raises:
            GatewayError: fields contradict each other.
        """
        prediction = None if self.prediction is None else text_of(self.prediction.content)
        options: GenerateOptions = {
            **self.given,
            "max_tokens": max_tokens,
            "top_p": _LEAST_TOP_P if self.top_p == 0 else self.top_p,
            "top_k": self.top_k if self.top_k and self.top_k > 0 else None,
            "logit_bias": self._bias(),
            "stop": self.stop,
            "special_tokens": self.skip_special_tokens is False,
            "include_stop": bool(self.include_stop_str_in_output),
            "private": self.store is False,
            "timeout": seconds,
            "speculation": (self.speculation or SpeculationOptions()).to_sdk(prediction),
        }
        return options

    def _bias(self) -> dict[int, float] | None:
        if self.logit_bias is None:
            return None
        bias: dict[int, float] = {}
        for key, value in self.logit_bias.items():
            if not (_DIGITS.fullmatch(key) and int(key) < _UINT32_END):
                name = "logit_bias"
                raise GatewayError(f"{name}: {shortened(key)!r} is not a token id", param=name, code="invalid_value")
            bias[int(key)] = value
        return bias


def limits(asked: int | None, most: int, *, sent: bool) -> GenerateOptions:
    """Returns the SDK's options for the length. asked: as for `bounded`. sent: whether the caller sent this limit; any
    other one is lowered to what the context leaves."""
    bound = bounded(asked, most)
    return {"max_tokens": bound, "fit_max_tokens": bound is not None and not (sent and bound == asked)}


def bounded(max_tokens: int | None, most: int) -> int | None:
    """Returns the smaller limit; a max_tokens of None means the end of the context, a most of 0 sets no limit."""
    if not most:
        return max_tokens
    return most if max_tokens is None else min(max_tokens, most)
