"""A model is found by a path or by a hub id, and one is never mistaken for the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.stand_ins.hub_server import COMMIT, HubServer, SilentHub, serving_hub

ROOT = Path(__file__).resolve().parents[4]
DRAFT = ROOT / "models" / "draft"


def find(source: str, home: Path, first: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Finds a checkpoint in a separate process: the hub library reads its variables on import. first: statements that
    come before."""
    program = (
        f"{first}\n"
        "import sys, logging\n"
        "logging.basicConfig(level='INFO', format='%(levelname)s %(message)s')\n"
        "from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError\n"
        "try:\n"
        "    found = Checkpoint.find(sys.argv[1])\n"
        "except ModelLoadError as error:\n"
        "    sys.exit(str(error))\n"
        "print(found.name, found.gguf or found.directory, found.from_hub)\n"
    )
    own = {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    return subprocess.run(
        [sys.executable, "-c", program, source],
        env=kept | own | environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def repositories(tmp_path: Path) -> Path:
    """A folder with the repository lab/draft, and another one that is no checkpoint."""
    folder = tmp_path / "repositories"
    (folder / "lab").mkdir(parents=True)
    (folder / "lab" / "draft").symlink_to(DRAFT)
    (folder / "lab" / "notes").mkdir()
    (folder / "lab" / "notes" / "README.md").write_text("no model")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def test_a_directory_comes_before_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "draft").symlink_to(DRAFT)
    found = Checkpoint.find("lab/draft")
    assert (found.name, found.from_hub) == ("lab/draft", False)


def test_a_path_that_is_not_there_asks_no_hub(repositories: Path, home: Path) -> None:
    (repositories / "models").mkdir()
    (repositories / "models" / "target").symlink_to(DRAFT)
    with serving_hub(repositories) as hub:
        found = find("models/target", home, HF_ENDPOINT=hub.url)
    assert hub.requests == []
    assert found.stderr.strip().endswith(
        f"model models/target: no such directory in {home}; to use a model of the Hugging Face hub, write "
        "hf://models/target"
    )


def test_a_directory_that_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"not a checkpoint: the directory has no config\.json"):
        Checkpoint.find(str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"tokenizer of .*: has no tokenizer\.json, and no file of another.*"):
        Tokenizer.load(str(tmp_path))


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelLoadError, match=r"is a file; expected the directory of a checkpoint, or a \.gguf file"):
        Checkpoint.find(str(tmp_path / "model.safetensors"))


def test_a_gguf_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    found = Checkpoint.find(str(tmp_path / "model.gguf"))
    assert (found.gguf, found.from_hub) == (tmp_path / "model.gguf", False)


def test_a_directory_of_a_gguf_model_may_have_a_configuration(tmp_path: Path) -> None:
    """As clones of repositories that quantisers publish."""
    for name in ("config.json", "m-Q8_0.gguf", "mmproj-F16.gguf"):
        (tmp_path / name).touch()
    file = tmp_path / "m-Q8_0.gguf"
    assert Checkpoint.find(str(tmp_path)).gguf == Checkpoint.find(str(tmp_path), model=False).gguf == file
    (tmp_path / "tokenizer.json").touch()
    assert Checkpoint.find(str(tmp_path)).gguf == file
    assert Checkpoint.find(str(tmp_path), model=False).gguf is None
    (tmp_path / "model.safetensors.index.json").touch()
    assert Checkpoint.find(str(tmp_path)).gguf is None


@pytest.mark.parametrize("source", ["x" * 4000, "~nobody-has-this-name/model"])
def test_names_that_the_system_refuses(source: str) -> None:
    with pytest.raises(ModelLoadError, match="no such directory"):
        Checkpoint.find(source)


def test_without_leave_a_hub_id_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"^model lab/draft: no such directory.*--allow-hub-models$"):
        Checkpoint.find("lab/draft", hub=False)
    with pytest.raises(ModelLoadError, match=r"^model models/draft-9: no such directory$"):
        Checkpoint.find("models/draft-9", hub=False)
    with pytest.raises(ModelLoadError, match=r"^model lab/draft/a\.gguf: no such file, .*--allow-hub-models$"):
        Checkpoint.find("lab/draft/a.gguf", hub=False)


