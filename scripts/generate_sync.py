"""Generates the synchronous clients and transports, and their tests, from the asyncio ones.

    python scripts/generate_sync.py           write them
    python scripts/generate_sync.py --check   exit 1 if the committed files are out of date

Code and docstrings change by the same few rules, so both read as if written by hand. The library `unasync` does not
change docstrings, which are half of these files. PHRASES has what the rules cannot express.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FILES = {
    "sdk/draftwire/_async/client.py": "sdk/draftwire/_sync/client.py",
    "sdk/draftwire/_async/drafters.py": "sdk/draftwire/_sync/drafters.py",
    "sdk/draftwire/_async/generations.py": "sdk/draftwire/_sync/generations.py",
    "sdk/draftwire/_calls/async_transport.py": "sdk/draftwire/_calls/transport.py",
    "draftwire_core/edge/async_client.py": "draftwire_core/edge/client.py",
    "tests/sdk/test_async_client.py": "tests/sdk/test_client.py",
}
"""Source files, each with the file generated from it."""

PHRASES = {
    "sdk/draftwire/_async/client.py": {
        "The asyncio client.": "The synchronous client.",
        "To be used on one event loop.": "Safe to use from several threads.",
        "        The call itself needs no ``await``, but a running event loop.\n": "",
        """ are raised while iterating,
                and so is this one for a large request: of 16384 token ids, a million characters or 256 messages.
""": " are raised while iterating.\n",
        "off_loop import is_large, kept, off_loop": "off_loop import kept",
        "        make = partial(Batch.of, prompts, seed, options, keeps_errors=return_exceptions)\n": "",
        "await off_loop(make, large=is_large(prompts, options))": (
            "Batch.of(prompts, seed, options, keeps_errors=return_exceptions)"
        ),
        "await off_loop(partial(read, Tokenization, response), large=is_large(response.token_ids))": (
            "read(Tokenization, response)"
        ),
    },
    "sdk/draftwire/_async/drafters.py": {
        "while requests run, for asyncio.": "while requests run.",
    },
    "sdk/draftwire/_async/generations.py": {
        "of the asyncio client": "of the synchronous client",
    },
    "sdk/draftwire/_calls/async_transport.py": {
        "Calls of the asyncio client, on grpc.aio.": """Calls of the synchronous client.

They use grpc's sync channels, not an event loop on a hidden thread. Sync channels can be shared between threads,
``cancel`` takes effect immediately from any thread, Ctrl-C works, and there is no event loop to start or stop.
""",
        "# ruff: noqa: ASYNC109 (the timeout is the call's deadline, which the service sees)\n\n": "",
        "import asyncio\n": "import threading\nimport time\n",
        "import grpc.aio\n": "",
        "from draftwire._messages.off_loop import is_large, off_loop\n": "",
        "await off_loop(partial(self.encoded, request), large=is_large(request))": "self.encoded(request)",
        "await off_loop(partial(method.response.FromString, response), large=is_large(response))": (
            "method.response.FromString(response)"
        ),
        "await off_loop(partial(self._read, response), large=is_large(response))": "self._read(response)",
        "*await off_loop(self._prepared, large=self._reader.large)": "*self._prepared()",
        "from contextlib import nullcontext, suppress\n": "",
        ", failure_of\n": "\n",
        "RequestCancelledError\n\nRequestT": "RequestCancelledError, from_rpc_error\n\nRequestT",
        "a client, on one event loop.": "a client. Safe to use from several threads.",
        """except (grpc.RpcError, asyncio.CancelledError) as error:  # everything has been read
            failure_of(error)  # raises if this task itself was cancelled
""": """except grpc.RpcError:
            pass  # everything has been read
""",
        "(grpc.RpcError, asyncio.CancelledError)": "grpc.RpcError",
        "grpc.RpcError | asyncio.CancelledError |": "grpc.RpcError |",
        " as error:  # unknown service, or no health service": ":  # unknown service, or no health service",
        "            failure_of(error)  # raises if this task itself was cancelled\n": "",
        "failure_of(error)": "from_rpc_error(error)",
        "await asyncio.sleep(wait)": "time.sleep(wait)",
        """                with suppress(TimeoutError):
                    async with asyncio.timeout(self._attempts.failed(failure, self._deadline, taken=taken)):
                        await self._closed.wait()
