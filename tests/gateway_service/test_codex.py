"""Codex, OpenAI's command for coding, at the gateway: its own package, in front of a real model."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.checkout import MODELS
from tests.harness.client_packages import node_packages
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.slow

PACKAGE = "@openai/codex@0.171.0"
CONTEXT = 32_768
"""Codex sends some ten thousand tokens of instructions and tools."""
LINE_END = 199
"""The token of a line's end, with which this model's answers end here: it was not trained to end them otherwise."""


@pytest.fixture(scope="module")
def codex() -> Path:
    return node_packages("codex", PACKAGE) / "node_modules" / ".bin" / "codex"


def test_it_ends_with_an_answer(codex: Path, tmp_path: Path, services: Services) -> None:
    """Its tools include a web search, which the gateway leaves out."""
    model = tmp_path / "target"
    shutil.copytree(MODELS / "target", model)
    for name, change in (
        ("config.json", {"max_position_embeddings": CONTEXT}),
        ("generation_config.json", {"eos_token_id": [0, LINE_END]}),
    ):
        (model / name).write_text(json.dumps(json.loads((model / name).read_text()) | change))
    verifier = services.verifier(str(model), "--drafter", "local:ngram", "--kv-slots", str(CONTEXT))
    gateway = services.gateway("--verifier", verifier.address)
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    provider = f'name = "draftwire"\nbase_url = "{gateway.url}/v1"\nwire_api = "responses"\n'
    chosen = 'model = "target"\nmodel_provider = "draftwire"\n'
    (home / "config.toml").write_text(f"{chosen}[model_providers.draftwire]\n{provider}")
    done = subprocess.run(
        [codex, "exec", "--skip-git-repo-check", "--output-last-message", str(tmp_path / "answer"), "say hello"],
        cwd=work, env=os.environ | {"CODEX_HOME": str(home)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=LONG_PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "answer").exists()
    [left_out] = [event["parts"] for event in gateway.events() if event["event"] == "request parts left out"]
    assert any(part.endswith("(web_search)") for part in left_out)
