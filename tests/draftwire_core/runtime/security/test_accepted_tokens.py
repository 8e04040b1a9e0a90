"""Tokens and roles: who may call which method, and what is logged and answered."""

import asyncio
import hashlib
import hmac
import io
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from draftwire import AsyncClient
from draftwire._auth.security import ON_BEHALF_OF, Security
from draftwire._calls.channel import AsyncChannels
from draftwire.errors import PermissionDeniedError, UnauthenticatedError, from_rpc_error
from draftwire.v1 import drafter_pool_service_pb2, drafter_service_pb2, verifier_service_pb2
from draftwire.v1.drafter_pool_service_pb2_grpc import (
    DrafterPoolServiceServicer,
    add_DrafterPoolServiceServicer_to_server,
)
from draftwire.v1.drafter_service_pb2_grpc import DrafterServiceServicer, add_DrafterServiceServicer_to_server
from draftwire.v1.verifier_service_pb2_grpc import VerifierServiceServicer, add_VerifierServiceServicer_to_server
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.logs import configure_logs
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.rpc import interceptors
from draftwire_core.runtime.rpc.server import ServiceServer
from draftwire_core.runtime.security import accepted_tokens
from draftwire_core.runtime.security.accepted_tokens import AcceptedTokens
from draftwire_core.runtime.security.caller import Caller, current_caller, peer_name
from draftwire_core.runtime.security.roles import ROLES_BY_METHOD, Role, roles_of
from tests.harness.waiting import PATIENCE

SECRETS = {role: f"{role}-0123456789abcdef" for role in Role}
SERVICES = tuple(
    file.DESCRIPTOR.services_by_name[name]
    for file, name in (
        (verifier_service_pb2, "VerifierService"),
        (drafter_pool_service_pb2, "DrafterPoolService"),
        (drafter_service_pb2, "DrafterService"),
    )
)
METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}


def write(path: Path, **secrets: str) -> Path:
    tables = [f'[{name}]\ntoken = "{secret}"\nroles = ["{name}"]\n' for name, secret in secrets.items()]
    path.write_text("".join(tables))
    return path


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write(tmp_path / "tokens.toml", **SECRETS)


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[str]:
    """Serves all of the contract's services without implementations: UNIMPLEMENTED means that a call was admitted."""
    server = ServiceServer(ServiceSettings(**settings))
    server.add(add_VerifierServiceServicer_to_server, VerifierServiceServicer())
    server.add(add_DrafterPoolServiceServicer_to_server, DrafterPoolServiceServicer())
    server.add(add_DrafterServiceServicer_to_server, DrafterServiceServicer())
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop(0)


async def outcome(channel: grpc.aio.Channel, path: str, token: str | None) -> grpc.aio.AioRpcError:
    """Returns the error with which a call of a method ends."""
    method = METHODS[path]
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    # Nothing is written to a stream: a write that races with a refusal sometimes ends with gRPC's own INTERNAL.
    request = () if method.client_streaming else (b"",)
    call = getattr(channel, kind)(path)(*request, metadata=metadata, timeout=PATIENCE)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await (call.read() if method.server_streaming else call)
    return ended.value


def test_every_method_of_the_contract_is_in_the_table() -> None:
    assert set(ROLES_BY_METHOD) == set(METHODS)
    assert all(Role.ADMIN in roles for roles in ROLES_BY_METHOD.values())
    assert roles_of("/draftwire.v1.VerifierService/Later") == {Role.ADMIN}


@pytest.mark.parametrize("path", METHODS)
async def test_a_method_takes_the_roles_of_the_table_only(path: str, tokens: Path) -> None:
    async with serving(accepted_tokens=str(tokens)) as address, AsyncChannels(Security()).open(address) as channel:
        for role, secret in SECRETS.items():
            error = await outcome(channel, path, secret)
            if role in ROLES_BY_METHOD[path]:
                assert error.code() not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
                continue
            told = from_rpc_error(error)
            assert isinstance(told, PermissionDeniedError) and told.reason == "ROLE_MISSING"
            assert all(needed in told.message for needed in ROLES_BY_METHOD[path])
            assert told.metadata["role"] == " or ".join(sorted(ROLES_BY_METHOD[path]))
        for wrong in (None, "unknown-0123456789abcdef"):
            told = from_rpc_error(await outcome(channel, path, wrong))
            assert isinstance(told, UnauthenticatedError) and told.reason == "UNAUTHENTICATED"


