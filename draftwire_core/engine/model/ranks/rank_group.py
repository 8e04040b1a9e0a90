"""The group of processes that a model is split among: rank 0 leads, the others run the passes that it announces.

All communication goes through torch.distributed, in the same order at every rank: the announcement of a pass by rank 0,
then the collectives of its layers. When idle, rank 0 sends heartbeats, which all ranks answer. A lost rank is therefore
noticed with and without work, and no rank waits forever.

On GPUs the collectives may be parts of CUDA graphs, which all ranks capture together and replay for the same passes.
Nobody but NCCL sees those, so a waiter for a pass watches the other ranks meanwhile (`await_device`).
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist

from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.packed_step import StepDecoder, StepEncoder

_END, _HEARTBEAT, _PASS, _CAPTURE = range(4)
_HEAD = 2
"""Numbers in an announcement's header: its kind and the count of numbers that follow."""
_BROADCAST_NUMBERS = 1024
"""Numbers per broadcast; a longer announcement takes a second broadcast."""
_BEAT_SECONDS = 1.0
"""Interval between heartbeats; shorter if the timeout is short."""
_JOIN_SECONDS = 600.0
"""Time that ranks have to start, and to load their parts of the model, which disks may serve one after the other."""
_GONE_SECONDS = 2.0
"""Time to wait, after connections broke, for a rank's process to be seen to have ended."""
_POLL_SECONDS = 0.05
_DEVICE_POLL_SECONDS = 2e-5
"""Time between two looks at a device, in which other threads run."""
_MOST_TOLD = 240
"""Bytes of a reason that ranks send each other."""


class RankLostError(Exception):
    """Raised if a rank has ended or does not answer; the model can no longer run."""


class Follower(Protocol):
    """A rank's part of a model, as other ranks than rank 0 run it."""

    device: torch.device

    def forward(self, batch: PackedBatch) -> object:
        """Runs one forward pass."""

    def capture_graphs(self) -> None:
        """Captures steps as CUDA graphs."""


