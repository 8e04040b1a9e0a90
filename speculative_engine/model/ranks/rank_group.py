"""The processes that hold one model together, by ranks: rank 0 leads, the others run the passes that it announces.

All that they say to one another goes through torch.distributed in one order: the announcement of a pass from rank 0,
then what the layers exchange. With nothing to announce rank 0 sends heartbeats, which all ranks answer, so that a rank
that is lost is noticed whether there is work or not, and no rank waits for ever.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from speculative_engine.model.packed_batch import PackedBatch
from speculative_engine.model.packed_step import StepDecoder, StepEncoder

if TYPE_CHECKING:
    from speculative_engine.model.packed_model import PackedModel

_END, _HEARTBEAT, _PASS = range(3)
_HEAD = 2
"""Numbers before what is announced: which kind it is, and how many numbers follow."""
_BROADCAST_NUMBERS = 1024
"""Numbers of a broadcast; a longer announcement takes a second one."""
_BEAT_SECONDS = 1.0
"""Between two heartbeats; less where the time-out is short."""
_JOIN_SECONDS = 600.0
"""Time that ranks have to start, and to load their parts of the model, which disks may serve one after the other."""
_GONE_SECONDS = 2.0
"""Time in which a rank whose connections broke is seen to have ended."""
_POLL_SECONDS = 0.05


class RankLostError(Exception):
    """A rank has ended, or does not answer; the model cannot be run any more."""


class RankGroup:
    """One rank's place in the group. One thread at a time may call it."""

    def __init__(self, store: dist.Store, rank: int, size: int, *, device: str, timeout_seconds: float):
        """Joins the group; returns when all ranks have.

        timeout_seconds: longest that a rank waits for another one in a pass, and for rank 0's word. Raises
        RankLostError.
        """
        self.rank, self.size = rank, size
        self.device = f"{device}:{rank}" if device == "cuda" else device
        self.passes = 0
        """Passes announced or run."""
        self.announced_bytes = 0
        """What announcing them took, to each other rank."""
        self.exchanged_bytes = 0
        """What this rank gave of its layers, to each other rank."""
        self.exchange_seconds = 0.0
        """Time spent in talking to other ranks, waiting for them included."""
        self._store = store
        self._beat = min(_BEAT_SECONDS, timeout_seconds / 4)
        self._spoken = time.monotonic()
        self._leads = self._broken = False
        self._loads = 0
        self._encoder, self._decoder = StepEncoder(), StepDecoder()
        self._block = torch.empty(_BROADCAST_NUMBERS, dtype=torch.int64)
        self._processes: dict[int, int] = {}
        _stay_on_this_machine()
        self._meet("pid")
        self._processes = {other: _process(int(store.get(f"pid/{other}"))) for other in self._others()}
        if device == "cuda":
            torch.cuda.set_device(rank)
        with self.exchange():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout_seconds),
            )

    @property
    def leads(self) -> bool:
        """Whether the other ranks do what this one announces."""
        return self._leads

    def loaded(self) -> None:
        """Says that this rank has its part of the model; returns when all have. Raises RankLostError."""
        self._loads += 1
        self._meet(f"loaded/{self._loads}")

    # What layers exchange. Every rank calls these in the same order.

    def summed(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' parts, the same bits at every rank.

        On CPUs in the order of ranks for every element: a ring adds in an order that depends on where in the tensor an
        element lies, and so on the rows beside it. Raises RankLostError.
        """
        if part.device.type != "cpu":
            self.exchanged_bytes += part.nbytes
            with self.exchange():
                dist.all_reduce(part)
            return part
        parts = self._gathered(part)
        total = parts[0].float()
        for other in parts[1:]:
            total = total + other
        return total.to(part.dtype)

    def joined(self, part: torch.Tensor) -> torch.Tensor:
        """All ranks' parts [..., width], of one shape, side by side: [..., ranks * width]. Raises RankLostError."""
        return self._gathered(part).movedim(0, -2).reshape(*part.shape[:-1], self.size * part.shape[-1])

    def _gathered(self, part: torch.Tensor) -> torch.Tensor:
        """All ranks' parts, in their order: [ranks, *part.shape]."""
        self.exchanged_bytes += part.nbytes
        parts = part.new_empty(self.size, *part.shape)
        if not part.numel():  # a pass that wants no logits
            return parts
        with self.exchange():
            dist.all_gather(list(parts.unbind()), part.contiguous())
        return parts

    # Rank 0.

    def lead(self) -> None:
        """From now on every pass of rank 0 is announced, and the other ranks `follow`."""
        self._leads = self.rank == 0

    def announce(self, batch: PackedBatch) -> None:
        """Has the other ranks run a pass that rank 0 is about to run; before `lead` they know of it. Raises
        RankLostError."""
        if self._leads:
            self.passes += 1
            self._say(_PASS, self._encoder.encode(batch))

    def keep_alive(self) -> float:
        """Sends a heartbeat if it is time to; returns the seconds until the next one. Raises RankLostError."""
        if self._leads and time.monotonic() - self._spoken >= self._beat:
            self._say(_HEARTBEAT, np.empty(0, dtype=np.int64))
            self._answer()
        return max(0.0, self._spoken + self._beat - time.monotonic())

    def dismiss(self) -> None:
        """Has the other ranks follow no more, if they can be told."""
        if self._leads and not self._broken:
            with suppress(RankLostError):  # one that ended by itself is what is asked for here
                self._say(_END, np.empty(0, dtype=np.int64))
        self._leads = False
        self._encoder = StepEncoder()

    def close(self) -> None:
        """Dismisses the other ranks, and leaves the group."""
        self.dismiss()
        if not self._broken and dist.is_initialized():
            dist.destroy_process_group()
        for descriptor in self._processes.values():
            if descriptor >= 0:
                os.close(descriptor)
        self._processes.clear()

    def _say(self, kind: int, numbers: np.ndarray) -> None:
        block, count = self._block, len(numbers)
        here = min(count, _BROADCAST_NUMBERS - _HEAD)
        block[0], block[1] = kind, count
        block[_HEAD : _HEAD + here] = torch.from_numpy(numbers[:here])
        with self.exchange():
            dist.broadcast(block, 0)
            if count > here:
                dist.broadcast(torch.from_numpy(numbers[here:]), 0)
        self.announced_bytes += 8 * (_BROADCAST_NUMBERS + count - here)
        self._spoken = time.monotonic()

    # The other ranks.

    def follow(self, model: PackedModel) -> None:
        """Runs what rank 0 announces until it says that this is the end. Raises RankLostError."""
        while True:
            with self.exchange():
                dist.broadcast(self._block, 0)
                kind, count = self._block[:_HEAD].tolist()
                here = min(count, _BROADCAST_NUMBERS - _HEAD)
                numbers = self._block[_HEAD : _HEAD + here].clone()
                if count > here:
                    rest = torch.empty(count - here, dtype=torch.int64)
                    dist.broadcast(rest, 0)
                    numbers = torch.cat([numbers, rest])
            if kind == _END:
                self._decoder = StepDecoder()
                return
            if kind == _HEARTBEAT:
                self._answer()
                continue
            self.passes += 1
            model.forward(self._decoder.decode(numbers.numpy(), model.device))

    def _answer(self) -> None:
        with self.exchange():
            dist.all_reduce(torch.zeros(1, dtype=torch.int64))

    # How a rank's loss is noticed.

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """For what goes from rank to rank: what torch.distributed raises inside becomes RankLostError."""
        started = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            self._broken = True
            raise self._loss(error) from error
        self.exchange_seconds += time.perf_counter() - started

    def _loss(self, error: RuntimeError) -> RankLostError:
        """What can be said of a broken exchange: which ranks have ended, and not because others had."""
        # Before anybody asks: this rank may end now, but it is not the one that was lost.
        with suppress(RuntimeError):  # the store was rank 0's and went with it
            self._store.set(f"left/{self.rank}", "1")
        deadline = time.monotonic() + _GONE_SECONDS
        while not (gone := self._gone()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if gone:
            names = ", ".join(f"rank {rank}" for rank in gone)
            return RankLostError(f"{names} of {self.size} has ended; the model is not whole without it")
        others = ", ".join(f"rank {rank}" for rank in self._others())
        reason = str(error).partition("\n")[0]
        return RankLostError(f"the exchange with {others} of {self.size} failed: {reason}")

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _gone(self) -> list[int]:
        """The other ranks whose processes have ended of themselves."""
        ended = [rank for rank, descriptor in self._processes.items() if descriptor >= 0 and _ended(descriptor)]
        try:
            return [rank for rank in ended if not self._store.check([f"left/{rank}"])] or ended
        except RuntimeError:
            return ended

    def _meet(self, what: str) -> None:
        """Waits until all ranks have come to a point, which those who load do minutes after one another."""
        deadline = time.monotonic() + _JOIN_SECONDS
        with self.exchange():
            self._store.set(f"{what}/{self.rank}", str(os.getpid()))
            while not self._store.check([f"{what}/{rank}" for rank in range(self.size)]):
                if gone := self._gone():
                    raise RankLostError(f"rank {gone[0]} of {self.size} has ended while the model was being loaded")
                if time.monotonic() > deadline:
                    missing = [rank for rank in self._others() if not self._store.check([f"{what}/{rank}"])]
                    raise RankLostError(
                        f"rank {missing[0]} of {self.size} was not ready within {_JOIN_SECONDS:g} seconds"
                    )
                time.sleep(_POLL_SECONDS)


def _process(pid: int) -> int:
    """A file descriptor that can be read once the process has ended; -1 where the system has none or it ended."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def _ended(descriptor: int) -> bool:
    watched = select.poll()
    watched.register(descriptor, select.POLLIN)
    return bool(watched.poll(0))


def _stay_on_this_machine() -> None:
    """Has gloo talk over the loopback interface: by default it takes the one that the host's name stands for."""
    names = [name for _, name in socket.if_nameindex()]
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