async def test_other_schemes_are_no_tokens(tokens: Path) -> None:
    async with serving(accepted_tokens=str(tokens)) as address, AsyncChannels(Security()).open(address) as channel:
        call = channel.unary_unary("/draftwire.v1.VerifierService/Tokenize")
        for value in ("", "Bearer", "Bearer ", f"Basic {SECRETS[Role.ADMIN]}", SECRETS[Role.ADMIN]):
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call(b"", metadata=(("authorization", value),), timeout=PATIENCE)
            assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_what_came_without_a_token_is_not_decoded(tokens: Path) -> None:
    async with serving(accepted_tokens=str(tokens)) as address, AsyncChannels(Security()).open(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await channel.unary_unary("/draftwire.v1.VerifierService/Tokenize")(b"\xff no message", timeout=PATIENCE)
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_needs_none_and_reflection_any(tokens: Path) -> None:
    async with serving(accepted_tokens=str(tokens)) as address, AsyncChannels(Security()).open(address) as channel:
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stub.ServerReflectionInfo(iter([ask]), timeout=PATIENCE).read()
        assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", f"Bearer {SECRETS[Role.DRAFT]}"),)
        answer = await stub.ServerReflectionInfo(iter([ask]), metadata=metadata, timeout=PATIENCE).read()
        assert "draftwire.v1.VerifierService" in {each.name for each in answer.list_services_response.service}


@pytest.mark.parametrize(
    ("settings", "served"),
    [
        ({"listen": "127.0.0.1:0"}, True),
        ({"listen": "0.0.0.0:0", "insecure": True}, False),
        ({"listen": "0.0.0.0:0", "insecure": True, "reflection": True}, True),
        ({"listen": "127.0.0.1:0", "reflection": False}, False),
    ],
)
async def test_reflection_is_for_this_machine_unless_asked_for(settings: dict[str, Any], served: bool) -> None:
    async with serving(**settings) as address:
        local = f"127.0.0.1:{address.rpartition(':')[2]}"
        async with AsyncChannels(Security()).open(local) as channel:
            ask = reflection_pb2.ServerReflectionRequest(list_services="")
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask]), timeout=PATIENCE)
            if served:
                assert (await call.read()).list_services_response.service
                return
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call.read()
            assert ended.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_changed_file_counts_and_a_broken_one_does_not(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens.toml", admin="the-first-token-of-all")
    accepted = AcceptedTokens(path)
    method, old, new = "/draftwire.v1.DrafterService/LoadModel", "the-first-token-of-all", "the-second-token-of-all"

    def name(token: str) -> str | None:
        try:
            caller = accepted.check(method, [("authorization", f"Bearer {token}")])
        except ServiceError as error:
            return error.reason_name
        return caller and caller.name

    assert (name(old), name(new)) == ("admin", "UNAUTHENTICATED")
    path.write_text(f'[admin]\ntoken = "{new}')
    assert (name(old), name(new)) == ("admin", "UNAUTHENTICATED")
    write(path, admin=new)
    assert (name(old), name(new)) == ("UNAUTHENTICATED", "admin")
    path.write_text(f'[root]\nsha256 = "{hashlib.sha256(old.encode()).hexdigest()}"\nroles = ["admin", "draft"]')
    assert (name(old), name(new)) == ("root", "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no caller"),
        ("x = 1", "x: expected a table"),
        ('[a]\nroles = ["admin"]', "a: needs either token or sha256"),
        ('[a]\ntoken = "secret-secret-secret"', "a.roles: field required"),
        ('[a]\ntoken = "secret-secret-secret"\nroles = []', "a.roles: "),
        ('[a]\ntoken = "secret-secret-secret"\nroles = ["boss"]', "a.roles.*'generate', 'gateway', 'draft' or 'admin'"),
        ('[a]\ntoken = "secret"\nroles = ["draft"]', "a: token: needs at least 16 characters"),
        ('[a]\ntoken = "secret secret secret"\nroles = ["draft"]', "a: a token must be one word"),
        ('[a]\nsha256 = "secret"\nroles = ["draft"]', "a.sha256: "),
        ('[a]\ntoken = "secret-secret-secret"\nroles = ["draft"]\nmax_request = 1', "a.max_request: "),
        ('[a]\ntoken = "secret-secret-secret"\nroles = ["draft"]\nmax_requests = -1', "a.max_requests: "),
        ('["a b"]\ntoken = "secret-secret-secret"\nroles = ["draft"]', "is not a valid caller name"),
        (
            '[a]\ntoken = "secret-secret-secret"\nroles = ["draft"]\n'
            '[b]\ntoken = "secret-secret-secret"\nroles = ["draft"]',
            "a and b have the same token",
        ),
    ],
)
def test_a_wrong_file_is_explained_without_its_secrets(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=told) as refused:
        AcceptedTokens(path)
    assert str(path) in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("token", [*SECRETS.values(), "unknown-0123456789abcdef"])