""": "                self._closed.wait(self._attempts.failed(failure, self._deadline, taken=taken))\n",
        "await asyncio.gather(*asked)": "asked",
        "grpc's call, with ``read`` and ``cancel``": "grpc's call, an iterator with ``cancel``",
        """    @property
    def must_look_up(self) -> bool:
        \"""Whether ``look_up`` has something to do.\"""
        return self._endpoints.stale

""": "",
        "iterate over it with ``async for``.": "iterate over it.",
        """
    last reference, as ``break`` in an ``async for ... in client.stream(...)`` does. Cancelling the iterating task does,
    too.
""": """
    last reference, as ``break`` in a ``for ... in client.stream(...)`` does. ``close`` may be called from any thread.
""",
        "leaving an ``async with`` block": "leaving a ``with`` block",
        "Called by the client; needs a running event loop.": "Called by the client.",
        "asyncio.Event()": "threading.Event()",
        "nullcontext()": "threading.Lock()",
        """        self._opening: asyncio.Task[None] | None = None
        if transport.must_look_up or reader.large:
            self._opening = asyncio.create_task(self._look_up_and_open())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # if nobody iterates
        else:
            self._open(*self._prepared())
""": "        self._look_up_and_open()\n",
        """                if self._opening is not None:
                    await self._opening
                    self._opening = None
                response = await self._call.read()
                if response is grpc.aio.EOF:
""": """                response = next(self._call, None)
                if response is None:
""",
        "immediately, if it still runs. Call it on the client's event loop.": "immediately, if it still runs.",
        """            if self._opening is not None:
                self._opening.cancel()
""": "",
        "while await self._call.read() is not grpc.aio.EOF:": "for _ in self._call:",
    },
    "draftwire_core/edge/async_client.py": {
        "The asyncio client": "The synchronous client",
        "To be used on one event loop.": "Safe to use from several threads.",
        """
    Loading the draft model blocks, so a running loop is spared it by

        client = await asyncio.to_thread(AsyncEdgeClient, "localhost:50051", model="models/draft")
""": "",
        "await asyncio.to_thread(self._drafter.close)": "self._drafter.close()",
        "import asyncio\n": "",
    },
    "tests/sdk/test_async_client.py": {
        "The asyncio client": "The synchronous client",
        "import asyncio\n": "",
        "await asyncio.to_thread(verifier.cancelled.wait, PATIENCE)": "verifier.cancelled.wait(PATIENCE)",
        "await asyncio.to_thread(verifier.is_idle)": "verifier.is_idle()",
    },
}
"""Texts of a source with their replacements, which may be empty. Each must occur in the source."""

RULES = (
    (r"\[(\w+) async for \1 in ([^\]\n]+)\]", r"list(\2)"),
    (r"\(await ([\w.]+\((?:[^()]|\([^()]*\))*\))\)\.", r"\1."),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\banext\b", "next"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b_async\b", "_sync"),
    (r"\basync_(?=transport\b)", ""),
    (r"(?<=\w)_async\b", ""),
)
"""Regular expressions with their replacements."""

_LEFT = re.compile(r".*(?:async|await).*", re.IGNORECASE)


class Untranslated(Exception):
    """Raised when a source contains something that these rules do not cover."""


def generate(source: str, text: str) -> str:
    """Returns the synchronous file for a source.

    Args:
        source: path of the source in the repository.
        text: the source itself.

    Raises:
        Untranslated: a phrase is not in the source, or something asynchronous is left.
    """
    for phrase, replacement in PHRASES[source].items():
        if phrase not in text:
            raise Untranslated(f"{source} does not contain the phrase {phrase!r}: correct PHRASES")
        text = text.replace(phrase, replacement)
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    if left := _LEFT.search(text):
        raise Untranslated(f"{source}: no rule or phrase makes this synchronous: {left[0].strip()}")
    return formatted(f"# Generated from {source} by scripts/generate_sync.py. Do not edit.\n\n{text}", FILES[source])


def formatted(text: str, path: str) -> str:
    """Returns a file as `make format` leaves it."""
    for command in (["check", "--quiet", "--fix", "--select", "I"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"]
        text = subprocess.run(ruff, input=text, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    """Writes or checks the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    check = parser.parse_args().check

    for source, target in FILES.items():
        try:
            text = generate(source, (ROOT / source).read_text(encoding="utf-8"))
        except Untranslated as error:
            sys.exit(str(error))
        path = ROOT / target
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            sys.exit(f"{target} is not what {source} gives: run `make format` and commit")
        path.write_text(text, encoding="utf-8")
        print(f"{target}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
