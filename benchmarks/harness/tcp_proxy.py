"""A TCP proxy on loopback whose line can be made long, narrow, broken, silent or noisy while connections run.

    async with TcpProxy("127.0.0.1:50052") as proxy:
        proxy.set_delay(0.025)      # a round trip of 50 ms through proxy.address
        proxy.partition()           # nothing gets through, and nobody notices
        proxy.heal()
        proxy.cut()                 # connection reset by peer

The proxy belongs to the event loop it was started in. Its own delay is two wake-ups of that loop, some 0.1 ms each way
while the loop is not busy with other work.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 16 * 1024
_CHUNKS = 256
"""Most chunks under way in one direction of a connection; beyond that its sender has to wait."""
_RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that turns closing into a reset."""


@dataclass
class Line:
    """Behaviour of one direction. May be changed at any time; applies to bytes that arrive from then on."""

    delay: float = 0.0
    """Seconds that every byte is delayed."""
    jitter: float = 0.0
    """Most additional seconds of a chunk, uniformly distributed. Bytes do not overtake each other."""
    bytes_per_second: float | None = None
    """Bandwidth of each connection; None means unlimited."""
    corruption: float = 0.0
    """Probability that a byte arrives with one of its bits flipped."""
    carried: int = 0
    """Bytes that have come from the sender."""


class TcpProxy:
    """A proxy that listens on its own port and forwards every connection to `target`."""

    def __init__(self, target: str, seed: int = 0) -> None:
        """target: HOST:PORT; may be changed, which affects new connections. seed: of jitter and corruption."""
        self.target = target
        self.up = Line()
        """Line from the caller to the target."""
        self.down = Line()
        """Line from the target to the caller."""
        self._rng = random.Random(seed)
        self._healed = asyncio.Event()
        self._healed.set()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """HOST:PORT to connect to. Raises RuntimeError before `start`."""
        if not self._address:
            raise RuntimeError("the proxy has not been started")
        return self._address

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    async def start(self) -> None:
        """Listens on a free port of 127.0.0.1."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self._address = f"{host}:{port}"

    async def stop(self) -> None:
        """Closes the port and resets all connections."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        self.cut()
        if tasks:
            await asyncio.wait(tasks)

    def set_delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Delays each direction by `seconds`, so the round trip by twice that, plus up to `jitter`."""
        for line in (self.up, self.down):
            line.delay, line.jitter = seconds, jitter

    def limit(self, bytes_per_second: float | None) -> None:
        """Limits the bandwidth of each connection and direction; None removes the limit."""
        for line in (self.up, self.down):
            line.bytes_per_second = bytes_per_second

    def corrupt(self, rate: float) -> None:
        """Flips one bit of each byte with this probability, in both directions; 0 ends that.

        TCP's checksum keeps such bytes from an application; a broken router, proxy or memory does not. So this is for
        links whose other end is not trusted anyway.
        """
        for line in (self.up, self.down):
            line.corruption = rate

    def cut(self) -> None:
        """Resets every connection at both ends. New ones are forwarded as before."""
        for task in self._connections:
            task.cancel()

    def partition(self) -> None:
        """Lets nothing through, neither bytes nor ends of connections; new connections hang.

        Connections stay open, and senders notice nothing: the bytes are swallowed, up to the size of TCP's windows. As
        TCP would retransmit them, those of connections that still exist arrive after `heal`.
        """
        self._healed.clear()

    def heal(self) -> None:
        """Ends a partition."""
        self._healed.set()

    def calm(self) -> None:
        """Removes all faults from the line."""
        self.up, self.down = Line(), Line()
        self.heal()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer), name="proxied connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards a connection until it ends."""
        ends = [writer]
        broken = True
        try:
            await self._healed.wait()
            host, _, port = self.target.rpartition(":")
            target_reader, target_writer = await asyncio.open_connection(host.strip("[]"), int(port))
            ends.append(target_writer)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._pump(reader, target_writer, up=True))
                directions.create_task(self._pump(target_reader, writer, up=False))
            broken = False
        except* OSError:
            pass  # one end has gone; the other one learns it by a reset
        finally:
            for end in ends:
                _close(end, reset=broken)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: bool) -> None:
        """Forwards one direction until it ends. Raises OSError when either end is gone."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS)
        async with asyncio.TaskGroup() as ends:
            ends.create_task(self._receive(reader, under_way, up))
            ends.create_task(self._send(under_way, writer))

    async def _receive(
        self, reader: asyncio.StreamReader, under_way: asyncio.Queue[tuple[float, bytes]], up: bool
    ) -> None:
        clock = asyncio.get_running_loop().time
        free_at = due = 0.0
        data = b"not the end"
        while data:
            try:
                data = await reader.read(_CHUNK_BYTES)
            except OSError:
                await self._healed.wait()  # a partition hides this too
                raise
            line = self.up if up else self.down
            line.carried += len(data)
            free_at = max(free_at, clock())
            if line.bytes_per_second is not None:
                free_at += len(data) / line.bytes_per_second
            due = max(due, free_at + line.delay + self._rng.uniform(0.0, line.jitter))
            await under_way.put((due, flipped(data, line.corruption, self._rng)))

    async def _send(self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, data = await under_way.get()
            wait = due - clock()
            if wait > 0:
                await asyncio.sleep(wait)
            await self._healed.wait()
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def flipped(data: bytes, rate: float, rng: random.Random) -> bytes:
    """Returns the data with one bit flipped in some bytes, each hit with probability `rate` in [0, 1]."""
    if rate <= 0:
        return data
    changed = bytearray(data)
    place = -1
    while True:
        # The distance to the next byte that is hit has a geometric distribution.
        place += 1 if rate >= 1 else 1 + int(math.log(1.0 - rng.random()) / math.log1p(-rate))
        if place >= len(changed):
            return bytes(changed)
        changed[place] ^= 1 << rng.randrange(8)


def _close(writer: asyncio.StreamWriter, reset: bool) -> None:
    if reset:
        connection = writer.get_extra_info("socket")
        if connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
    else:
        writer.close()
