"""Ambiguously framed requests, which a proxy may split differently than the gateway does, over raw sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import pytest
import uvicorn

from gateway_service.http.connection import StrictFraming, bounded
from tests.harness.waiting import PATIENCE

HEAD = "POST /first HTTP/1.1\r\nhost: localhost\r\n"
HIDDEN = "GET /hidden HTTP/1.1\r\nhost: localhost\r\n\r\n"
"""Bytes that would be read as a request of their own."""
CHUNKS = "2\r\n{}\r\n0\r\n\r\n"


class Server:
    """Answers every request, and records its path."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.port = 0
        self.reads = True
        """Whether it reads a body before it answers."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        while self.reads and (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def answer(self, sent: str) -> bytes:
        """Returns everything received until the server closes the connection."""
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(sent.encode())
            answer = await reader.read()
            writer.close()
            return answer


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with _serving() as made:
        yield made


@asynccontextmanager
async def _serving() -> AsyncIterator[Server]:
    made = Server()
    kept = uvicorn.Server(uvicorn.Config(made, port=0, http=bounded(8), lifespan="off", log_config=None))
    serving = asyncio.create_task(kept.serve())
    try:
        while not kept.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        made.port = kept.servers[0].sockets[0].getsockname()[1]
        yield made
    finally:
        kept.should_exit = True
        await serving


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (f"{HEAD}content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n{CHUNKS}", "and transfer-encoding"),
        (f"{HEAD}Transfer-Encoding: chunked\r\nContent-Length: 12\r\n\r\n{CHUNKS}", "and transfer-encoding"),
        (f"{HEAD}transfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n{CHUNKS}", "and transfer-encoding"),
        (f"{HEAD.replace('1.1', '1.0')}transfer-encoding: chunked\r\n\r\n{CHUNKS}", "HTTP/1.0"),
        (f"{HEAD}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}", "Content-Length"),
        (f"{HEAD}content-length: 2, 3\r\n\r\n{{}}", "Content-Length"),
        (f"{HEAD}content-length: +2\r\n\r\n{{}}", "Content-Length"),
        (f"{HEAD}content-length: 0x2\r\n\r\n{{}}", "Content-Length"),
        (f"{HEAD}content-length : 2\r\n\r\n{{}}", ""),
        (f"{HEAD}transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n{CHUNKS}", "Transfer-Encoding"),
        (f"{HEAD}transfer-encoding: gzip, chunked\r\n\r\n{CHUNKS}", "Transfer-Encoding"),
        (f"{HEAD}transfer-encoding: xchunked\r\n\r\n{CHUNKS}", "Transfer-Encoding"),
        (f"{HEAD}transfer-encoding:\x0bchunked\r\n\r\n{CHUNKS}", ""),
        (f"{HEAD}host: elsewhere\r\ncontent-length: 2\r\n\r\n{{}}", "Host"),
        (f"{HEAD}transfer-encoding: chunked\r\n\r\n2\r\n{{}}XX0\r\n\r\n", ""),
    ],
)
async def test_what_could_be_two_requests_is_refused_and_the_connection_closed(
    server: Server, sent: str, told: str
) -> None:
    answer = await server.answer(sent + HIDDEN)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_http")
    assert told in error["message"]
    assert "/hidden" not in server.paths


async def test_clear_requests_are_answered_one_after_the_other(server: Server) -> None:
    clear = (
        f"{HEAD}content-length: 2\r\n\r\n{{}}",
        f"{HEAD}transfer-encoding: chunked\r\n\r\n{CHUNKS}",
        "GET /last HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    )
    answer = await server.answer("".join(clear))
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert server.paths == ["/first", "/first", "/last"]


async def test_a_broken_body_after_the_answer_closes_the_connection(server: Server) -> None:
    """The gateway answers 401 and 413 before it has read the body."""
    server.reads = False
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"{HEAD}transfer-encoding: chunked\r\n\r\n2\r\n".encode())
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"{}no end of a chunk\r\n" + HIDDEN.encode())
        assert await reader.read() == b""
        writer.close()
    assert server.paths == ["/first"]


def chunks(number: int, chunk: str) -> None:
    """Reads a body of so many chunks."""
    connection = StrictFraming(h11.SERVER)
    connection.receive_data(f"{HEAD}transfer-encoding: chunked\r\n\r\n{number * chunk}".encode())
    while connection.next_event() is not h11.NEED_DATA:
        pass


def test_a_body_of_many_tiny_chunks_is_refused() -> None:
    """Each chunk takes the event loop some time, and one read may have tens of thousands of them."""
    with pytest.raises(h11.RemoteProtocolError, match="4096 chunks"):
        chunks(5000, "1\r\n{\r\n")
    chunks(4000, "1\r\n{\r\n")
    chunks(5000, "10\r\n{               \r\n")
