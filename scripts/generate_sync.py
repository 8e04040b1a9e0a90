"""Generates the synchronous clients from the asyncio ones.

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
    "edge_drafting/async_client.py": "edge_drafting/client.py",
}
"""Source files, each with the file generated from it."""

PHRASES = {
    "sdk/draftwire/_async/client.py": {
        "The asyncio client.": "The synchronous client.",
        "To be used on one event loop.": "Safe to use from several threads.",
        "        The call itself needs no ``await``, but a running event loop.\n": "",
    },
    "sdk/draftwire/_async/drafters.py": {
        "while requests run, for asyncio.": "while requests run.",
    },
    "edge_drafting/async_client.py": {
        "The asyncio client": "The synchronous client",
        "To be used on one event loop.": "Safe to use from several threads.",
        """
    Loading the draft model blocks, so a running loop is spared it by

        client = await asyncio.to_thread(AsyncEdgeClient, "localhost:50051", model="models/draft")
""": "",
        "await asyncio.to_thread(self._drafter.close)": "self._drafter.close()",
        "import asyncio\n": "",
    },
}
"""Texts of a source with their replacements, which may be empty. Each must occur in the source."""

RULES = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
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