class RankGroup:
    """One rank's membership in the group. One thread at a time may call it."""

    def __init__(self, store: dist.Store, rank: int, size: int, *, device: str, timeout_seconds: float):
        """Joins the group; returns when all ranks have. Raises RankLostError.

        timeout_seconds: longest time that a rank waits for another in a pass, and for rank 0's next announcement.
        """
        self.rank, self.size = rank, size
        self.device = f"{device}:{rank}" if device == "cuda" else device
        self.passes = 0
        """Number of passes announced or run."""
        self.announced_bytes = 0
        """Bytes of announcements sent to each other rank."""
        self.exchanged_bytes = 0
        """Bytes that this rank's layers sent to each other rank."""
        self.exchange_seconds = 0.0
        """Time spent communicating with other ranks, waiting included."""
        self._store = store
        self._beat = min(_BEAT_SECONDS, timeout_seconds / 4)
        self._spoken = time.monotonic()
        self._leads = self._broken = self._capturing = False
        self._timeout = timeout_seconds
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
        """Whether the other ranks run the passes that this one announces."""
        return self._leads

    def loaded(self) -> None:
        """Reports that this rank has loaded its part of the model; returns when all have. Raises RankLostError."""
        self._loads += 1
        self._meet(f"loaded/{self._loads}")

    # Collectives of the layers. Every rank calls these in the same order.

    def summed(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' parts, the same bits at every rank. Raises RankLostError.

        Every element is summed in the order of ranks. A ring's order depends on the element's place in the tensor, and
        so on the other rows of the batch.
        """
        parts = self.gathered(part)
        total = parts[0].float()
        for other in parts[1:]:
            total = total + other
        return total.to(part.dtype)

    def joined(self, part: torch.Tensor) -> torch.Tensor:
        """All ranks' parts [..., width], of one shape, concatenated: [..., ranks * width]. Raises RankLostError."""
        return self.gathered(part).movedim(0, -2).reshape(*part.shape[:-1], self.size * part.shape[-1])

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        """All ranks' parts in the order of ranks, [ranks, *part.shape]. Raises RankLostError."""
        self.exchanged_bytes += part.nbytes
        parts = part.new_empty(self.size, *part.shape)
        if not part.numel():  # a pass without logits
            return parts
        with self.exchange():
            if part.device.type == "cpu":
                dist.all_gather(list(parts.unbind()), part.contiguous())
            else:
                dist.all_gather_into_tensor(parts, part.contiguous())  # a list would be copied once more
        return parts

    # What ranks find out together before rank 0 serves, each on its own device.

    def numbers(self, own: int) -> list[int]:
        """Sends the other ranks a number; returns those of all in the order of ranks. Raises RankLostError."""
        told = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        with self.exchange():
            dist.all_gather(told, torch.tensor([own]))
        return [int(each) for each in told]

    def agreed(self, failure: str | None) -> str | None:
        """Reports this rank's failure, if any, and returns the same at every rank: the first failure of any, with its
        rank unless all have it; None if there is none. Raises RankLostError."""
        own = torch.zeros(_MOST_TOLD, dtype=torch.uint8)
        text = (failure or "").encode()[:_MOST_TOLD]
        own[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        told = [torch.empty_like(own) for _ in range(self.size)]
        with self.exchange():
            dist.all_gather(told, own)
        failures = [bytes(each.tolist()).rstrip(b"\0").decode(errors="ignore") for each in told]
        if len(set(failures)) == 1:
            return failures[0] or None
        rank = next(rank for rank, each in enumerate(failures) if each)
        return f"rank {rank}: {failures[rank]}"

    # Captures of CUDA graphs. All ranks capture the same ones at the same time.

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """A context in which an error of an exchange is one of the capture, and not taken for the loss of a rank."""
        self._capturing = True
        try:
            yield
        finally:
            self._capturing = False

    # Methods of rank 0.

    def lead(self) -> None:
        """Makes rank 0 announce every pass from now on, for other ranks that `follow`; does nothing at these."""
        self._leads = self.rank == 0

    def announce(self, batch: PackedBatch) -> None:
        """Announces a pass that rank 0 is about to run, for the other ranks to run it too. Raises RankLostError.

        Does nothing before `lead`, when all ranks run the same passes by themselves.
        """
        if self._leads:
            self.passes += 1
            self._say(_PASS, self._encoder.encode(batch))

    def announce_capture(self) -> None:
        """Announces that rank 0 is about to capture its graphs, for the others to capture theirs. Raises RankLostError.

        Does nothing before `lead`, when all ranks capture by themselves.
        """
        if self._leads:
            self._say(_CAPTURE, np.empty(0, dtype=np.int64))

    def await_device(self, reached: Callable[[], bool]) -> None:
        """Waits until the device has done what `reached` asks about. Raises RankLostError if a rank ends meanwhile, or
        after the group's timeout: an exchange within a graph would otherwise wait forever."""
        started = looked = time.monotonic()
        while not reached():
            now = time.monotonic()
            if now - looked > _POLL_SECONDS:
                looked = now
                if self._gone() or now - started > self._timeout:
                    self._broken = True
                    raise self._loss(RuntimeError(f"a pass has not ended within {now - started:.1f} seconds"))
            time.sleep(_DEVICE_POLL_SECONDS)

    def keep_alive(self) -> float:
        """Sends a heartbeat if it is time to; returns the seconds until the next one. Raises RankLostError."""
        if self._leads and time.monotonic() - self._spoken >= self._beat:
            self._say(_HEARTBEAT, np.empty(0, dtype=np.int64))
            self._answer()
        return max(0.0, self._spoken + self._beat - time.monotonic())

    def dismiss(self) -> None:
        """Makes the other ranks stop following, if they can be reached."""
        if self._leads and not self._broken:
            with suppress(RankLostError):  # a rank that has ended has stopped, too
                self._say(_END, np.empty(0, dtype=np.int64))
        self._leads = False
        self._encoder = StepEncoder()

    def close(self) -> None:
        """Dismisses the other ranks and leaves the group."""
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

    # Methods of the other ranks.

    def follow(self, model: Follower) -> None:
        """Runs the passes that rank 0 announces until it dismisses the ranks. Raises RankLostError, and ModelLoadError
        if there is no memory for graphs."""
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
            if kind == _CAPTURE:
                model.capture_graphs()
                continue
            self.passes += 1
            model.forward(self._decoder.decode(numbers.numpy(), model.device))

    def _answer(self) -> None:
        with self.exchange():
            dist.all_reduce(torch.zeros(1, dtype=torch.int64))

    # Detection of lost ranks.

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Times communication within the context, and turns errors of torch.distributed into RankLostError."""
        started = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            if self._capturing:
                raise
            self._broken = True
            raise self._loss(error) from error
        self.exchange_seconds += time.perf_counter() - started

    def _loss(self, error: RuntimeError) -> RankLostError:
        """The error for failed communication, which names the ranks that ended first."""
        # Recorded early, so that other ranks do not take this one for lost when it ends because of the error.
        with suppress(RuntimeError):  # the store is gone if rank 0 is
            self._store.set(f"left/{self.rank}", "1")
        deadline = time.monotonic() + _GONE_SECONDS
        while not (gone := self._gone()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if gone:
            names = ", ".join(f"rank {rank}" for rank in gone)
            return RankLostError(f"{names} of {self.size} has ended; the model is incomplete without it")
        others = ", ".join(f"rank {rank}" for rank in self._others())
        reason = str(error).partition("\n")[0]
        return RankLostError(f"the exchange with {others} of {self.size} failed: {reason}")

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _gone(self) -> list[int]:
        """The other ranks whose processes have ended, without those that ended because of others if possible."""
        ended = [rank for rank, descriptor in self._processes.items() if descriptor >= 0 and _ended(descriptor)]
        try:
            return [rank for rank in ended if not self._store.check([f"left/{rank}"])] or ended
        except RuntimeError:
            return ended

    def _meet(self, what: str) -> None:
        """Waits until all ranks have reached a point; loading ranks may be minutes apart. Raises RankLostError."""
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
    """A file descriptor that becomes readable when the process ends; -1 if the system has none or it has ended."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def _ended(descriptor: int) -> bool:
    watched = select.poll()
    watched.register(descriptor, select.POLLIN)
    return bool(watched.poll(0))


def _stay_on_this_machine() -> None:
    """Makes gloo use the loopback interface; by default it uses the interface that the host's name resolves to."""
    names = [name for _, name in socket.if_nameindex()]
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
