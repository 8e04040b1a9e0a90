"""GGUF models of the hub, by the ids that llama.cpp takes, from the hub and from the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.stand_ins.hub_server import serving_hub

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import json, logging, sys
logging.basicConfig(level="INFO")
from draftwire_core.engine.checkpoint import hub
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
chosen = []
hub.log.addFilter(lambda record: chosen.append(record.file) if record.msg == "GGUF file chosen" else False)
answers = []
for source in sys.argv[1:]:
    try:
        found = Checkpoint.find(source)
        answers.append([found.name, found.gguf and str(found.gguf), found.from_hub, *chosen])
    except ModelLoadError as error:
        answers.append(str(error))
    chosen.clear()
print(json.dumps(answers))
"""
FILES = {
    "lab/mixed": ["mmproj-Q4_K_M.gguf", "m-Q8_0.gguf", "README.md", "config.json"],
    "lab/eight": ["a-F16.gguf", "b-Q8_0.gguf"],
    "lab/first": ["b-F16.gguf", "a-BF16.gguf"],
    "lab/tuned": ["config.json", "adapter_model.safetensors", "tuned-Q4_K_M.gguf"],
    "lab/none": ["mmproj-F16.gguf"],
    "lab/broken": ["m-Q4_0-00001-of-00002.gguf"],
}
FILES["lab/mixed"] += [f"Q4_K_M/m-Q4_K_M-0000{part}-of-00002.gguf" for part in (1, 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hub")
    for repository, files in FILES.items():
        for file in files:
            (made / repository / file).parent.mkdir(parents=True, exist_ok=True)
            (made / repository / file).write_text(file)
    return made


def find(sources: list[str], home: Path, **environment: str) -> list[str | list[object]]:
    """Finds checkpoints in a separate process: the hub's library reads its variables on import."""
    own = {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *sources],
        env=kept | own | environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answers: list[str | list[object]] = json.loads(done.stdout)
    return answers


def test_models_by_tags_and_without(folder: Path, tmp_path: Path) -> None:
    split = "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf"
    found = {
        "lab/mixed": split,
        "lab/mixed:q4_k_m": split,
        "hf://lab/mixed:Q8_0": "m-Q8_0.gguf",
        "hf://lab/mixed/Q4_K_M/m-Q4_K_M-00002-of-00002.gguf": "Q4_K_M/m-Q4_K_M-00002-of-00002.gguf",
        "lab/eight": "b-Q8_0.gguf",
        "lab/eight:f16": "a-F16.gguf",
        "lab/first": "a-BF16.gguf",
        "lab/first:F16": "b-F16.gguf",
        "lab/tuned": "tuned-Q4_K_M.gguf",
    }
    refused = {
        "lab/mixed:Q5_K_M": "has no GGUF model with the tag Q5_K_M; its tags are Q4_K_M, Q8_0",
        "lab/none": "not a checkpoint: the repository has no config.json, and no .gguf file of a model",
        "lab/none:F16": "the repository lab/none has no GGUF model with the tag F16, and no other GGUF file",
        "lab/broken:Q4_0": "has only some parts of m-Q4_0-00001-of-00002.gguf: it lacks m-Q4_0-00002-of-00002.gguf",
    }
    with serving_hub(folder) as hub:
        answers = find([*found, *refused], tmp_path, HF_ENDPOINT=hub.url)
        fetched = [request.split("/", 5)[5] for request in hub.requests if request.startswith("GET /lab/")]
    for (source, file), answer in zip(found.items(), answers, strict=False):
        assert isinstance(answer, list), (source, answer)
        name, path, from_hub, *chosen = answer
        assert name == source.removeprefix("hf://") and str(path).endswith(f"/{file}") and from_hub
        assert Path(str(path)).read_text() == file
        assert chosen == ([] if source.endswith(".gguf") else [file.rpartition("/")[2]])
    for reason, answer in zip(refused.values(), answers[len(found) :], strict=True):
        assert isinstance(answer, str) and reason in answer
    # All parts, once each, and nothing else of the repository.
    assert sorted(fetched) == sorted({*found.values()})

    # The same from the cache, also when the hub does not answer.
    for environment in ({"HF_HUB_OFFLINE": "1"}, {}):
        assert find(list(found)[:4], tmp_path, HF_ENDPOINT=hub.url, **environment) == answers[:4]
    Path(str(answers[0][1])).with_name("m-Q4_K_M-00002-of-00002.gguf").unlink()
    [tagged] = find(["lab/mixed:Q4_K_M"], tmp_path, HF_HUB_OFFLINE="1")
    assert isinstance(tagged, str)
    assert "incomplete copy of lab/mixed:Q4_K_M, which lacks Q4_K_M/m-Q4_K_M-00002-of-00002.gguf" in tagged
