"""The drafters that are chosen for the target where the settings say `auto`, and what they gain."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Any

from draftwire.cli.failure import Failure
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.pool.announcing.drafter_fields import is_local
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.logs import get_logger
from draftwire_tools.serve.auto import LOOKUP
from draftwire_tools.service import child_environment
from draftwire_tools.suggested import command, read
from verifier_service.reading.local_address import read_local_address
from verifier_service.verifier import Verifier

log = get_logger(__name__)

_LOOK_SECONDS = 5.0
FIRST_TOKENS = 500
"""Generated tokens before the first line about the gain. The next line comes after four times as many, and so on."""
_GROWTH = 4
_STOP_SECONDS = 5.0


class ChosenDrafters:
    """The chosen drafters of one verifier: attached while it serves, so that it waits for no download, and watched."""

    def __init__(self, model: str, verifier: Verifier, engine: VerificationEngine, named: Sequence[str]) -> None:
        """model: the target, as in the settings. named: the drafters that the settings name besides."""
        self._model, self._verifier, self._engine = model, verifier, engine
        self._named = {read_local_address("drafter", each) for each in named if is_local(each)}
        self._attached: list[str] = []
        """Names of the drafters that were attached."""
        self._resting: set[str] = set()
        self._told: set[str] = set()
        self._due = FIRST_TOKENS

    async def run(self) -> None:
        """Attaches the drafters; then says what they gain, until it is cancelled."""
        await self._attach(LOOKUP)
        try:
            found = await chosen(self._model, str(self._engine.model.device))
        except (Failure, OSError, ValueError) as error:  # the process cannot be started, or writes a line without end
            log.warning("drafters not chosen", reason=str(error))
        else:
            if found["address"]:
                await self._attach(found["address"])
            log.info("drafters chosen", drafters=self._attached, reasons=found["notes"])
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Says which drafters rest, and what has been gained, if there is news."""
        resting = {name for name in self._attached if self._rests(name)}
        for name in sorted((resting & self._resting) - self._told):  # not those that rest for a moment
            log.info("drafter rested", drafter=name, because="its drafts do not save the time that they take")
            self._told.add(name)
        self._resting = resting
        gain = self._verifier.step_counts.gain
        if gain.tokens >= self._due:
            while self._due <= gain.tokens:
                self._due *= _GROWTH
            log.info("gain measured", tokens=gain.tokens, speed_up=round(gain.speed_up, 2), resting=sorted(resting))

    async def _attach(self, address: str) -> None:
        if address in self._named:
            return
        with contextlib.suppress(ServiceError):  # logged; serving continues without the drafter
            drafter = await self._verifier.pool.membership.attach(address, "")
            self._attached.append(drafter.name)

    def _rests(self, name: str) -> bool:
        drafter = self._verifier.pool.roster.get(name)
        return drafter is not None and self._engine.rests(drafter.source)


async def chosen(model: str, device: str) -> Mapping[str, Any]:
    """Returns the choice for a target, whose drafter is fetched first, in a process of its own: it can be ended within
    a download. Raises Failure."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command(model, device, fetch=True)),
        env=child_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        out, _ = await asyncio.gather(process.stdout.read(), _tell(process.stderr))
        return read(out, model, await process.wait())
    finally:
        await _end(process)


async def _tell(lines: asyncio.StreamReader) -> None:
    """Logs what the process says of a download."""
    async for line in lines:
        if text := line.decode(errors="replace").strip():
            log.info("drafter download reported", line=text)


async def _end(process: Process) -> None:
    """Ends a process, which first ends its own download."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