def test_a_model_of_the_hub_is_fetched_whole_and_kept(repositories: Path, home: Path) -> None:
    source = "lab/draft"
    with serving_hub(repositories) as hub:
        found = find(source, home, HF_ENDPOINT=hub.url)
    assert found.returncode == 0, found.stderr
    name, directory, from_hub = found.stdout.split()
    assert (name, Path(directory).name, from_hub) == ("lab/draft", COMMIT, "True")
    assert found.stderr.count("INFO hub download started") == 1
    names = {"config.json", "tokenizer.json", "model.safetensors"}
    assert {file.name for file in Path(directory).iterdir()} >= names
    for file in names:
        assert (Path(directory) / file).read_bytes() == (DRAFT / file).read_bytes()
    # If the hub is unreachable or disabled, the cached copy is used.
    away = find("lab/draft", home, HF_ENDPOINT=hub.url)
    assert away.stdout == found.stdout, away.stderr
    assert away.stderr.count("WARNING cached copy used") == 1
    assert "Retry" not in away.stderr
    offline = find("lab/draft", home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
    assert (offline.stdout, offline.stderr) == (found.stdout, "")


def test_an_incomplete_copy_does_not_count(repositories: Path, home: Path) -> None:
    with serving_hub(repositories) as hub:
        found = find("lab/draft", home, HF_ENDPOINT=hub.url)
    directory = found.stdout.split()[1]
    (Path(directory) / "model.safetensors").unlink()
    unfinished = find("lab/draft", home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
    assert unfinished.returncode == 1 and "incomplete copy of lab/draft, which lacks its weights" in unfinished.stderr
    (Path(directory) / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    (Path(directory) / "other.safetensors").touch()
    half = find("lab/draft", home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
    assert half.returncode == 1 and "incomplete copy of lab/draft, which lacks b.safetensors" in half.stderr
    (Path(directory) / "b.safetensors").touch()
    assert find("lab/draft", home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1").stdout == found.stdout


def test_a_copy_is_whole_without_the_weights_that_were_not_fetched(repositories: Path, home: Path) -> None:
    both = repositories / "lab" / "both"
    both.mkdir()
    (both / "config.json").write_text("{}")
    (both / "model-00001-of-00001.safetensors").touch()
    # Many repositories have their weights in other formats, too, of which the indexes alone are fetched.
    for index, part in (
        ("model.safetensors.index.json", "model-00001-of-00001.safetensors"),
        ("pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin"),
        ("consolidated.safetensors.index.json", "consolidated-00001-of-00001.safetensors"),
    ):
        (both / index).write_text(json.dumps({"weight_map": {"a": part}}))
        (both / part).touch()
    for folder in ("additional_chat_templates", "original"):  # transformers reads the first one's
        (both / folder).mkdir()
        (both / folder / "tool_use.jinja").write_text("{{ tools }}")
    with serving_hub(repositories) as hub:
        found = find("lab/both", home, HF_ENDPOINT=hub.url)
    assert found.returncode == 0, found.stderr
    directory = Path(found.stdout.split()[1])
    assert not list(directory.glob("*.bin"))
    assert [str(each.relative_to(directory)) for each in directory.rglob("*.jinja")] == [
        "additional_chat_templates/tool_use.jinja"
    ]
    offline = find("lab/both", home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
    assert (offline.stdout, offline.stderr) == (found.stdout, "")


def test_a_failed_download_is_reported(repositories: Path, home: Path) -> None:
    # As the hub's library does if its storage Xet does not give a file.
    failing = (
        "from draftwire_core.engine.checkpoint import hub\n"
        "def fail(*arguments, **options):\n"
        "    raise RuntimeError('Task error: File reconstruction error')\n"
        "hub.hf_hub_download = fail\n"
    )
    with serving_hub(repositories) as hub:
        found = find("lab/draft", home, failing, HF_ENDPOINT=hub.url)
    problem = f"model lab/draft: the download from {hub.url} failed: Task error: File reconstruction error"
    assert found.stderr.splitlines()[-1] == problem


def test_a_hub_that_cannot_be_reached_is_asked_once(home: Path) -> None:
    hub = SilentHub()
    hub.close()  # nothing listens there
    found = find("lab/draft", home, HF_ENDPOINT=hub.url)
    assert found.returncode == 1
    assert f"model lab/draft: cannot reach the hub at {hub.url}: " in found.stderr
    assert "Retry" not in found.stderr and found.stderr.count("lab/draft") == 1


def test_a_hub_that_does_not_answer_is_given_up(home: Path) -> None:
    hub = SilentHub()
    try:
        found = find("lab/draft", home, HF_ENDPOINT=hub.url, HF_HUB_ETAG_TIMEOUT="1")
        [connection] = hub.asked("lab/draft")  # the only attempt
        connection.close()
    finally:
        hub.close()
    assert f"cannot reach the hub at {hub.url}" in found.stderr


def test_what_the_hub_has_not_is_named(repositories: Path, home: Path) -> None:
    with serving_hub(repositories) as hub:
        assert f"no such repository at {hub.url}" in find("lab/nothing", home, HF_ENDPOINT=hub.url).stderr
        assert len(hub.requests) == 1
        assert "not a checkpoint: the repository has no config.json" in (
            find("lab/notes", home, HF_ENDPOINT=hub.url).stderr
        )


@pytest.fixture
def gguf_repository(repositories: Path) -> Path:
    """The repository lab/blocks, which has GGUF files only: one, one of 2 and, in a folder, one."""
    folder = repositories / "lab" / "blocks"
    (folder / "small").mkdir(parents=True)
    (folder / "a-Q8_0.gguf").write_bytes(b"first")
    (folder / "b-00001-of-00002.gguf").write_bytes(b"second")
    (folder / "mmproj-F16.gguf").write_bytes(b"a projector for images")
    (folder / "small" / "c.gguf").write_bytes(b"third")
    return folder


def fetched_files(hub: HubServer) -> set[str]:
    """Paths of the files that were downloaded from a hub."""
    return {request.split("/resolve/main/")[1] for request in hub.requests if request.startswith("GET /lab/")}


def test_the_log_says_how_far_a_download_is(repositories: Path, home: Path) -> None:
    often = "from draftwire_core.engine.checkpoint import hub; hub._LOG_SECONDS = 0.0"
    with serving_hub(repositories) as hub:
        found = find("lab/draft", home, often, HF_ENDPOINT=hub.url)
    assert found.returncode == 0, found.stderr
    assert "INFO hub download started" in found.stderr.splitlines()[0]
    assert "INFO hub download continued" in found.stderr


def test_only_the_gguf_file_that_is_named_is_fetched(repositories: Path, gguf_repository: Path, home: Path) -> None:
    source = "hf://lab/blocks/a-Q8_0.gguf"
    with serving_hub(repositories) as hub:
        found = find(source, home, HF_ENDPOINT=hub.url)
    assert found.returncode == 0, found.stderr
    name, path, from_hub = found.stdout.split()
    assert (name, Path(path).name, from_hub) == ("lab/blocks/a-Q8_0.gguf", "a-Q8_0.gguf", "True")
    assert Path(path).read_bytes() == (gguf_repository / "a-Q8_0.gguf").read_bytes()
    assert fetched_files(hub) == {"a-Q8_0.gguf"}
    assert found.stderr.count("INFO hub download started") == 1
    away = find(source, home, HF_ENDPOINT=hub.url)
    assert away.stdout == found.stdout and "WARNING cached copy used" in away.stderr
    offline = find(source, home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
    assert (offline.stdout, offline.stderr) == (found.stdout, "")
    other = find("lab/blocks/other.gguf", home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
    assert other.returncode == 1 and "has no lab/blocks/other.gguf" in other.stderr


def test_a_gguf_file_in_a_folder_of_a_repository(repositories: Path, gguf_repository: Path, home: Path) -> None:
    with serving_hub(repositories) as hub:
        found = find("hf://lab/blocks/small/c.gguf", home, HF_ENDPOINT=hub.url)
        assert found.returncode == 0, found.stderr
        assert Path(found.stdout.split()[1]).read_bytes() == (gguf_repository / "small" / "c.gguf").read_bytes()
        asked = len(hub.requests)
        away = find("lab/blocks/small/c.gguf", home, HF_ENDPOINT=hub.url)
    assert "no such file in" in away.stderr and "write hf://lab/blocks/small/c.gguf" in away.stderr
    assert len(hub.requests) == asked


def test_the_gguf_files_that_a_repository_has_are_named(repositories: Path, gguf_repository: Path, home: Path) -> None:
    listed = "hf://lab/blocks/a-Q8_0.gguf, hf://lab/blocks/b-00001-of-00002.gguf, hf://lab/blocks/small/c.gguf"
    with serving_hub(repositories) as hub:
        wrong = find("lab/blocks/A-Q8_0.gguf", home, HF_ENDPOINT=hub.url)
        assert f"the repository lab/blocks has no file A-Q8_0.gguf; its GGUF files are {listed}" in wrong.stderr
        none = find("lab/draft/a.gguf", home, HF_ENDPOINT=hub.url)
        assert "the repository lab/draft has no file a.gguf, and no other GGUF file" in none.stderr
        part = find("lab/blocks/b-00001-of-00002.gguf", home, HF_ENDPOINT=hub.url)
        assert "has only some parts of b-00001-of-00002.gguf: it lacks b-00002-of-00002.gguf" in part.stderr
        tag = find("lab/blocks:Q5_K_M", home, HF_ENDPOINT=hub.url)
        assert "the repository lab/blocks has no GGUF model with the tag Q5_K_M; its tags are Q8_0" in tag.stderr
        assert fetched_files(hub) == set()


def test_offline_asks_nobody(repositories: Path, home: Path) -> None:
    with serving_hub(repositories) as hub:
        found = find("lab/draft", home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="1")
    assert hub.requests == []
    assert "HF_HUB_OFFLINE is set, and the hub's cache" in found.stderr and "lab/draft" in found.stderr


def test_what_the_hubs_library_logs_is_logged_once(home: Path) -> None:
    program = (
        "import logging, sys\n"
        "logging.basicConfig(format='%(message)s')\n"
        "from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError\n"
        "try:\n"
        "    Checkpoint.find('lab/draft')\n"
        "except ModelLoadError:\n"
        "    logging.getLogger('huggingface_hub.utils').warning('Retrying')\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stderr == "Retrying\n"


@pytest.mark.slow
class TestInAFreshProcess:
    def test_a_tokenizer_comes_without_weights(self, repositories: Path, home: Path) -> None:
        program = (
            "from draftwire_core.engine.text.tokenizer import Tokenizer; print(Tokenizer.load('lab/draft').sha256)"
        )
        own = {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}", "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        with serving_hub(repositories) as hub:
            environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
            run = subprocess.run(
                [sys.executable, "-c", program],
                env=environment | own | {"HF_ENDPOINT": hub.url},
                cwd=home,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
        assert run.stdout.strip() == Tokenizer.load(str(DRAFT)).sha256, run.stderr
        assert not any(request.startswith("GET") and "safetensors" in request for request in hub.requests)
        assert json.loads((DRAFT / "config.json").read_text())  # so the pattern above names an existing file


def test_a_user_without_a_home_is_told_what_to_set(tmp_path: Path) -> None:
    first = "import os, pwd\nfor name in ('HOME', 'HF_HOME', 'XDG_CACHE_HOME'): os.environ.pop(name, None)\n"
    found = find("lab/draft", tmp_path, f"{first}pwd.getpwuid = {{}}.__getitem__", HF_HUB_OFFLINE="1")
    assert found.stderr.startswith("model lab/draft: the hub's cache is ~/.cache/huggingface/hub: ")
    assert found.stderr.endswith("(set HF_HOME)\n")
