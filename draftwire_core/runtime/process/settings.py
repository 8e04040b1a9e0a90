"""Settings of a process: one frozen, typed object, read once at start-up."""

import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from pydantic_settings.sources import EnvSettingsSource, PydanticBaseSettingsSource

from draftwire_core.runtime.process.address import ListenAddress, PeerAddress
from draftwire_core.runtime.process.flags import Flags, flag_of
from draftwire_core.runtime.process.tls_settings import check_tls_settings
from draftwire_core.runtime.process.trace_export import check_endpoint
from draftwire_core.runtime.process.variables import is_link

ENV_PREFIX = "DRAFTWIRE_"


def split_at_commas(value: object) -> object:
    """Splits a text at commas into a tuple; returns any other value unchanged."""
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",") if item.strip())
    return value


StringList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(split_at_commas)]
"""Type of a settings field with several values: a repeated flag, a list in the file, or commas in a variable."""

PeerAddresses = Annotated[tuple[PeerAddress, ...], NoDecode, BeforeValidator(split_at_commas)]
"""Type of a settings field that holds HOST:PORT of several other services."""


@dataclass(frozen=True)
class Variable:
    """Name, without the prefix, of a field's variable, where it differs from the field's own. Used in Annotated."""

    name: str


@dataclass(frozen=True)
class SharedVariable:
    """Full name of a second variable of a field, which takes precedence over the field's own. Used in Annotated."""

    name: str


class ProcessSettings(BaseSettings):
    """Settings that every process has. A program subclasses it, gives its variables a prefix, and adds fields, each
    with a docstring.

    Flags win over variables, those over the file, where there is one, and the file over defaults. Read it with
    `load_settings`, which explains what is wrong; building one directly raises pydantic.ValidationError. A class with
    secrets sets `hide_input_in_errors`: messages then repeat no value.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    CONFIG_VARIABLE: ClassVar[str | None] = None
    """Variable that names the file with settings; None for a program that reads no file and has no --config."""

    log_format: Literal["console", "json"] = "console"
    """Form of the log on standard error: lines for people, or one JSON object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""
    trace_endpoint: Annotated[str, AfterValidator(check_endpoint)] = ""
    """Collector to send spans to, by OTLP over gRPC: http://HOST:PORT, https:// for TLS. Without it, no tracing."""
    trace_sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of the traces begun here that are recorded. For traces begun by a caller, the caller decides."""

    _places: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Replaces pydantic's sources by the given values and the environment."""
        return init_settings, _Environment(settings_cls)

    @property
    def given(self) -> dict[str, Any]:
        """Settings that do not have their default value, fit for the log: none is a secret."""
        return {field: getattr(self, field) for field in type(self).model_fields if field in self._places}

    def place(self, field: str) -> str | None:
        """Returns the flag, variable or file that a field's value came from; None for a default."""
        return self._places.get(field)

    @classmethod
    def problem_place(cls, field: str, source: str) -> str:
        """Returns the place that begins a message about a field's value. source: flag, variable or file of the
        value."""
        return source


class ServiceSettings(ProcessSettings):
    """Settings that every service has. A service subclasses it and adds fields, each with a docstring.

    Its variables are DRAFTWIRE_*, and the file is that of --config or DRAFTWIRE_CONFIG.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX)

    CONFIG_VARIABLE: ClassVar[str | None] = ENV_PREFIX + "CONFIG"

    listen: ListenAddress = "127.0.0.1:0"
    """Address to serve gRPC on, HOST:PORT. Port 0 picks a free one; the log says which."""
    metrics_listen: ListenAddress | None = None
    """Address to serve Prometheus metrics on over plain HTTP, HOST:PORT. Without it they are not served."""
    max_message_bytes: int = Field(default=16 * 1024 * 1024, ge=64 * 1024, le=1024 * 1024 * 1024)
    """Largest gRPC message sent or accepted, in bytes."""
    max_connections: int = Field(default=1024, ge=1, le=1_000_000)
    """Most connections that callers have open at once; further ones are closed on arrival."""
    max_calls_per_connection: int = Field(default=1024, ge=1, le=1_000_000)
    """Most calls that run at once on one connection; further ones wait at the caller, or are refused."""
    shutdown_grace_seconds: float = Field(default=10.0, ge=0)
    """Time that work in flight gets to finish after SIGTERM or SIGINT, in seconds."""
    tls_cert: str | None = Field(default=None, min_length=1)
    """This service's certificate (PEM file), for TLS, followed by its chain."""
    tls_key: str | None = Field(default=None, min_length=1)
    """The certificate's key (PEM file, without a passphrase)."""
    tls_client_ca: str | None = Field(default=None, min_length=1)
    """Require callers to have a certificate of one of these authorities (PEM file): mutual TLS."""
    tls_ca: str | None = Field(default=None, min_length=1)
    """Call other services by TLS and trust these authorities: a PEM file, or `public` for the public ones."""
    tls_client_cert: str | None = Field(default=None, min_length=1)
    """Certificate to present to other services (PEM file); that of --tls-cert by default."""
    tls_client_key: str | None = Field(default=None, min_length=1)
    """Key of --tls-client-cert (PEM file)."""
    tls_server_name: str | None = Field(default=None, min_length=1)
    """Name that other services' certificates are issued for, if it is not the host called."""
    accepted_tokens: str | None = Field(default=None, min_length=1)
    """TOML file with the tokens that callers need, their roles and limits. Without it no token is required."""
    token_file: str | None = Field(default=None, min_length=1)
    """File with the token to present to other services."""
    insecure: bool = False
    """Allow unencrypted traffic beyond this machine: listen there, and call others, without TLS."""
    reflection: bool | None = None
    """Serve gRPC reflection; by default only when listening on the loopback interface."""

    @model_validator(mode="after")
    def _tls_settings_go_together(self) -> Self:
        check_tls_settings(self)
        return self


