"""Further verifiers of the same target: another process, other thread counts and kernels, too little memory."""

from __future__ import annotations

import asyncio
import platform
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from draftwire._async.client import AsyncClient
from draftwire._types.drafter import Drafter
from draftwire._types.model import VerifierInfo
from draftwire.cli.failure import Failure
from draftwire.errors import DraftwireError
from draftwire_tools.check.comparison import Comparison, generate
from draftwire_tools.check.drafters import PLAIN, drafting
from draftwire_tools.check.request import CheckRequest
from draftwire_tools.service import VERIFIER, Service

_KERNELS = {"x86_64": ("baseline", "avx2"), "aarch64": ("baseline", "neon")}
"""Kernels by the machine's architecture that are tried if they are not the first verifier's."""
_LEAST_SLOTS = 256
_TREE_NODES = 8
_PREEMPTED = 16
"""Requests at once at the verifier with little memory."""
_START_SECONDS = 300.0


class Variant(NamedTuple):
    """A further verifier."""

    name: str
    """The name of its case."""
    flags: tuple[str, ...]
    """The verifier's flags, besides those of the first one."""
    plain: bool = False
    """Whether its requests decode plainly, instead of with all drafters."""
    batch: int = 1
    """Requests at once."""
    most_tokens: int | None = None
    """Most tokens of its prompts, so that little memory suffices and slow kernels keep up; None for any number."""
    preempts: bool = False
    """Whether its memory is too small for the requests at once."""


def variants(info: VerifierInfo, lengths: Mapping[str, int], max_tokens: int) -> list[Variant]:
    """Returns the variants to try.

    lengths: tokens of each prompt. max_tokens: of each output.
    """
    short = sorted(lengths.values())[(len(lengths) - 1) // 2]
    slots = str(max(_LEAST_SLOTS, short + max_tokens + 2 * _TREE_NODES))
    memory = ("--kv-slots", slots, "--max-tree-nodes", str(_TREE_NODES), "--no-prefix-cache")
    found = [
        Variant("another verifier process, no drafter", (), plain=True),
        Variant("another verifier with 2 threads, all drafters", ("--threads", "2")),
        Variant(
            f"preemption: {slots} KV slots, {_PREEMPTED} requests at once",
            memory,
            batch=_PREEMPTED,
            most_tokens=short,
            preempts=True,
        ),
    ]
    if info.device == "cpu":
        others = [name for name in _KERNELS.get(platform.machine(), ()) if name != info.kernels]
        found += [Variant(f"kernels {name}, all drafters", ("--kernels", name), most_tokens=short) for name in others]
    return found


async def compare_variants(
    comparison: Comparison,
    target: Path,
    first: VerifierInfo,
    drafters: Sequence[Drafter],
    wanted: Sequence[Variant],
    lengths: Mapping[str, int],
) -> None:
    """Starts each variant in turn, and compares its outputs with the first verifier's.

    A verifier that reports other numerics may have other outputs. It is compared with plain decoding of its own, or of
    an earlier variant with the same numerics. lengths: tokens of each prompt.
    """

    def fits(request: CheckRequest, *, most: int | None) -> bool:
        return most is None or lengths[request.prompt.text] <= most

    for variant in wanted:
        if not comparison.wants(variant.name):
            continue
        if comparison.over:
            comparison.leave_out(variant.name, "the time was over")
            continue
        try:
            async with _started(target, variant) as client:
                info = await client.model_info()
                plain, own = None, ""
                only = partial(fits, most=variant.most_tokens)
                if (info.fingerprint, info.numerics) != (first.fingerprint, first.numerics):
                    plain = await comparison.own_plain(
                        info.numerics, partial(generate, client, speculation=PLAIN), only
                    )
                    own = f"other numerics, so compared with plain decoding there: {info.numerics_description}"
                names = [(await client.drafters.attach(each.address, each.name)).name for each in drafters]
                speculation = PLAIN if variant.plain else drafting(names)
                case = await comparison.compare(
                    variant.name,
                    partial(generate, client, speculation=speculation),
                    batch=variant.batch,
                    only=only,
                    plain=plain,
                )
                case.events = own
                if variant.preempts:
                    case.events = f"{(await client.model_info()).engine.preemptions} preemptions"
        except (Failure, DraftwireError) as error:
            comparison.leave_out(variant.name, f"did not start: {' '.join(str(error).split())[:200]}")


@asynccontextmanager
async def _started(target: Path, variant: Variant) -> AsyncIterator[AsyncClient]:
    scratch = Path(tempfile.mkdtemp(prefix="draftwire-check-"))
    # Not in a thread, which would start it although Ctrl-C has ended the check.
    service = Service("verifier", VERIFIER, target, scratch, *variant.flags)
    try:
        await asyncio.to_thread(_wait, service)
        async with AsyncClient(service.address, timeout=_START_SECONDS) as client:
            yield client
    finally:
        service.terminate()
        await asyncio.to_thread(service.wait)
        shutil.rmtree(scratch, ignore_errors=True)


def _wait(service: Service) -> None:
    """Waits until a service serves.

    Raises:
        Failure: it has ended, or takes too long.
    """
    deadline = time.monotonic() + _START_SECONDS
    while not service.is_ready():
        if time.monotonic() > deadline:
            raise Failure(f"it does not serve after {_START_SECONDS:.0f} s")
        time.sleep(0.05)
