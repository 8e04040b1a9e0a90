"""Checks of calls' arguments against the whole schemas of their tools, after the fact.

Of a tool that is not strict, the grammar leaves out what it cannot enforce. A violation loses no call, since the
program that runs the tool reads its arguments anyway. It is only reported.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Collection, Sequence
from pathlib import Path

from draftwire_core.runtime.process.logs import get_logger
from gateway_service.answers.answer import Answer, Call
from gateway_service.answers.answer_plan import AnswerPlan
from gateway_service.answers.checked import argument_check_process
from gateway_service.answers.tool import Tool
from gateway_service.http.left_out import told

log = get_logger(__name__)

SECONDS = 1.0
"""Longest time of the checks of one request."""
TURN_SECONDS = 2.0
"""Longest time that they wait for those of others: a whole response waits with them."""
_START_SECONDS = 20.0
_MOST_WAITING = 32
"""Most answers that wait for their check."""


def tools_of(left_out: Collection[str]) -> set[str]:
    """Returns the names of the tools that parts were left out of. left_out: as the verifier reports them."""
    return {name for name, bracket, _ in (part.partition("(") for part in left_out) if bracket}


class ArgumentChecks:
    """Checks calls one after the other, in a process that is started for the first one."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._tasks: set[asyncio.Task[list[str]]] = set()

    async def violations(
        self, request_id: str, plan: AnswerPlan, texts: Sequence[str], tools: Collection[str]
    ) -> list[str]:
        """Returns what the calls of answers violate, as `forecast(properties.city.pattern)`; the log says it, too.

        Arguments that cannot be checked violate nothing; the log says that and why.

        texts: the answers, each as a whole. tools: names of the tools whose calls are checked.
        """
        if self._waiting >= _MOST_WAITING:
            log.info("tool call arguments not checked", request_id=request_id, reason="too many checks wait")
            return []
        self._waiting += 1
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            log.info("tool call arguments not checked", request_id=request_id, reason="other checks take too long")
            return []
        finally:
            self._waiting -= 1
        try:
            found = await self._of_answers(request_id, plan, texts, tools)
        finally:
            self._turn.release()
        if found:
            log.info("schema violations found", request_id=request_id, parts=told(found))
        return found

    def begin(self, request_id: str, plan: AnswerPlan, texts: Sequence[str], tools: Collection[str]) -> None:
        """Starts a check whose outcome goes to the log alone."""
        task = asyncio.create_task(self.violations(request_id, plan, texts, tools))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Gives up the checks and ends the process."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end()

    async def _of_answers(
        self, request_id: str, plan: AnswerPlan, texts: Sequence[str], tools: Collection[str]
    ) -> list[str]:
        known = {tool.name: tool for tool in plan.use.callable if tool.name in tools}
        found: list[str] = []
        left = SECONDS
        for text in texts:
            answer = await asyncio.to_thread(Answer.read, plan.parser(), text)
            for call in answer.calls:
                if call.name not in known:
                    continue
                place, reason, taken = await self._of_call(known[call.name], call, left)
                left -= taken
                if place:
                    found.append(f"{call.name}({place})")
                if reason:
                    log.info("tool call arguments not checked", request_id=request_id, tool=call.name, reason=reason)
                if left <= 0:
                    return found
        return found

    async def _of_call(self, tool: Tool, call: Call, seconds: float) -> tuple[str, str, float]:
        """Returns the place that a call violates and why it could not be checked, either of which may be empty, and the
        seconds that it took. seconds: the most that it may take."""
        line = await asyncio.to_thread(_line, tool, call)
        try:
            process = self._process = self._process or await _start()
            assert process.stdin is not None
            assert process.stdout is not None
            begun = time.monotonic()
            async with asyncio.timeout(seconds):
                process.stdin.write(line)
                await process.stdin.drain()
                answer = await process.stdout.readline()
            if answer:
                outcome = json.loads(answer)
                return outcome["place"], outcome["reason"], time.monotonic() - begun
        except (TimeoutError, OSError):
            await self._end()
            return "", f"it takes more than {seconds:.2g} s", SECONDS
        except BaseException:
            await self._end()  # an answer that nobody reads would be taken for the next one's
            raise
        await self._end()
        return "", "it takes too much memory", SECONDS

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _line(tool: Tool, call: Call) -> bytes:
    return json.dumps({"schema": tool.schema, "arguments": call.arguments}).encode() + b"\n"


async def _start() -> Process:
    path = os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        argument_check_process.__name__,
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_SECONDS):
            await process.stdout.readline()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return process
