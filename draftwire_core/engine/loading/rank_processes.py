"""The processes of a rank group, started by rank 0 or by torchrun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.ranks.rank_group import RankGroup, RankLostError
from draftwire_core.engine.model.ranks.sharded_layers import SplitError, check_devices
from draftwire_core.engine.model.reading.read_model import check_model_splits

_START_SECONDS = 300.0
_STOP_SECONDS = 5.0
"""Grace period for ranks to exit after they were dismissed, before they are killed."""
_POLL_SECONDS = 0.05

LAUNCHED = "TORCHELASTIC_RUN_ID"
"""The environment variable that marks a process started as one of several ranks; torchrun sets it."""

RANK_ERRORS = (ModelLoadError, SplitError, RankLostError)
"""Errors raised when a model cannot be split among several processes."""


class SplitSettings(Protocol):
    """A service's settings of the processes that its model is split among."""

    @property
    def model(self) -> str: ...
    @property
    def trust_remote_code(self) -> bool: ...
    @property
    def device(self) -> str: ...
    @property
    def tensor_parallel(self) -> int: ...
    @property
    def tensor_parallel_timeout_seconds(self) -> float: ...


@contextmanager
def running_ranks(
    settings: SplitSettings, children: list[subprocess.Popen[bytes]] | None = None
) -> Iterator[RankGroup | None]:
    """Starts or joins the ranks and yields this process's group; the group ends with the context. Raises RANK_ERRORS.

    Yields None if the model is not split. children: list to which started processes are appended, for a caller that may
    have to end them itself.
    """
    if settings.tensor_parallel == 1:
        yield None
        return
    # Checked before starting processes, so that only one reports the error.
    check_model_splits(settings.model, settings.tensor_parallel, trust_remote_code=settings.trust_remote_code)
    processes = RankProcesses.open(
        settings.tensor_parallel,
        device=settings.device,
        timeout_seconds=settings.tensor_parallel_timeout_seconds,
        children=children,
    )
    try:
        yield processes.ranks
    finally:
        processes.close()


def follow_ranks(
    settings: SplitSettings,
    load_part: Callable[[RankGroup], PackedModel],
    size: Callable[[PackedModel, RankGroup], None],
    loaded: Callable[[], None],
) -> None:
    """Runs a rank other than rank 0: loads its part of the model, then runs the passes that rank 0 announces.

    size: sizes the tested model's KV cache as rank 0 does. loaded: called once the model is loaded. Raises RANK_ERRORS.
    """
    with running_ranks(settings) as ranks:
        assert ranks is not None
        model = load_part(ranks)
        run_self_test(model)
        size(model, ranks)
        loaded()
        ranks.follow(model)


class RankProcesses:
    """A rank group, with the processes that rank 0 started for it."""

    def __init__(self, ranks: RankGroup, children: list[subprocess.Popen[bytes]]):
        self.ranks = ranks
        self._children = children

    @classmethod
    def open(
        cls, size: int, *, device: str, timeout_seconds: float, children: list[subprocess.Popen[bytes]] | None = None
    ) -> RankProcesses:
        """Joins the group; takes seconds. Raises SplitError for more ranks than GPUs, and RankLostError.

        Unless torchrun has started all processes, the first one starts the others, by running its own command again
        with the variables that torchrun sets. device, timeout_seconds: see RankGroup. children: list to which started
        processes are appended.
        """
        check_devices(device, size)
        if LAUNCHED in os.environ:
            try:
                store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=_START_SECONDS)))
            except RuntimeError as error:
                raise RankLostError(f"rank {os.environ['RANK']} cannot reach rank 0: {error}") from error
            return cls(RankGroup(store, rank, size, device=device, timeout_seconds=timeout_seconds), [])
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        # Without a listener of ours, the store would listen on all of this machine's addresses.
        store = dist.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        children = children if children is not None else []
        try:
            for rank in range(1, size):
                children.append(_start(rank, size, port))
            _await_joining(store, children)
            return cls(RankGroup(store, 0, size, device=device, timeout_seconds=timeout_seconds), children)
        except BaseException:
            _end(children, 0.0)
            raise

    def close(self) -> None:
        """Ends the group: dismisses the other ranks and kills those that do not exit in time."""
        told = self.ranks.leads
        self.ranks.close()
        _end(self._children, _STOP_SECONDS if told else 0.0)


def _start(rank: int, size: int, port: int) -> subprocess.Popen[bytes]:
    place = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, LAUNCHED: "draftwire",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env=os.environ | {name: str(value) for name, value in place.items()},
        stdin=subprocess.DEVNULL,
    )


def _await_joining(store: dist.Store, children: list[subprocess.Popen[bytes]]) -> None:
    """Waits until all ranks have joined. Raises RankLostError if one exits before that or takes too long."""
    deadline = time.monotonic() + _START_SECONDS
    while not store.check([f"pid/{rank}" for rank, _ in enumerate(children, start=1)]):
        for rank, child in enumerate(children, start=1):
            if (status := child.poll()) is not None:
                raise RankLostError(f"rank {rank} of {len(children) + 1} has ended with status {status} during startup")
        if time.monotonic() > deadline:
            raise RankLostError(f"not all {len(children) + 1} ranks started within {_START_SECONDS:g} seconds")
        time.sleep(_POLL_SECONDS)


def _end(children: list[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