SettingsT = TypeVar("SettingsT", bound=ProcessSettings)


def variable_of(cls: type[BaseSettings], field: str) -> str:
    """Returns the environment variable of a field."""
    return str(cls.model_config["env_prefix"]) + _variable_name(field, cls.model_fields.get(field))


def _variable_name(field: str, info: FieldInfo | None) -> str:
    names = (each.name for each in (info.metadata if info is not None else ()) if isinstance(each, Variable))
    return next(names, field.upper())


class _Environment(EnvSettingsSource):
    """Reads the values of variables, by field."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Returns the value of a field's variable, honouring Variable and SharedVariable."""
        for each in field.metadata:
            if isinstance(each, SharedVariable) and each.name.lower() in self.env_vars:
                return self.env_vars[each.name.lower()], field_name, False
        own = _variable_name(field_name, field)
        if own == field_name.upper():
            return super().get_field_value(field, field_name)
        return self.env_vars.get(f"{self.env_prefix}{own}".lower()), field_name, False


@dataclass(frozen=True)
class _Source:
    """Values by field, and a function that names the place a field came from."""

    values: Mapping[str, Any]
    place: Callable[[str], str]


class SettingsError(ValueError):
    """The settings cannot be used; `problems` holds one line per problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def load_settings(cls: type[SettingsT], argv: Sequence[str] | None = None) -> SettingsT:
    """Reads settings from flags, variables and, for a class with `CONFIG_VARIABLE`, the file of --config.

    argv: the command line without the program's name; sys.argv's by default. Raises SystemExit: status 2 after one line
    per problem on standard error, 0 after --help.
    """
    flags = Flags(cls.model_fields, cls.__doc__, lambda field: variable_of(cls, field), cls.CONFIG_VARIABLE)
    config, values = flags.parse(sys.argv[1:] if argv is None else argv)
    try:
        return _read(cls, values, config)
    except SettingsError as error:
        for problem in error.problems:
            print(f"{flags.program}: {problem}", file=sys.stderr)
        raise SystemExit(2) from error


def settings_from_environment(cls: type[SettingsT]) -> SettingsT:
    """Reads settings only from the variables with the class's prefix, for code that runs inside another program.

    Raises SettingsError, also for a variable with that prefix that is not a setting.
    """
    prefix = str(cls.model_config["env_prefix"])
    unknown = [
        f"{name}: there is no such setting"
        for name in sorted(os.environ)
        if name.startswith(prefix) and name.removeprefix(prefix).lower() not in cls.model_fields and not is_link(name)
    ]
    if unknown:
        raise SettingsError(unknown)
    source = _Source(_Environment(cls)(), lambda field: variable_of(cls, field))
    try:
        return cls(**source.values)
    except ValidationError as error:
        raise SettingsError([_problem(cls, dict(detail), [source]) for detail in error.errors()]) from error


def _read(cls: type[SettingsT], flag_values: Mapping[str, Any], config: str | None) -> SettingsT:
    """Merges the sources and validates the result. Raises SettingsError."""
    path = config
    if path is None and cls.CONFIG_VARIABLE is not None:
        path = os.environ.get(cls.CONFIG_VARIABLE)
    sources = [_Source(flag_values, flag_of), _Source(_Environment(cls)(), lambda field: variable_of(cls, field))]
    if path:
        sources.append(_Source(_read_file(Path(path)), lambda field: f"{field} in {path}"))
    merged: dict[str, Any] = {}
    places: dict[str, str] = {}
    for source in reversed(sources):
        merged |= source.values
        places |= {field: source.place(field) for field in source.values}
    try:
        settings = cls(**merged)
        settings._places = places
        return settings
    except ValidationError as error:
        raise SettingsError([_problem(cls, dict(detail), sources) for detail in error.errors()]) from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError([f"--config: cannot read {path}: {error.strerror}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"--config: {path} is not valid TOML: {error}"]) from error


def _problem(cls: type[ProcessSettings], detail: Mapping[str, Any], sources: Sequence[_Source]) -> str:
    """Returns one line for one of pydantic's error details."""
    location = [str(part) for part in detail["loc"]]
    if not location:  # a validator of the whole object names the fields itself
        return str(detail["msg"]).removeprefix("Value error, ")
    field = location[0]
    if detail["type"] == "missing":
        return f"{flag_of(field)}: required; set it by this flag, {variable_of(cls, field)} or the file"
    place = cls.problem_place(field, next(source.place(field) for source in sources if field in source.values))
    if detail["type"] == "extra_forbidden":
        return f"{place}: there is no such setting"
    reason = str(detail["msg"]).removeprefix("Value error, ")
    hidden = cls.model_config.get("hide_input_in_errors") or repr(detail["input"]) in reason
    got = "" if hidden else f", got {detail['input']!r}"
    index = "".join(f" (item {part})" for part in location[1:])
    return f"{place}{index}: {reason[:1].lower()}{reason[1:]}{got}"
