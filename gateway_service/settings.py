"""The gateway's settings."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from draftwire import SpreadPolicy
from draftwire._types.verifier import parse_verifiers
from draftwire_core.runtime.process.address import ListenAddress
from draftwire_core.runtime.process.flags import flag_of
from draftwire_core.runtime.process.settings import (
    ENV_PREFIX,
    ProcessSettings,
    SharedVariable,
    split_at_commas,
    variable_of,
)
from draftwire_core.runtime.process.tls_settings import check_tls_settings
from gateway_service.http.host_check import host_of, is_origin


def _split(value: object) -> object:
    """Splits a variable, or each value of a repeated flag, at commas."""
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        value = ",".join(value)
    return split_at_commas(value)


def _some(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if not keys:
        raise ValueError("contains no key; omit the setting to require none")
    return keys


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


Addresses = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_verifiers)]
"""Type of a settings field that holds HOST:PORT of several verifiers, each optionally with ?weight=NUMBER."""
Strings = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Hosts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_hosts)]
"""Type of a settings field that holds several values, each HOST or HOST:PORT."""
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_origins)]
"""Type of a settings field that holds several values, each SCHEME://HOST, SCHEME://HOST:PORT or *."""
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split), AfterValidator(_some)]


class GatewaySettings(ProcessSettings):
    """Serves an OpenAI-compatible HTTP API in front of a verifier.

    Its variables are DRAFTWIRE_GATEWAY_*; it reads no file.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX + "GATEWAY_",
        hide_input_in_errors=True,  # some settings are keys
        validate_default=False,  # a given key must not be empty; the default has none
    )

    verifier: Addresses = ("localhost:50051",)
    """Verifier to serve, HOST:PORT or HOST:PORT?weight=2; may be repeated, or separated by commas."""
    models: str = ""
    """File of models with their names, verifiers and shares (TOML), instead of --verifier; read again if changed."""
    spread_prefix_bytes: int = Field(default=SpreadPolicy().prefix_bytes, ge=1)
    """Prompts that share this many first bytes go to the same one of several verifiers (docs/many-verifiers.md)."""
    spread_load_bound: float = Field(default=SpreadPolicy().load_bound, ge=1)
    """Most load of a verifier, relative to the mean, before its requests go elsewhere."""
    listen: ListenAddress = "127.0.0.1:8000"
    """Address to serve HTTP on, HOST:PORT. Port 0 picks a free one; the log says which."""
    tls_cert: str = ""
    """The gateway's certificate (PEM file), to serve HTTPS, followed by its chain."""
    tls_key: str = ""
    """The certificate's key (PEM file, without a passphrase)."""
    tls_client_ca: str = ""
    """Require HTTP clients to have a certificate of one of these authorities (PEM file): mutual TLS."""
    tls_ca: str = ""
    """Call the verifier by TLS and trust these authorities: a PEM file, or `public` for the public ones."""
    tls_client_cert: str = ""
    """Certificate to present to the verifier (PEM file); that of --tls-cert by default."""
    tls_client_key: str = ""
    """Key of --tls-client-cert (PEM file)."""
    tls_server_name: str = ""
    """Name that the verifier's certificate is issued for, if it is not the host called."""
    token_file: str = ""
    """File with the token to present to the verifier."""
    insecure: bool = False
    """Allow unencrypted traffic beyond this machine: HTTP on --listen, and calls to the verifier without TLS."""
    served_model_name: Strings = ()
    """Name under which the model is served, instead of the verifier's; may be repeated."""
    api_key: Annotated[Secrets, SharedVariable("DRAFTWIRE_API_KEYS")] = ()
    """Key that a request must have; may be repeated. Without any, no key is required. Also: DRAFTWIRE_API_KEYS."""
    api_key_file: str = ""
    """File with further keys, one per line; lines that begin with # are ignored."""
    keys: str = ""
    """File of named keys with models, limits and expiry (TOML); it is read again when it changes."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=1024 * 1024 * 1024)
    """Largest body of a request, in bytes."""
    max_body_elements: int = Field(default=131_072, ge=1024, le=1 << 24)
    """Most values in the arrays and objects of a body, token ids included; an eighth may be arrays and objects."""
    body_seconds: float = Field(default=60.0, gt=0)
    """Time in which a request's body must arrive, in seconds."""
    max_connections: int = Field(default=1024, ge=1)
    """Most connections of clients; further ones replace idle ones, or are closed."""
    max_generations: int = Field(default=256, ge=1)
    """Most choices generated at once, over all requests; more are refused."""
    max_choices: int = Field(default=128, ge=1)
    """Most choices of one request: its prompts, n times each."""
    max_tokens: int = Field(default=0, ge=0)
    """Most tokens of a choice; a request that asks for more gets this many. 0 leaves it to the model's context."""
    request_seconds: float = Field(default=600.0, gt=0)
    """Total time that a request may take, in seconds."""
    console: bool = True
    """Serve the console at /: a page to generate text and to manage the drafter pool."""
    allowed_origin: Origins = ()
    """Web origin whose pages may call (CORS), or *; may be repeated. Default: only the gateway's own page."""
    allowed_host: Hosts = ()
    """Host that clients may call; may be repeated. Default: loopback names if on loopback without keys, else any."""
    shutdown_grace_seconds: int = Field(default=10, ge=0)
    """Time that requests in flight get to finish after SIGTERM or SIGINT, in seconds."""

    @property
    def given(self) -> dict[str, Any]:
        """Settings that do not have their default value, without the keys, fit for the log."""
        return {field: value for field, value in super().given.items() if field != "api_key"}

    @classmethod
    def problem_place(cls, field: str, source: str) -> str:
        """Returns both names of the setting, whichever of them gave the value."""
        return f"{flag_of(field)} ({variable_of(cls, field)})"

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.models and self.model_fields_set & {"verifier", "served_model_name"}:
            raise ValueError("--models: names models and verifiers; omit --verifier and --served-model-name")
        if not self.verifier:
            raise ValueError("--verifier: at least one address is needed")
        check_tls_settings(self)
        if self.max_choices > self.max_generations:
            raise ValueError(
                f"--max-choices: must be at most --max-generations ({self.max_generations}), got {self.max_choices}"
            )
        return self
