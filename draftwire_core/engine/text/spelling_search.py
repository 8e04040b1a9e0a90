"""Finds how calls are spelled, by what a chat template renders of trial calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from draftwire_core.engine.text.call_spelling import MARKER, ArgumentStyle, CallSpelling

NAMES = ("trial_tool", "trial_other")
"""The tools that the trial calls: the first alone, then both."""
ARGUMENTS = {"trial_first": "one trial", "trial_second": 2}
"""The arguments of each call."""
_FIRST, _SECOND = ARGUMENTS
ID = "trial000{}"
"""The id of a call, with its number. Templates of Mistral demand ids of nine letters."""
_PIECE = re.compile(rf"<[^<>]*>?|{MARKER.pattern}|\s+|\w+|.")
_KEYWORDS = re.compile(rf"\({_FIRST}=(['\"])one trial\1, ?{_SECOND}=2\)")
_BARE_KEYS = re.compile(rf"\{{{_FIRST}:(\S*)one trial(\S*),{_SECOND}:2\}}")
_DECODER = json.JSONDecoder()


def find_spelling(plain: str, text: str, one: str, two: str, reasoning: tuple[str, str] | None) -> CallSpelling | None:
    """Returns the spelling of calls; None if it is of no style that is known, or does not show where calls end.

    plain: a rendered conversation whose last turn is the assistant's message `text`. one, two: the same with one call
    and with two calls in its place. reasoning: the marks around reasoning, which may be there with nothing in it.
    """
    before, _, after = plain.partition(text)
    blocks = [_block(rendered, before, after, reasoning) for rendered in (one, two)]
    for found in _candidates(*blocks):
        calls: list[tuple[str, Any]] = [(name, ARGUMENTS) for name in NAMES]
        apart = not found.begin.strip() or any(map(str.strip, (found.call_begin, found.separator, found.end)))
        fits = apart and all(
            _bare(block).startswith(_bare(found.spell(calls[:number]))) for number, block in enumerate(blocks, 1)
        )
        if fits and MARKER.match((found.begin + found.call_begin).lstrip()) and not any(map(_has_id, found.texts)):
            return found
    return None


def find_content(prompt: str, plain: str, text: str, reasoning: tuple[str, str] | None) -> tuple[str, str] | None:
    """Returns the marks around an answer's text; None if there are none.

    prompt: a rendered conversation up to the start of the answer. plain: the same with the answer `text`.
    """
    before, _, after = plain.partition(text)
    if not before.startswith(prompt):
        return None
    begin = _without_reasoning(before.removeprefix(prompt).strip(), reasoning).strip()
    end = MARKER.match(after.strip())
    if end is None or not MARKER.fullmatch(begin) or begin in (reasoning or ()):
        return None
    return begin, end[0]


def _candidates(one: str, two: str) -> Iterator[CallSpelling]:
    """Returns the spellings that may be those of a text with one call and a text with two calls."""
    objects = _objects(one), _objects(two)
    if len(objects[0]) == 1 and len(objects[1]) == 2:
        spelling = _object_spelling(one, objects[0][0])
        (first, second), (only,) = objects[1], objects[0]
        yield _framed(spelling, one[: only[0]], two[first[1] : second[0]], one[only[1] :])
    for match in _KEYWORDS, _BARE_KEYS:
        found, both = list(match.finditer(one)), list(match.finditer(two))
        if len(found) != 1 or len(both) != 2:
            continue
        style = ArgumentStyle.KEYWORDS if match is _KEYWORDS else ArgumentStyle.BARE_KEYS
        quote = found[0][1] if style is ArgumentStyle.BARE_KEYS and found[0][1] != '"' else ""
        yield from _named(CallSpelling(style, quote=quote), one, two, "", [each.span() for each in (*found, *both)])
    yield from _with_json(one, two)
    yield from _with_parameters(one, two)


def _with_json(one: str, two: str) -> Iterator[CallSpelling]:
    """Returns the spelling of calls whose arguments are JSON behind the name."""
    written = json.dumps(ARGUMENTS)
    places = [each.span() for text in (one, two) for each in re.finditer(re.escape(written), text)]
    if len(places) == 3:
        end = one[one.find(NAMES[0]) + len(NAMES[0]) : places[0][0]]
        yield from _named(CallSpelling(ArgumentStyle.JSON, name_end=end), one, two, end, places)


def _with_parameters(one: str, two: str) -> Iterator[CallSpelling]:
    """Returns the spelling of calls whose arguments stand between marks, each after its key."""
    parameters = re.compile(rf"{_FIRST}(?P<key_end>\D*?)one trial(?P<between>.*?){_SECOND}(?P=key_end)2", re.DOTALL)
    found, both = parameters.search(one), list(parameters.finditer(two))
    if found is None or len(both) != 2 or not found["key_end"].strip():
        return
    opening = one[one.find(NAMES[0]) + len(NAMES[0]) : found.start()]
    key_begin = _common_end(opening, found["between"])
    value_end = found["between"].removesuffix(key_begin)
    if not (key_begin.strip() and value_end.strip()) or '"' in value_end:
        return
    name_end = opening.removesuffix(key_begin)
    spelling = CallSpelling(
        ArgumentStyle.PARAMETERS,
        name_end=name_end, key_begin=key_begin, key_end=found["key_end"], value_end=value_end,
    )  # fmt: skip
    places: list[tuple[int, int]] = []
    for text, match in ((one, found), *((two, each) for each in both)):
        if not text.startswith(value_end, match.end()):
            return
        places.append((match.start(), match.end() + len(value_end)))
    yield from _named(spelling, one, two, opening, places)


def _named(
    spelling: CallSpelling, one: str, two: str, opening: str, places: Sequence[tuple[int, int]]
) -> Iterator[CallSpelling]:
    """Returns a spelling with what frames its calls. opening: between name and arguments. places: of the arguments, in
    the text with one call and in that with two."""
    begins = [begin - len(opening) - len(name) for (begin, _), name in zip(places, (NAMES[0], *NAMES), strict=True)]
    texts = (one, two, two)
    for text, begin, name in zip(texts, begins, (NAMES[0], *NAMES), strict=True):
        if not text.startswith(name, max(begin, 0)):
            return
    yield _framed(spelling, one[: begins[0]], two[places[1][1] : begins[2]], one[places[0][1] :])


def _framed(spelling: CallSpelling, before: str, between: str, after: str) -> CallSpelling:
    """Returns a spelling with the pieces around calls: what stands before the first, between two, after the last."""
    call_begin = _common_end(before, between)
    begin, middle = before.removesuffix(call_begin), between.removesuffix(call_begin)
    call_end = _common_start(middle, after)
    end = after.removeprefix(call_end) if begin.strip() else ""
    return replace(
        spelling,
        begin=begin, call_begin=call_begin, call_end=call_end, separator=middle.removeprefix(call_end), end=end,
    )  # fmt: skip


def _objects(text: str) -> list[tuple[int, int]]:
    """Returns the places of JSON objects that are calls."""
    found: list[tuple[int, int]] = []
    for match in re.finditer(r"\{", text):
        try:
            value, end = _DECODER.raw_decode(text, match.start())
        except ValueError:
            continue
        if isinstance(value, dict) and any(name in value.values() for name in NAMES) and ARGUMENTS in value.values():
            found.append((match.start(), end))
    return found


def _object_spelling(text: str, place: tuple[int, int]) -> CallSpelling:
    value = json.loads(text[slice(*place)])
    keys = {json.dumps(each): key for key, each in value.items()}
    first = next(iter(value))
    name_key, arguments_key = keys[json.dumps(NAMES[0])], keys[json.dumps(ARGUMENTS)]
    return CallSpelling(
        ArgumentStyle.OBJECT,
        name_key=name_key,
        arguments_key=arguments_key,
        id_key="" if first in (name_key, arguments_key) else first,
    )


def _block(rendered: str, before: str, after: str, reasoning: tuple[str, str] | None) -> str:
    """Returns the part of a rendered conversation that consists of calls."""
    start = len(_common_start(rendered, before))
    found = rendered[start:]
    end = _common_end(found, after)
    found = found.removesuffix(end).lstrip()
    return _without_reasoning(found, reasoning).strip()


def _without_reasoning(text: str, reasoning: tuple[str, str] | None) -> str:
    if reasoning is None or not text.startswith(reasoning[0]):
        return text
    _, end, rest = text.partition(reasoning[1])
    return rest if end else text


def _common_start(one: str, other: str) -> str:
    return "".join(_shared(_PIECE.findall(one), _PIECE.findall(other)))


def _common_end(one: str, other: str) -> str:
    return "".join(_shared(_PIECE.findall(one)[::-1], _PIECE.findall(other)[::-1])[::-1])


def _shared(one: list[str], other: list[str]) -> list[str]:
    """Returns the pieces that both begin with."""
    return [piece for piece, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]


def _has_id(piece: str) -> bool:
    """Whether a piece has the id of a call, as in Solar Open's: a model writes other ones."""
    return any(ID.format(number) in piece for number in range(len(NAMES)))


def _bare(text: str) -> str:
    return re.sub(r"\s", "", text)
