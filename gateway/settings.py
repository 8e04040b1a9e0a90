"""What the gateway can be told."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliSettingsSource, NoDecode, SettingsConfigDict

_ENV_PREFIX = "DRAFTWIRE_GATEWAY_"
_KEYS_VARIABLE = "DRAFTWIRE_API_KEYS"
_PROGRAM = "python -m gateway"
_LAST_PORT = 65535


def _split(value: object) -> object:
    """The values of a variable, or of a flag that may be repeated: commas separate them."""
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        return tuple(item.strip() for text in texts for item in text.split(",") if item.strip())
    return value


def _some(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if not keys:
        raise ValueError("has no key; without the setting none is asked for")
    return keys


def _address(text: str) -> str:
    host, separator, port = text.rpartition(":")
    if not (separator and host and port.isascii() and port.isdigit() and int(port) <= _LAST_PORT):
        raise ValueError(f"must be HOST:PORT ([HOST]:PORT for IPv6), got {text!r}")
    return text


Address = Annotated[str, AfterValidator(_address)]
"""HOST:PORT."""
Addresses = Annotated[tuple[Address, ...], NoDecode, BeforeValidator(_split)]
Strings = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split), AfterValidator(_some)]


class GatewaySettings(BaseSettings):
    """Serves OpenAI's HTTP API in front of a verifier.

    Flags win over DRAFTWIRE_GATEWAY_* variables, and those over defaults. Read it with `load_settings`.
    """

    model_config = SettingsConfigDict(
        env_prefix=_ENV_PREFIX,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        validate_default=False,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_prog_name=_PROGRAM,
    )

    verifier: Addresses = ("localhost:50051",)
    """Verifier to serve, HOST:PORT; several, by commas or by repeating the flag, to fail over between."""
    listen: Address = "127.0.0.1:8000"
    """Address to serve HTTP on, HOST:PORT. Port 0 picks a free one; the log says which."""
    served_model_name: Strings = ()
    """Name under which the model is served, in place of the verifier's; may be repeated."""
    api_key: Secrets = ()
    """Key that a request has to bring; may be repeated. Without any, none is asked for. Also: DRAFTWIRE_API_KEYS."""
    api_key_file: str = ""
    """File with further keys, one a line; lines that begin with # are left out."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    """Largest body of a request, in bytes."""
    body_seconds: float = Field(default=60.0, gt=0)
    """Time in which a request's body has to arrive, in seconds."""
    max_generations: int = Field(default=256, ge=1)
    """Most choices that are generated at once, of all requests together; more are refused."""
    max_choices: int = Field(default=128, ge=1)
    """Most choices of one request: its prompts, n times each."""
    max_tokens: int = Field(default=0, ge=0)
    """Most tokens of a choice; a request that asks for more gets so many. 0 leaves it to the model's context."""
    request_seconds: float = Field(default=600.0, gt=0)
    """Time that a request may take in all, in seconds."""
    console: bool = True
    """Serve the console at /: a page that generates and manages the pool of drafters."""
    allowed_origin: Strings = ()
    """Web origin that browsers may call from (CORS), or *; may be repeated. Without any, none may."""
    shutdown_grace_seconds: int = Field(default=10, ge=0)
    """Time that requests in flight get to finish after SIGTERM or SIGINT, in seconds."""
    log_format: Literal["console", "json"] = "console"
    """Form of the log on standard error: lines for people, or one JSON object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""

    @model_validator(mode="after")
    def _one_request_fits(self) -> Self:
        if not self.verifier:
            raise ValueError("--verifier: at least one address is needed")
        if self.max_choices > self.max_generations:
            raise ValueError(
                f"--max-choices: must be at most --max-generations ({self.max_generations}), got {self.max_choices}"
            )
        return self


def load_settings(argv: Sequence[str] | None = None) -> GatewaySettings:
    """Read the settings from flags and variables; `argv` is sys.argv's without the program's name by default.

    Raises:
        SystemExit: status 2 after a line for each problem, 0 after --help.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    flags: CliSettingsSource[Any] = CliSettingsSource(GatewaySettings, cli_parse_args=arguments)
    build: Any = GatewaySettings  # the source is not among the fields that its signature shows
    try:
        settings: GatewaySettings = build(_cli_settings_source=flags, **_keys_of_the_environment(arguments))
    except ValidationError as error:
        for problem in error.errors():
            print(f"{_PROGRAM}: {_told(dict(problem))}", file=sys.stderr)
        raise SystemExit(2) from error
    return settings


def _keys_of_the_environment(arguments: Sequence[str]) -> dict[str, Any]:
    keys = os.environ.get(_KEYS_VARIABLE)
    given = any(argument.partition("=")[0] == "--api-key" for argument in arguments)
    return {"api_key": keys} if keys is not None and not given else {}


def _told(problem: Mapping[str, Any]) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not problem["loc"]:
        return message
    field = str(problem["loc"][0])
    flag, variable = "--" + field.replace("_", "-"), _ENV_PREFIX + field.upper()
    return f"{flag} ({variable}): {message[:1].lower()}{message[1:]}"
