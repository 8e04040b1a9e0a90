"""llama.cpp's programs: found in a build directory, run to quantise, and asked for where they are missing."""

import sys
from pathlib import Path

import pytest

from benchmarks.peers.llama_programs import llama_program
from benchmarks.peers.runners.gguf_export import exported
from draftwire_core.engine.checkpoint.gguf.gguf_file import GgufFile
from tests.harness.checkout import MODELS

pytestmark = pytest.mark.processes

COPIES = """#!{python}
import shutil, sys
assert sys.argv[1] == "--pure" and sys.argv[4] == "Q4_K_S", sys.argv
if "broken" in sys.argv[2]:
    sys.exit("out of cheese")
shutil.copyfile(sys.argv[2], sys.argv[3])
"""


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build directory with a llama-quantize that copies its input."""
    program = tmp_path / "build" / "bin" / "llama-quantize"
    program.parent.mkdir(parents=True)
    program.write_text(COPIES.format(python=sys.executable))
    program.chmod(0o755)
    (program.parent / "llama-server").write_text("not executable")
    return tmp_path / "build"


def test_programs_are_found_in_a_build_directory_and_in_its_bin(build: Path) -> None:
    assert llama_program(str(build), "llama-quantize") == build / "bin" / "llama-quantize"
    assert llama_program(str(build / "bin"), "llama-quantize") == build / "bin" / "llama-quantize"
    with pytest.raises(FileNotFoundError, match="there is no program llama-server in"):
        llama_program(str(build), "llama-server")
    with pytest.raises(FileNotFoundError, match="llama-server is needed: give --llama-cpp DIR, or set LLAMA_CPP_BIN"):
        llama_program("", "llama-server")


def test_a_model_is_quantised_once_by_llama_cpp(build: Path, tmp_path: Path) -> None:
    made = exported(str(MODELS / "draft"), str(tmp_path / "cache"), "q4_k", str(build))
    assert made.name == "draft-q4_k.gguf" and made.read_bytes() == made.with_name("draft-bf16.gguf").read_bytes()
    assert len(GgufFile.open(made).tensors) > 10
    assert exported(str(MODELS / "draft"), str(tmp_path / "cache"), "q4_k") == made


def test_nothing_is_left_of_a_model_that_is_not_quantised(build: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="llama-quantize is needed"):
        exported(str(MODELS / "draft"), str(tmp_path / "cache"), "q4_k")
    with pytest.raises(RuntimeError, match="llama-quantize ends with status 1: out of cheese"):
        exported(str(MODELS / "draft"), str(tmp_path / "broken"), "q4_k", str(build))
    assert not list(tmp_path.glob("*/*q4_k*"))
