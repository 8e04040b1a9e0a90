"""The log events of the product, collected from the code: names, levels, fields, and which programs log them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
SERVICES = ("verifier", "drafter")
PROGRAMS = {
    "verifier_service": ("verifier",),
    "drafter_service": ("drafter",),
    "gateway_service": ("gateway",),
    "draftwire_core/adapters/common": ("vLLM", "SGLang"),
    "draftwire_core/adapters/vllm": ("vLLM",),
    "draftwire_core/adapters/sglang": ("SGLang",),
    "draftwire_core/edge": ("SDK",),
    "draftwire_core/engine": SERVICES,
    "draftwire_core/pool": ("verifier",),
    "draftwire_core/runtime": SERVICES,
    "draftwire_core/training": (),
    "draftwire_sglang": ("SGLang",),
    "draftwire_vllm": ("vLLM",),
    "sdk/draftwire": ("SDK",),
    "sdk/draftwire_tools": ("SDK",),
}
"""The programs whose log has the events of each package; the adapters run the pool and the runtime, too."""
IN_THE_GATEWAY = ("starting", "unknown variable ignored")
"""Events of the runtime's process room that the gateway logs, too."""
NOT_FIELDS = ("exc_info", "extra")


@dataclass
class LogEvent:
    """An event, as all calls that log it have it."""

    name: str
    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    """Names of the fields that the calls spell out."""
    has_more: bool = False
    """Whether a call takes more fields from a mapping."""
    programs: set[str] = field(default_factory=set)


def log_events() -> dict[str, LogEvent]:
    """Returns the events of all packages by name."""
    found: dict[str, LogEvent] = {}
    for package, programs in PROGRAMS.items():
        for file in sorted((ROOT / package).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            if "log." in text:
                for event in events_of(text):
                    known = found.setdefault(event.name, LogEvent(event.name))
                    known.levels |= event.levels
                    known.fields |= event.fields
                    known.has_more |= event.has_more
                    known.programs |= {*programs, *(("gateway",) if event.name in IN_THE_GATEWAY else ())}
    return found


def events_of(source: str) -> Iterator[LogEvent]:
    """Yields an event for each call of `log` in a module's source; several for a call whose event is a parameter.

    Raises ValueError for a call whose event is neither a constant nor a parameter, except the text of an error that
    ends the program.
    """
    module = ast.parse(source)
    constants = {
        target.id: each.value.value
        for each in module.body
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    for function in [
        module,
        *(each for each in ast.walk(module) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)),
    ]:
        reports = dict(_reports(function))
        for call in _calls(function):
            levels = _levels(call, reports)
            if not levels or not call.args:
                continue
            for name in _names(call.args[0], function, module, constants):
                keywords = [*call.keywords, *_extra(call)]
                yield LogEvent(
                    name,
                    set(levels),
                    {each.arg for each in keywords if each.arg is not None and each.arg not in NOT_FIELDS},
                    has_more=any(each.arg is None for each in keywords),
                )


def _calls(function: ast.AST) -> Iterator[ast.Call]:
    """Yields the calls of a function, or of a module, without those of functions inside."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting += ast.iter_child_nodes(node)


def _level(node: ast.AST) -> str | None:
    """Returns the level of `log.level`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "log":
        level = node.attr if node.attr in LEVELS else None
        return "error" if level == "exception" else level
    return None


def _reports(function: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Yields the variables of a function that are one of two levels: `report = log.info if ... else log.debug`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp) and isinstance(node.targets[0], ast.Name):
            levels = {_level(node.value.body), _level(node.value.orelse)} - {None}
            if levels:
                yield node.targets[0].id, {each for each in levels if each is not None}


def _levels(call: ast.Call, reports: dict[str, set[str]]) -> set[str]:
    if isinstance(call.func, ast.Name):
        return reports.get(call.func.id, set())
    level = _level(call.func)
    return set() if level is None else {level}


def _extra(call: ast.Call) -> Iterator[ast.keyword]:
    """Yields the fields of the standard library's `extra`."""
    for each in call.keywords:
        if each.arg == "extra" and isinstance(each.value, ast.Dict):
            for key, value in zip(each.value.keys, each.value.values, strict=True):
                name = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else None
                yield ast.keyword(name, value)


def _names(event: ast.expr, function: ast.AST, module: ast.Module, constants: Mapping[str, object]) -> Iterator[str]:
    if isinstance(event, ast.Constant) and isinstance(event.value, str):
        yield event.value
    elif isinstance(event, ast.Name) and isinstance(constants.get(event.id), str):
        yield str(constants[event.id])
    elif isinstance(event, ast.Name) and isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        place = [each.arg for each in function.args.args if each.arg != "self"].index(event.id)
        for call in ast.walk(module):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == function.name:
                yield from _names(call.args[place], module, module, constants)
    elif ast.unparse(event) != "str(error)":
        raise ValueError(f"the event {ast.unparse(event)!r} is neither a constant nor a parameter")