def test_a_token_is_compared_with_all_there_are(tokens: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token is compared, whichever one matches, and in constant time, so that timing reveals nothing."""
    compared: list[bytes] = []

    def compare(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return hmac.compare_digest(known, given)

    accepted = AcceptedTokens(tokens)
    monkeypatch.setattr(accepted_tokens, "hmac", SimpleNamespace(compare_digest=compare))
    with suppress(ServiceError):
        accepted.check("/draftwire.v1.VerifierService/Generate", [("authorization", f"Bearer {token}")])
    assert sorted(compared) == sorted(hashlib.sha256(secret.encode()).digest() for secret in SECRETS.values())


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    stream = io.StringIO()
    configure_logs("json", "debug", stream)
    yield stream
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


async def test_the_log_names_the_caller_and_never_the_token(tokens: Path, log: io.StringIO) -> None:
    seen = []

    class Servicer(VerifierServiceServicer):
        async def Tokenize(self, request: Any, context: Any) -> Any:
            seen.append(current_caller())
            raise RuntimeError("a fault with a traceback")

    server = ServiceServer(ServiceSettings(accepted_tokens=str(tokens)))
    server.add(add_VerifierServiceServicer_to_server, Servicer())
    await server.start()
    async with AsyncChannels(Security()).open(server.address) as channel:
        for token in (*SECRETS.values(), "unknown-0123456789abcdef"):
            await outcome(channel, "/draftwire.v1.VerifierService/Tokenize", token)
    await server.stop(0)
    await asyncio.sleep(0)
    text = log.getvalue()
    assert {caller and caller.name for caller in seen} == {"generate", "gateway", "admin"}
    assert '"caller": "generate"' in text and '"code": "UNAUTHENTICATED"' in text
    assert not re.search("0123456789abcdef", text + repr(seen))


class Waiting(VerifierServiceServicer):
    """Sends one message on each streaming call, then never ends it."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self._changed = asyncio.Condition()

    async def runs(self, callers: set[str]) -> None:
        """Returns once exactly these callers have running calls."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.running == callers)

    async def Generate(self, request: Any, context: Any) -> Any:
        async with self._running():
            yield verifier_service_pb2.GenerateResponse()
            await asyncio.Event().wait()

    async def Tokenize(self, request: Any, context: Any) -> Any:
        async with self._running():
            await asyncio.Event().wait()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        caller = current_caller()
        assert caller is not None
        try:
            async with self._changed:
                self.running.add(caller.name)
                self._changed.notify_all()
            yield
        finally:
            async with self._changed:
                self.running.discard(caller.name)
                self._changed.notify_all()


async def test_calls_that_run_end_when_their_token_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptors, "_WATCH_SECONDS", 0.05)
    secrets = {name: f"{name}-0123456789abcdef" for name in ("kept", "gone", "demoted", "unary")}
    file = tmp_path / "tokens.toml"

    def write_roles(**roles: str) -> None:
        file.write_text("".join(f'[{n}]\ntoken = "{secrets[n]}"\nroles = ["{r}"]\n' for n, r in roles.items()))

    write_roles(kept="generate", gone="generate", demoted="generate", unary="generate")
    servicer = Waiting()
    server = ServiceServer(ServiceSettings(accepted_tokens=str(file)))
    server.add(add_VerifierServiceServicer_to_server, servicer)
    await server.start()
    async with AsyncChannels(Security()).open(server.address) as channel, asyncio.timeout(50):
        calls = {}
        for name in ("kept", "gone", "demoted"):
            metadata = (("authorization", f"Bearer {secrets[name]}"),)
            calls[name] = channel.unary_stream("/draftwire.v1.VerifierService/Generate")(b"", metadata=metadata)
            assert await calls[name].read() == b""
        metadata = (("authorization", f"Bearer {secrets['unary']}"),)
        unary = channel.unary_unary("/draftwire.v1.VerifierService/Tokenize")(b"", metadata=metadata)
        await servicer.runs(set(secrets))
        file.write_text("half a fi")  # a truncated file, which revokes nothing
        await asyncio.sleep(0.2)
        assert servicer.running == set(secrets)
        write_roles(kept="generate", demoted="draft")
        for call, code in (
            (calls["gone"].read(), grpc.StatusCode.UNAUTHENTICATED),
            (calls["demoted"].read(), grpc.StatusCode.PERMISSION_DENIED),
            (unary, grpc.StatusCode.UNAUTHENTICATED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call
            assert ended.value.code() is code
        await servicer.runs({"kept"})
        calls["kept"].cancel()
    await server.stop(0)
    assert not server._interceptor._admitted and not servicer.running


def test_only_gateways_may_name_the_client_of_a_call(tokens: Path) -> None:
    accepted = AcceptedTokens(tokens)
    method = "/draftwire.v1.DrafterService/GetModelInfo"  # open to all roles

    def check(role: Role, *clients: str) -> Caller | None:
        named = ((ON_BEHALF_OF, client) for client in clients)
        return accepted.check(method, (("authorization", f"Bearer {SECRETS[role]}"), *named))

    for role in Role:
        caller = check(role)
        assert caller is not None and (caller.peer, caller.client) == (role, None)
    for role in (Role.GATEWAY, Role.ADMIN):
        caller = check(role, "alice")
        assert caller is not None and caller.peer == f"{role}/alice" and caller.roles == {role}
        for wrong in ("", "a/b", "a b", "a" * 65):
            with pytest.raises(ServiceError) as refused:
                check(role, wrong)
            assert refused.value.reason_name == "INVALID_FIELD"
    for role in (Role.GENERATE, Role.DRAFT):
        with pytest.raises(ServiceError, match="naming the client of a call requires: admin or gateway") as refused:
            check(role, "alice")
        assert refused.value.reason_name == "ROLE_MISSING"


def test_no_entry_passes_for_a_gateways_client(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text('["gateway/alice"]\ntoken = "0123456789abcdef"\nroles = ["generate"]\n')
    with pytest.raises(ValueError, match="not a valid caller name"):
        AcceptedTokens(file)


class Seen(VerifierServiceServicer):
    """Remembers under which names calls count."""

    def __init__(self) -> None:
        self.peers: list[str] = []

    async def Tokenize(self, request: Any, context: Any) -> Any:
        self.peers.append(peer_name(context.peer()))
        return verifier_service_pb2.TokenizeResponse()


@pytest.mark.parametrize("known", [True, False])
async def test_calls_count_under_the_clients_that_a_gateway_names(tokens: Path, known: bool) -> None:
    clients = ["alice", None, "bob"]
    servicer = Seen()
    server = ServiceServer(ServiceSettings(accepted_tokens=str(tokens) if known else None))
    server.add(add_VerifierServiceServicer_to_server, servicer)
    await server.start()
    name: str | None = None
    async with AsyncClient(server.address, token=SECRETS[Role.GATEWAY], on_behalf_of=lambda: name) as client:
        for each in clients:
            name = each
            await client.tokenize("a", timeout=PATIENCE)
    await server.stop(0)
    if known:
        assert servicer.peers == ["gateway/alice", "gateway", "gateway/bob"]
    else:  # nobody is known, and nobody is believed
        assert set(servicer.peers) <= {"127.0.0.1", "::1"}
