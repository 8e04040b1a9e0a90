"""Checks the words of code, help texts, contract and documents: the mechanical part of CONTRIBUTING.md's five rules.

    python -m scripts.words [PATH...]

prints file and line, the word, and what to write instead. It reads comments and strings of Python, and whole files of
other kinds.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = (
    "deploy/",
    "drafter_service/",
    "draftwire_core/",
    "draftwire_sglang/",
    "draftwire_vllm/",
    "examples/",
    "docs/",
    "gateway_service/",
    "models/",
    "protos/draftwire/",
    "scripts/",
    "sdk/",
    "services/",
    "verifier_service/",
)
"""Folders whose files are checked."""
PAGES = ("CONTRIBUTING.md", "README.md", "benchmarks/README.md")
"""Pages elsewhere that are checked."""
KINDS = (".css", ".html", ".js", ".md", ".proto", ".py", ".sh", ".toml", ".ts", ".yaml", ".yml")
LEFT_OUT = (
    "draftwire_core/engine/kernels/csrc/",  # a comment is part of the hash that names a compiled library
    "gateway_service/console/static/vendor/",  # other people's
    "scripts/words.py",  # the words themselves
    "sdk/draftwire/_sync/",  # generated, as the stubs
    "sdk/draftwire/v1/",
)


@dataclass(frozen=True)
class Word:
    """A word of this project's own for which the field has another."""

    stem: str
    """Letters that each occurrence contains, in lower case; a file without them is not searched."""
    pattern: str
    instead: str


WORDS = (
    Word("dear", r"dear(?:er|est|ly)?", "expensive, costly"),
    Word("bring", r"brings?", "gains, needs, contains, has"),
    Word("brought", r"brought", "gained, committed, carried"),
    Word("tell", r"tells?", "reports, says, shows"),
    Word("company", r"company", "batch: the same bits in any batch (batch invariance)"),
    Word("beside", r"beside", "next to, besides (in addition)"),
    Word("whoever", r"whoever", "the caller that, anyone who"),
    Word("stay", r"stay(?:s|ed)? out", "is missed, remains detached"),
    Word("there twice", r"(?:is|are) there twice", "duplicate"),
    Word("for nobody", r"for nobody", "its caller has left"),
    Word("anew", r"anew", "again"),
    Word("lend", r"lends?", "shares, takes from"),
    Word("lent", r"lent", "shared, taken from"),
    Word("passe", r"passe[sd] over", "ignores, skips"),
    Word("on without", r"goes? on without", "continues without"),
    Word("not understood", r"(?:is|are) not understood", "is not supported"),
    Word("not answer to", r"(?:do|does) not answer to", "is not allowed"),
    Word("worth", r"(?:its|their|measured|most) worth", "value, gain"),
    Word("of output", r"forms? of output", "output format"),
    Word("roll-out", r"roll-outs?", "rollout"),
)
"""Words that do not occur, and what to write instead; whole words, in any case."""
ALLOWED = (
    r"\btells? (?:\S+ ){0,3}apart\b",  # idiom
    r"\bbring (?:\S+ ){0,2}back\b",  # idiom
    r"\bbeside: ",  # a parameter of a C function
    r"\btell: called\b",  # a parameter of a function
    r"``tell``",
    r"\"roll-out\"",  # the id of an element
    r"#roll-out[\w-]*",  # an anchor
    r"\*\w+\*",  # a word that is mentioned
    r"\bpasses over (?!it\b|them\b)",  # passes of a model over something
)
"""Texts that may occur though they contain such a word."""
OPENINGS = r"(?:That|Those|What|Its|Where|Whose|Which|They|Their|Them)\b"
"""Words that a docstring, a comment of the contract or a heading does not begin with: it makes sense alone."""
_ALLOWED = re.compile("|".join(ALLOWED), re.IGNORECASE)
_OPENING = re.compile(OPENINGS)
_DOCSTRING = re.compile(rf'"""\s*{OPENINGS}')
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True)
class Finding:
    """A place where a rule is broken."""

    file: str
    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.found!r}: {self.instead}"


def findings(file: str, text: str) -> Iterator[Finding]:
    """Yields what is wrong in a file. file: its path in the checkout, whose suffix decides how it is read."""
    lowered = text.lower()
    words = [(re.compile(rf"\b{word.pattern}\b", re.IGNORECASE), word) for word in WORDS if word.stem in lowered]
    for line, part in _texts(file, text) if words else ():
        left = _ALLOWED.sub(lambda allowed: "\n" * allowed[0].count("\n"), part)
        for pattern, word in words:
            for found in pattern.finditer(left):
                yield Finding(file, line + left.count("\n", 0, found.start()), found[0], word.instead)
    for line, part in _beginnings(file, text):
        if opening := _OPENING.match(part):
            yield Finding(file, line, opening[0], "begin with the thing documented")


def _texts(file: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields texts for people with their first lines: comments and strings of Python, all of other files."""
    if not file.endswith(".py"):
        yield 1, text
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], _PLACEHOLDER.sub("{}", token.string)


def _beginnings(file: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields texts that have to make sense alone, with their first lines."""
    if file.endswith(".py"):
        for node in ast.walk(ast.parse(text)) if _DOCSTRING.search(text) else ():
            body = getattr(node, "body", None)
            for each in body if isinstance(body, list) else ():
                value = each.value if isinstance(each, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield each.lineno, value.value.lstrip()
    elif file.endswith(".proto"):
        before = False
        for number, line in enumerate(text.splitlines(), 1):
            comment = line.strip().removeprefix("//").lstrip() if line.strip().startswith("//") else None
            if comment is not None and not before:
                yield number, comment
            before = comment is not None
    elif file.endswith(".md"):
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("#") and not line.endswith("?"):  # a question makes sense alone
                yield number, line.lstrip("# ")


def checked_files() -> Iterator[str]:
    """Yields the files of the checkout that are checked."""
    for file in _readable_files():
        if file in PAGES or file.startswith(CODE):
            yield file


def files_of(path: str) -> Iterator[str]:
    """Yields a file itself, or what a folder has in the checkout. path: from the checkout's root, or absolute.

    Raises:
        ValueError: the path does not exist, or is of a folder elsewhere.
    """
    whole = (ROOT / path).resolve()
    if not whole.exists():
        raise ValueError(f"{path}: no such file or folder in {ROOT}")
    if not whole.is_dir():
        yield path
        return
    if not whole.is_relative_to(ROOT):
        raise ValueError(f"{path}: not a folder of the checkout {ROOT}")
    yield from (file for file in _readable_files() if (ROOT / file).is_relative_to(whole))


def _readable_files() -> Iterator[str]:
    """Yields the files of the checkout that have texts by people of this project."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in listed.splitlines():
        if file.endswith(KINDS) and not file.startswith(LEFT_OUT) and (ROOT / file).exists():
            yield file


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what is wrong in the given files and folders, or in all that are checked; returns 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", help="files or folders of the checkout; by default all that are checked")
    paths: list[str] = parser.parse_args(argv).paths
    try:
        files = [file for path in paths for file in files_of(path)] if paths else list(checked_files())
    except ValueError as error:
        parser.error(str(error))
    found = [each for file in dict.fromkeys(files) for each in findings(file, (ROOT / file).read_text("utf-8"))]
    for each in found:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
