"""The benchmarks' TCP proxy: its effects on the bytes and connections it carries."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from benchmarks.harness.tcp_proxy import TcpProxy, flipped
from tests.harness.waiting import PATIENCE, TRIES

SOON = 0.2
"""Seconds after which data that must not arrive would have arrived."""


class EchoServer:
    """Echoes its input, and counts the connections that ended with a reset."""

    def __init__(self) -> None:
        self.accepted = 0
        self.resets = 0
        self.ends = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            self.ends += 1
        except ConnectionError:
            self.resets += 1
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[EchoServer]:
    server = EchoServer()
    yield server
    await server.stop()


@pytest.fixture
async def proxy(echo: EchoServer) -> AsyncIterator[TcpProxy]:
    async with asyncio.timeout(PATIENCE), TcpProxy(await echo.start(), seed=1) as proxy:
        yield proxy


async def connect(proxy: TcpProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = proxy.address.split(":")
    return await asyncio.open_connection(host, int(port))


async def eventually(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not look():  # noqa: ASYNC110 (the condition has no event)
            await asyncio.sleep(0.01)


async def test_it_carries_bytes_and_the_end_of_a_connection(proxy: TcpProxy, echo: EchoServer) -> None:
    reader, writer = await connect(proxy)
    sent = random.Random(0).randbytes(3_000_000)
    writer.write(sent)
    writer.write_eof()
    assert await reader.read(-1) == sent
    await eventually(lambda: echo.ends == 1 and proxy.connections == 0)
    writer.close()


async def test_it_delays_a_round_trip_by_both_ways(proxy: TcpProxy) -> None:
    clock = asyncio.get_running_loop().time
    reader, writer = await connect(proxy)
    proxy.set_delay(0.05, jitter=0.02)
    started = clock()
    for number in range(3):
        writer.write(bytes([number]))
        assert await reader.readexactly(1) == bytes([number])
    assert clock() - started >= 3 * 2 * 0.05


async def test_what_is_sent_at_once_is_delayed_at_once(proxy: TcpProxy) -> None:
    """A delay is latency, not a low rate: ten messages in transit together take one delay."""
    clock = asyncio.get_running_loop().time
    reader, writer = await connect(proxy)
    proxy.set_delay(0.5)
    for _ in range(TRIES):
        started = clock()
        for number in range(10):
            writer.write(bytes([number]))
            await asyncio.sleep(0.01)
        assert await reader.readexactly(10) == bytes(range(10))
        took = clock() - started
        assert took >= 1.0
        if took < 10 * 1.0:  # longer if delays add up, or if the machine was too busy for this test
            return
    pytest.fail("it takes a delay for each")


async def test_jitter_does_not_change_the_order(proxy: TcpProxy) -> None:
    reader, writer = await connect(proxy)
    proxy.set_delay(0.0, jitter=0.05)
    for number in range(50):
        writer.write(bytes([number]))
        await asyncio.sleep(0.001)
    assert await reader.readexactly(50) == bytes(range(50))


async def test_it_limits_the_bandwidth(proxy: TcpProxy) -> None:
    clock = asyncio.get_running_loop().time
    reader, writer = await connect(proxy)
    proxy.up.bytes_per_second = 200_000
    started = clock()
    writer.write(bytes(100_000))
    await reader.readexactly(100_000)
    assert clock() - started >= 0.5


async def test_a_cut_resets_both_ends_and_new_connections_work(proxy: TcpProxy, echo: EchoServer) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    await eventually(lambda: echo.resets == 1)
    again, writer = await connect(proxy)
    writer.write(b"b")
    assert await again.readexactly(1) == b"b"


async def test_a_partition_is_silent_and_ends(proxy: TcpProxy, echo: EchoServer) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    proxy.partition()
    writer.write(b"b")
    await writer.drain()
    new_reader, new_writer = await connect(proxy)
    new_writer.write(b"c")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), SOON)
    assert echo.accepted == 1, "a new connection hangs"
    await eventually(lambda: proxy.connections == 2)  # they stay open
    proxy.heal()
    assert await reader.readexactly(1) == b"b", "as TCP would have sent it again"
    assert await new_reader.readexactly(1) == b"c"


async def test_a_partition_hides_that_an_end_has_gone(proxy: TcpProxy, echo: EchoServer) -> None:
    _, writer = await connect(proxy)
    _, other = await connect(proxy)
    await eventually(lambda: echo.accepted == 2)
    proxy.partition()
    writer.close()
    other.transport.abort()
    await asyncio.sleep(SOON)
    assert echo.ends + echo.resets == 0
    proxy.heal()
    await eventually(lambda: echo.ends + echo.resets == 2)


async def test_a_cut_works_during_a_partition(proxy: TcpProxy, echo: EchoServer) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"a")
    await reader.readexactly(1)
    proxy.partition()
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    await eventually(lambda: echo.resets == 1)


async def test_it_corrupts_both_directions(proxy: TcpProxy) -> None:
    reader, writer = await connect(proxy)
    sent = bytes(100_000)
    proxy.up.corruption = 0.001
    writer.write(sent)
    once = await reader.readexactly(len(sent))
    hit = sum(byte != 0 for byte in once)
    assert 50 < hit < 200
    assert all(byte.bit_count() <= 1 for byte in once)
    proxy.calm()
    writer.write(sent)
    assert await reader.readexactly(len(sent)) == sent


async def test_a_target_that_is_not_there_resets_and_may_move(proxy: TcpProxy, echo: EchoServer) -> None:
    moved_to, proxy.target = proxy.target, "127.0.0.1:1"
    reader, _ = await connect(proxy)
    with suppress(ConnectionResetError):  # or the end of the stream: the reset may come before anything is read
        assert await reader.read(1) == b""
    proxy.target = moved_to
    reader, writer = await connect(proxy)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"


async def test_stopping_resets_what_runs(echo: EchoServer) -> None:
    proxy = TcpProxy(await echo.start())
    with pytest.raises(RuntimeError):
        _ = proxy.address
    await proxy.start()
    reader, _ = await connect(proxy)
    await eventually(lambda: proxy.connections == 1)
    await proxy.stop()
    with suppress(ConnectionResetError):
        assert await reader.read(1) == b""
    await eventually(lambda: proxy.connections == 0)


def test_flipping_is_by_the_rate_and_by_the_seed() -> None:
    data = bytes(10_000)
    assert flipped(data, 0.0, random.Random(1)) == data
    assert all(byte.bit_count() == 1 for byte in flipped(data, 1.0, random.Random(1)))
    assert 900 < sum(byte != 0 for byte in flipped(data, 0.1, random.Random(1))) < 1100
    assert flipped(data, 0.1, random.Random(1)) == flipped(data, 0.1, random.Random(1))
