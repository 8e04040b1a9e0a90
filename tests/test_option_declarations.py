"""An option of a request is spelled once outside of the engine: in its declaration, from which all else is made."""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from draftwire._messages.requests import Request
from draftwire._types.option import options_of
from draftwire._types.options import GenerateOptions
from draftwire_core.runtime.errors import ServiceError
from verifier_service.reading.sampling import read_changes, read_sampling

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[1]
MOST_FILES = 4
PRODUCT = ("protos", "sdk/draftwire", "gateway_service", "verifier_service", "drafter_service", "draftwire_core")
ENGINE = "draftwire_core/engine/"
RECEIVERS = {
    "typical_p": "sampling/sampling_params.py",
    "min_p": "sampling/sampling_params.py",
    "repetition_penalty": "logits/logit_changes.py",
    "presence_penalty": "logits/logit_changes.py",
    "banned_token_ids": "logits/logit_changes.py",
}
"""Options, each with the file of the engine that receives it; the engine's other files act on it."""
PROTO, STUB = "protos/draftwire/v1/sampling.proto", "sdk/draftwire/v1/sampling_pb2.py"
DECLARATION = "sdk/draftwire/_types/options.py"
RECEIVER = ENGINE + "sampling/sampling_params.py"
DUMMY = {
    PROTO: ("  // Key of the noise.", "  // An option that nothing acts on.\n  optional double dummy = 99;\n"),
    DECLARATION: (
        "    repetition_penalty: ",
        "    dummy: Annotated[\n        float | None,\n"
        '        Option(path="sampling.dummy", range=Range(above=0, most=1), help="Has no effect.", in_body=True),\n'
        '    ]\n    """An option that nothing acts on."""\n',
    ),
    RECEIVER: ("    seed: int = 0\n", "    dummy: float = 1.0\n"),
}
"""The edits that a new option takes: the text before which each file gets its part, and that part."""
ARRIVAL = """
from draftwire._messages.requests import Request
from draftwire._types.option import options_of
from draftwire._types.options import GenerateOptions
from draftwire.cli.app import app
from draftwire.cli.connection import Connection
from draftwire.errors import DraftwireError
from gateway_service.openai.completion_request import CompletionRequest
from pydantic import ValidationError
from verifier_service.reading.sampling import read_sampling

def arrived(**options):
    return read_sampling(Request.of("x", **options).message.sampling).dummy

class Caller:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def stream(self, prompt, **options):
        found.append(arrived(**options))
        raise DraftwireError("seen")

assert (arrived(dummy=0.5), arrived()) == (0.5, 1.0)
found = []
Connection.client = lambda *_, **__: Caller()
for arguments in ((), ("--dummy", "0.25")):
    try:
        app(["generate", "x", *arguments], standalone_mode=False)
    except DraftwireError:
        pass
assert found == [1.0, 0.25], found
assert arrived(**CompletionRequest(prompt="x", dummy=0.75).options(5, 1.0)) == 0.75
try:
    CompletionRequest(prompt="x", dummy=0)
except ValidationError as error:
    assert error.errors()[0]["loc"] == ("dummy",)
else:
    raise AssertionError("out of range")
try:
    arrived(dummy="half")
except TypeError as error:
    assert str(error) == "dummy: expected a number, got 'half' (str)", error
else:
    raise AssertionError("of the wrong type")
"""


def written_by_hand() -> list[Path]:
    files = [file for package in PRODUCT for kind in ("*.py", "*.proto") for file in (ROOT / package).rglob(kind)]
    return [file for file in files if not file.name.endswith(("_pb2.py", "_pb2_grpc.py")) and "_sync" not in file.parts]


def test_an_option_is_spelled_in_few_files() -> None:
    texts = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in written_by_hand()}
    for option, receiver in RECEIVERS.items():
        spelled = [name for name, text in texts.items() if re.search(rf"\b{option}\b", text)]
        assert ENGINE + receiver in spelled
        counted = [name for name in spelled if not name.startswith(ENGINE) or name == ENGINE + receiver]
        assert len(counted) <= MOST_FILES, f"{option}: {counted}"


def test_a_new_option_arrives_from_everywhere(tmp_path: Path) -> None:
    """A copy of the tree, in which a new option is declared, carries it from SDK, command line and gateway to the
    engine's parameters."""
    without = shutil.ignore_patterns("__pycache__", "*.so", "*.c", "*.h", "static")
    for package in PRODUCT:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=without)
    for name, (before, part) in DUMMY.items():
        file = tmp_path / name
        text = file.read_text(encoding="utf-8")
        assert text.count(before) == 1, name
        file.write_text(text.replace(before, part + before), encoding="utf-8")
    assert len(DUMMY) <= MOST_FILES
    generate = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{tmp_path / 'protos'}",
        f"--python_out={tmp_path / 'sdk'}",
    ]
    subprocess.run([*generate, str(tmp_path / PROTO)], check=True)
    assert "dummy" in (tmp_path / STUB).read_text(encoding="utf-8")
    path = f"{tmp_path}:{tmp_path / 'sdk'}"
    subprocess.run([sys.executable, "-c", ARRIVAL], cwd=tmp_path, env={"PYTHONPATH": path}, check=True)


NUMBERS = {
    name: option
    for name, option in options_of(GenerateOptions).items()
    if option.type is float and (option.path or "").startswith("sampling.")
}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_declared_range_is_what_the_verifier_accepts(name: str) -> None:
    bounds = NUMBERS[name].range
    edges = [each for each in (bounds.least, bounds.most, bounds.above) if each is not None]
    assert edges
    for edge in edges:
        for value in (float(edge), math.nextafter(edge, math.inf), math.nextafter(edge, -math.inf)):
            inside = not (
                (bounds.least is not None and value < bounds.least)
                or (bounds.most is not None and value > bounds.most)
                or (bounds.above is not None and value <= bounds.above)
            )
            assert accepted(**{name: value}) == inside, value


def accepted(**options: float) -> bool:
    request = Request.of("x", **options).message  # type: ignore[arg-type]
    try:
        read_sampling(request.sampling)
        asyncio.run(read_changes(request, 8, 8, lambda *_: None, lambda *_: asyncio.sleep(0, ())))
    except ServiceError:
        return False
    return True
