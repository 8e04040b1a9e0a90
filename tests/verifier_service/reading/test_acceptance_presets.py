"""The preset chosen by the look of a prompt."""

import pytest

from draftwire.v1.speculation_pb2 import AcceptancePreset
from verifier_service.reading.acceptance import looks_like

PROMPTS = {
    "code": [
        "def fib(n):",
        "import os\nimport sys\n\nclass A:\n    def b(self) -> int:\n",
        "int main() {\n    return 0;\n",
        "Write a Python function that sorts a list.",
        "```\nls -l\n```",
        "x = 3\ny = x + 1\n",
    ],
    "json": ['{"name": "x", "age": ', '[{"a": 1}, ', "Answer in JSON, please.", '  "key": "value",\n'],
    "narrative": [
        "Once upon a time",
        "Dear Sir,\n\nI return to your letter of May; it found me well.\nYours",
        "She let him in. The class was for beginners (it said so).",
        "",
    ],
}


@pytest.mark.parametrize(("name", "prompt"), [(name, prompt) for name, found in PROMPTS.items() for prompt in found])
def test_prompts(name: str, prompt: str) -> None:
    assert looks_like(prompt) == AcceptancePreset.Value(f"ACCEPTANCE_PRESET_{name.upper()}")
