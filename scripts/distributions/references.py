"""References to modules in Python source, and their rewriting when packages move into another one.

Rewritten are imports, strings that hold the name of a module (`import_module("gateway.process")`, `-m`, loggers), and
commands `python -m gateway` in texts and comments. Any other string of code that names such a package is an error,
because nobody knows what it would mean after the move.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Collection
from dataclasses import dataclass

_TEXTS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
"""Tokens that are texts; Python 3.12 and newer have the parts of an f-string apart."""
_PLAIN = re.compile(r"""[rRuU]?(?P<quote>\"\"\"|'''|"|')(?P<value>.*)(?P=quote)""", re.DOTALL)
_DOTTED = re.compile(r"\w+(\.\w+)*\.?")


class UnknownReferenceError(Exception):
    """Raised for a reference that cannot be rewritten; the message names the file, the line and the reference."""


@dataclass(frozen=True)
class Move:
    """Packages that move into another package."""

    into: str
    """The package that they move into."""
    packages: Collection[str]
    """Their names."""
    exists: Callable[[str], bool]
    """Whether a dotted name is a module of theirs."""
    words: Collection[str] = ()
    """Names of packages that are words, too: alone in a string, such a name is a module only if `modules` says so."""
    modules: Collection[tuple[str, str]] = ()
    """Strings that are modules although they could be words: pairs of file and string."""

    def rewrite(self, source: str, file: str) -> str:
        """Returns a file's source with all references rewritten. Raises UnknownReferenceError."""
        return _Rewriting(self, source, file).result()


class _Rewriting:
    """The rewriting of one file."""

    def __init__(self, move: Move, source: str, file: str):
        self._move = move
        self._source = source
        self._file = file
        self._names = "|".join(map(re.escape, sorted(move.packages)))
        self._command = re.compile(rf"(python3? -m )({self._names})\b")
        plain = "|".join(map(re.escape, sorted(set(move.packages) - set(move.words))))
        self._mention = re.compile(rf"(?<![\w.-])({plain})(?![\w-])") if plain else re.compile(r"(?!)")
        self._edits: list[tuple[tuple[int, int], tuple[int, int], str]] = []

    def result(self) -> str:
        """Returns the source with all edits."""
        tree = ast.parse(self._source)
        self._tokens = list(tokenize.generate_tokens(io.StringIO(self._source).readline))
        self._at = {token.start: index for index, token in enumerate(self._tokens)}
        lines = io.StringIO(self._source).readlines()  # as tokenize counts them
        prose = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self._import_from(node, lines)
            elif isinstance(node, ast.Import):
                self._import(node, lines)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                prose |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for token in self._tokens:
            if token.type == tokenize.COMMENT or (token.type in _TEXTS and token.start[0] in prose):
                self._replace(token, self._commands(token.string))
            elif token.type in _TEXTS:
                self._replace(token, self._text(token))
        for (row, column), (end_row, end_column), new in sorted(self._edits, reverse=True):
            before, after = lines[row - 1][:column], lines[end_row - 1][end_column:]
            lines[row - 1 : end_row] = [before + new + after]
        return "".join(lines)

    def _import_from(self, node: ast.ImportFrom, lines: list[str]) -> None:
        module = node.module or ""
        if node.level == 0 and module.partition(".")[0] in self._move.packages:
            first = self._tokens[self._index(node, lines) + 1]
            self._replace(first, f"{self._move.into}.{first.string}")

    def _import(self, node: ast.Import, lines: list[str]) -> None:
        if not any(each.name.partition(".")[0] in self._move.packages for each in node.names):
            return
        if len(node.names) > 1:
            raise self._unknown(node.lineno, "an import of several modules")
        (alias,) = node.names
        index = self._index(node, lines)
        if alias.asname:
            first = self._tokens[index + 1]
            self._replace(first, f"{self._move.into}.{first.string}")
        elif "." in alias.name:
            raise self._unknown(node.lineno, f"import {alias.name}, which binds {alias.name.partition('.')[0]}")
        else:
            self._replace(self._tokens[index], f"from {self._move.into} import")

    def _index(self, node: ast.stmt, lines: list[str]) -> int:
        """The index of a statement's first token: ast counts bytes, tokenize characters."""
        column = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
        return self._at[node.lineno, column]

    def _replace(self, token: tokenize.TokenInfo, new: str) -> None:
        if new != token.string:
            if token.type in _TEXTS - {tokenize.STRING} and set("{}") & set(token.string):  # places are not exact
                raise self._unknown(token.start[0], f"braces beside a reference in {token.string}")
            self._edits.append((token.start, token.end, new))

    def _commands(self, text: str) -> str:
        return self._command.sub(rf"\g<1>{self._move.into}.\g<2>", text)

    def _text(self, token: tokenize.TokenInfo) -> str:
        plain = _PLAIN.fullmatch(token.string)
        value = plain["value"] if plain else None
        if value is not None and _DOTTED.fullmatch(value) and value.partition(".")[0] in self._move.packages:
            if value in self._move.words and (self._file, value) not in self._move.modules:
                return token.string
            if not self._move.exists(value.removesuffix(".")):
                raise self._unknown(token.start[0], f"{value!r}, which is no module")
            return token.string.replace(value, f"{self._move.into}.{value}")
        text = self._commands(token.string)
        if mention := self._mention.search(text):  # what has been rewritten has a dot before it
            raise self._unknown(token.start[0], f"{mention[0]} in {token.string}")
        return text

    def _unknown(self, line: int, what: str) -> UnknownReferenceError:
        return UnknownReferenceError(f"{self._file}:{line}: {what}: cannot be moved into {self._move.into}")
