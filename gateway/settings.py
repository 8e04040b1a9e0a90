"""What the gateway can be told."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliSettingsSource, NoDecode, SettingsConfigDict

from draftwire import SpreadPolicy
from draftwire._program.flag_parser import FlagParser, program_name
from draftwire._program.trace_export import check_endpoint
from draftwire._types.verifier import parse_verifiers
from draftwire.version import __version__
from gateway.host import host_of, is_origin

_ENV_PREFIX = "DRAFTWIRE_GATEWAY_"
_KEYS_VARIABLE = "DRAFTWIRE_API_KEYS"
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


def _hosts(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        if host_of(text) is None:
            raise ValueError(f"must be HOST or HOST:PORT ([HOST] for IPv6), got {text!r}")
    return texts


def _origins(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        if text != "*" and not is_origin(text):
            raise ValueError(f"must be * or an origin as browsers send it, such as https://chat.example, got {text!r}")
    return texts


def _verifiers(texts: tuple[str, ...]) -> tuple[str, ...]:
    if texts:
        parse_verifiers(texts)
    return texts


Address = Annotated[str, AfterValidator(_address)]
"""HOST:PORT."""
Addresses = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_verifiers)]
"""HOST:PORT, perhaps with ?weight=NUMBER, of several verifiers."""
Strings = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Hosts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_hosts)]
"""HOST, or HOST:PORT, of several."""
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_origins)]
"""SCHEME://HOST, perhaps with :PORT, of several, or *."""
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
    )

    verifier: Addresses = ("localhost:50051",)
    """Verifier to serve, HOST:PORT or HOST:PORT?weight=2; several, by commas or by repeating the flag."""
    spread_prefix_bytes: int = Field(default=SpreadPolicy().prefix_bytes, ge=1)
    """With several verifiers: prompts that share so many first bytes go to the same one, see many-verifiers.md."""
    spread_load_bound: float = Field(default=SpreadPolicy().load_bound, ge=1)
    """Most load of a verifier, in shares of the mean, before its requests go elsewhere."""
    listen: Address = "127.0.0.1:8000"
    """Address to serve HTTP on, HOST:PORT. Port 0 picks a free one; the log says which."""
    tls_cert: str = ""
    """File with the gateway's certificate (PEM), to serve HTTPS; the certificates it was signed with follow in it."""
    tls_key: str = ""
    """File with the certificate's key (PEM, without a passphrase)."""
    tls_client_ca: str = ""
    """File with the authorities (PEM) of which HTTP clients have to have a certificate: mutual TLS."""
    tls_ca: str = ""
    """Call the verifier by TLS: file with the authorities (PEM) of its certificate, or `public` for public ones."""
    tls_client_cert: str = ""
    """File with the certificate (PEM) to show to the verifier; that of --tls-cert by default."""
    tls_client_key: str = ""
    """File with the key of that certificate."""
    tls_server_name: str = ""
    """Name that the verifier's certificate is for, where it is not the host of its address."""
    token_file: str = ""
    """File with the token to show to the verifier."""
    insecure: bool = False
    """Allow what is not encrypted beyond this machine: HTTP on --listen, and calls of the verifier without TLS."""
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
    max_connections: int = Field(default=1024, ge=1)
    """Most connections of clients at once; more are closed as they come."""
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
    allowed_origin: Origins = ()
    """Web origin whose pages may call (CORS), or *; may be repeated. Without any, only the gateway's own may."""
    allowed_host: Hosts = ()
    """Host under which clients may call; may be repeated. Without any, on loopback without keys its names, else all."""
    shutdown_grace_seconds: int = Field(default=10, ge=0)
    """Time that requests in flight get to finish after SIGTERM or SIGINT, in seconds."""
    trace_endpoint: Annotated[str, AfterValidator(check_endpoint)] = ""
    """Collector to send traces to by OTLP over gRPC: http://HOST:PORT, https:// for TLS. Without one none is made."""
    trace_sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of the traces begun here that are recorded; those begun elsewhere are as was decided there."""
    log_format: Literal["console", "json"] = "console"
    """Form of the log on standard error: lines for people, or one JSON object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if not self.verifier:
            raise ValueError("--verifier: at least one address is needed")
        for one, other in (("tls_cert", "tls_key"), ("tls_client_cert", "tls_client_key")):
            if bool(getattr(self, one)) != bool(getattr(self, other)):
                given, missing = (one, other) if getattr(self, one) else (other, one)
                raise ValueError(f"{_flag_of(given)}: needs {_flag_of(missing)}, too")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("--tls-client-ca: needs --tls-cert and --tls-key, too")
        for field in ("tls_client_cert", "tls_server_name"):
            if getattr(self, field) and not self.tls_ca:
                raise ValueError(f"{_flag_of(field)}: needs --tls-ca, too: without it no call is by TLS")
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
    parser = FlagParser(
        prog=program_name(),
        description=(GatewaySettings.__doc__ or "").partition("\n")[0],
        allow_abbrev=False,
    )
    version = f"%(prog)s {__version__}"
    parser.add_argument("--version", action="version", version=version, help="Print the version and exit.")
    flags: CliSettingsSource[Any] = CliSettingsSource(GatewaySettings, cli_parse_args=arguments, root_parser=parser)
    build: Any = GatewaySettings  # the source is not among the fields that its signature shows
    try:
        settings: GatewaySettings = build(_cli_settings_source=flags, **_keys_of_the_environment(arguments))
    except ValidationError as error:
        for problem in error.errors():
            print(f"{parser.prog}: {_told(dict(problem))}", file=sys.stderr)
        raise SystemExit(2) from error
    return settings


def given_settings(settings: GatewaySettings) -> dict[str, Any]:
    """Return the settings that have no default value here, as the log may show them."""
    return {field: getattr(settings, field) for field in sorted(settings.model_fields_set - {"api_key"})}


def _flag_of(field: str) -> str:
    return "--" + field.replace("_", "-")


def _keys_of_the_environment(arguments: Sequence[str]) -> dict[str, Any]:
    keys = os.environ.get(_KEYS_VARIABLE)
    given = any(argument.partition("=")[0] == "--api-key" for argument in arguments)
    return {"api_key": keys} if keys is not None and not given else {}


def _told(problem: Mapping[str, Any]) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not problem["loc"]:
        return message
    field = str(problem["loc"][0])
    return f"{_flag_of(field)} ({_ENV_PREFIX + field.upper()}): {message[:1].lower()}{message[1:]}"
