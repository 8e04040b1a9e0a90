"""Settings that every adapter to a host engine has, and the names of such an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from pydantic import Field, model_validator

from draftwire_core.runtime.process.address import ListenAddress
from draftwire_core.runtime.process.settings import ServiceSettings, StringList, variable_of


@dataclass(frozen=True, slots=True)
class HostEngine:
    """A host engine's names."""

    name: str
    """The host engine's name in sentences."""
    key: str
    """The host engine's name in metrics."""


class EngineAdapterSettings(ServiceSettings):
    """Gives a host engine remote drafters. An adapter subclasses it with its host engine and its variables' prefix."""

    HOST: ClassVar[HostEngine]

    listen: ListenAddress = "127.0.0.1:50061"
    """Address to serve the drafter pool on over gRPC, HOST:PORT. Port 0 picks a free one; the log says which."""
    drafter: StringList = ()
    """HOST:PORT of drafters to attach at start, separated by commas."""
    max_wait_ms: float = Field(default=50.0, ge=0)
    """Longest that a step of the whole batch is delayed for draft tokens, however much they are worth, in
    milliseconds."""
    request_idle_seconds: float = Field(default=120.0, gt=0)
    """Time without a step after which a request is closed with its drafter: the host engine may never report its
    end."""
    max_tree_nodes: int = Field(default=32, ge=1, le=256)
    """Most live nodes of one drafter in a request's token tree."""
    max_drafters: int = Field(default=64, ge=1)
    """Most drafters attached at once; more are refused."""
    drafters_per_request: int = Field(default=1, ge=1)
    """Drafters that draft for a request at once, into its one token tree."""
    announced_host: StringList = ()
    """Host that drafters may announce: a name, *.DOMAIN, an address or a network. Default: any."""

    @model_validator(mode="after")
    def _traces_are_the_host_engines(self) -> Self:
        if self.trace_endpoint:
            variable, name = variable_of(type(self), "trace_endpoint"), self.HOST.name
            raise ValueError(f"{variable}: not supported; {name} traces its requests itself")
        return self
