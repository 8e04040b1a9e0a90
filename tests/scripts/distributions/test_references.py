"""The rewriting of references to packages that move into another one."""

import ast

import pytest

from scripts.distributions.references import Move, UnknownReferenceError

MODULES = {"engine", "engine.model", "engine.model.layer", "gate", "gate.process"}
MOVE = Move("ours", {"engine", "gate"}, MODULES.__contains__, words={"gate"}, modules={("start.py", "gate")})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from engine import model", "from ours.engine import model"),
        ("from engine.model import (\n    a,\n    b,\n)", "from ours.engine.model import (\n    a,\n    b,\n)"),
        ("import engine.model as m", "import ours.engine.model as m"),
        ("import engine", "from ours import engine"),
        ("if x: from gate import y  # why", "if x: from ours.gate import y  # why"),
        ("import a; from gate import y", "import a; from ours.gate import y"),
        ('x = "äöü"; from gate import y', 'x = "äöü"; from ours.gate import y'),
        ("def f():\n    import engine.model as m", "def f():\n    import ours.engine.model as m"),
        ("run('gate.process')", "run('ours.gate.process')"),
        ('LOGGERS = ("engine", "other")', 'LOGGERS = ("ours.engine", "other")'),
        ('name.startswith(("torch.", "engine."))', 'name.startswith(("torch.", "ours.engine."))'),
        ('"""Run by `python -m gate --x`."""', '"""Run by `python -m ours.gate --x`."""'),
        ("# python3 -m engine.model", "# python3 -m ours.engine.model"),
        ('f"run python -m engine.model {x}"', 'f"run python -m ours.engine.model {x}"'),
    ],
)  # fmt: skip
def test_a_reference_is_moved(before: str, after: str) -> None:
    assert MOVE.rewrite(before, "a.py") == after
    ast.parse(after)


@pytest.mark.parametrize(
    "source",
    [
        "from .engine import model",
        "from . import engine",
        "from engines import model",
        "from other.engine import model",
        "import other.engine.model",
        "engine = gate = 1\nx.engine.y(engine=engine)",
        "def f():\n    yield from engine",
        '"""The engine is not the gate."""',
        'x = 1\n"""The engine\'s number."""',
        'x("the gate is open")',
        'x(extra="gate")',
        'x("my-engine", "engine-room", "x.engine", "engines")',
        "# the engine",
    ],
)
def test_what_is_no_reference_stays(source: str) -> None:
    assert MOVE.rewrite(source, "a.py") == source


def test_a_word_is_a_module_where_that_is_known() -> None:
    assert MOVE.rewrite('MODULE = "gate"', "start.py") == 'MODULE = "ours.gate"'
    assert MOVE.rewrite('MODULE = "gate"', "other.py") == 'MODULE = "gate"'


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("import engine.model", 1, "binds engine"),
        ("import os, engine", 1, "several modules"),
        ("x = 1\nrun('engine.wheel')", 2, "'engine.wheel', which is no module"),
        ("\n\nrun('the engine stops')", 3, "engine in 'the engine stops'"),
        ("open('engine/file.txt')", 1, "engine in 'engine/file.txt'"),
        ("x = f'{y} of engine'", 1, "engine in"),
    ],
)
def test_what_nobody_knows_how_to_move_is_an_error(source: str, line: int, what: str) -> None:
    with pytest.raises(UnknownReferenceError) as raised:
        MOVE.rewrite(source, "a.py")
    assert str(raised.value).startswith(f"a.py:{line}: ")
    assert what in str(raised.value)
