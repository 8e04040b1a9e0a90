"""The compiled library: the right one loads, and one that does not match its sources or structs is refused."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.kernels import build, structs
from draftwire_core.engine.kernels import library as compiled_library
from draftwire_core.engine.kernels.library import LibraryMismatchError
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness import processes
from tests.harness.waiting import LONG_PATIENCE

ROOT = Path(__file__).resolve().parents[4]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = [pytest.mark.processes, pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")]

REMEDY = "make setup.*python -m draftwire_core.engine.kernels.build.*reinstalling draftwire-services"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the C files that compile in a moment: the library's description of itself and its header."""
    place = tmp_path / "csrc"
    place.mkdir()
    for name in ("abi.c", "ops.h"):
        shutil.copy(build.SOURCES / name, place)
    return place


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The path of a library that is loaded in place of the real one."""
    library = tmp_path / build.LIBRARY.name
    monkeypatch.setattr(compiled_library, "LIBRARY", library)
    compiled_library._compiled.cache_clear()
    compiled_library._chosen.clear()
    yield library
    monkeypatch.undo()
    compiled_library._compiled.cache_clear()
    compiled_library._chosen.clear()


def change(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))


@pytest.mark.skipif(not build.LIBRARY.exists(), reason="the compiled library was not built")
def test_the_library_of_these_sources_loads() -> None:
    library = compiled_library._compiled()
    assert library is not None
    assert library.draftwire_abi().contents.source_hash.decode() == build.source_hash()


def test_a_library_of_changed_sources_is_refused(refused: Path, sources: Path) -> None:
    change(sources / "abi.c", "/* The hash", "/* Another hash")
    build.build(refused, sources)
    with pytest.raises(LibraryMismatchError, match=f"was built from sources .*{REMEDY}"):
        compiled_library.library()


def test_a_struct_of_another_size_is_refused(refused: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only structs.py was changed: the hash, which covers the C files, is right."""
    change(sources / "ops.h", "    float scale, eps;\n", "    float scale, eps;\n    int64_t added;\n")
    monkeypatch.setattr(build, "source_hash", lambda sources=None: "the same")
    build.build(refused, sources)
    with pytest.raises(LibraryMismatchError, match=f"differs from structs.py in the sizes of Rope.*{REMEDY}"):
        compiled_library.library()


def test_a_library_without_a_hash_is_refused(refused: Path, sources: Path) -> None:
    """Libraries from before the hash was added."""
    (sources / "abi.c").write_text("int draftwire_vector_kind(void) { return 0; }\n")
    build.build(refused, sources)
    with pytest.raises(LibraryMismatchError, match=f"contains no hash of its sources.*{REMEDY}"):
        compiled_library.available_kernels()


def test_what_is_no_library_is_refused(refused: Path) -> None:
    refused.write_bytes(b"not a library")
    with pytest.raises(LibraryMismatchError, match=f"cannot be loaded.*{REMEDY}"):
        compiled_library.library()


def test_no_model_loads_with_a_refused_library(refused: Path) -> None:
    refused.write_bytes(b"not a library")
    with pytest.raises(ModelLoadError, match=REMEDY):
        PackedModel.load(str(ROOT / "models/draft"), slots=100)


@pytest.mark.parametrize("service", ["verifier_service", "drafter_service"])
def test_no_service_starts_with_a_refused_library(service: str, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from draftwire_core.engine.kernels import library; "
        f"library.LIBRARY = Path({str(tmp_path / build.LIBRARY.name)!r}); library.LIBRARY.write_bytes(b'none'); "
        f"from {service}.process import main; sys.exit(main())"
    )
    ended = processes.run(
        [sys.executable, "-c", program, "--model", str(ROOT / "models/draft"), "--listen", "127.0.0.1:0"],
        cwd=ROOT,
        env=os.environ | processes.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
    )
    assert ended.returncode != 0
    assert "rebuild it" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def test_a_build_without_the_hash_fails(sources: Path, tmp_path: Path) -> None:
    assert COMPILER is not None
    command = [COMPILER, "-c", str(sources / "abi.c"), "-o", str(tmp_path / "abi.o")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "build.py" in ended.stderr


def test_a_build_that_fails_leaves_the_library_as_it_is(refused: Path, sources: Path) -> None:
    refused.write_bytes(b"as before")
    change(sources / "abi.c", "return &abi", "return abi_of_nothing")
    with pytest.raises(build.BuildError, match=r"^abi\.c does not compile on this machine: \S+ ended with 1$"):
        build.build(refused, sources)
    assert refused.read_bytes() == b"as before"


def test_a_build_that_takes_too_long_says_so(refused: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILE_SECONDS", 0)
    with pytest.raises(build.BuildError, match=r"^abi\.c is not compiled after 0 s: this machine is busy or slow$"):
        build.build(refused, sources)


def test_a_build_reports_each_file(refused: Path, sources: Path) -> None:
    (sources / "more").mkdir()
    (sources / "more/other.c").write_text("int other(void) { return 0; }\n")
    lines: list[str] = []
    build.build(refused, sources, lines.append)
    assert {line.split()[1] for line in lines} == {"abi.c", "more/other.c"}
    assert lines[-1].endswith("(2 of 2)")


def test_a_library_of_these_sources_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is used again by an installation."""
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "library.so")
    assert not build.is_built()
    build.LIBRARY.write_text("of other sources")
    assert not build.is_built()
    build.LIBRARY.write_text(f"... {build.source_hash()} ...")
    assert build.is_built()


def test_without_a_compiler_the_build_says_so(
    refused: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match="no C compiler"):
        build.build(refused, sources)


def test_the_hash_is_of_names_contents_and_flags(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {build.source_hash(sources)}
    change(sources / "abi.c", "/* The hash", "/* A hash")
    found.add(build.source_hash(sources))
    (sources / "abi.c").rename(sources / "other.c")
    found.add(build.source_hash(sources))
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    found.add(build.source_hash(sources))
    assert len(found) == 4
    (sources / "notes.txt").write_text("not compiled")
    assert build.source_hash(sources) in found


def test_the_build_needs_the_standard_library_alone() -> None:
    """Wheels are built this way: `-I -S` leaves nothing else to import."""
    place = build.KERNELS / "build.py"
    code = f"import runpy; print(runpy.run_path({str(place)!r})['source_hash']())"
    ended = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == build.source_hash()


def test_every_field_lies_where_c_has_it(sources: Path, tmp_path: Path) -> None:
    """The sizes alone would not reveal two swapped pointers."""
    table = {kind.__name__: kind for kind in structs.STRUCTS}
    declared = {name for name, kind in vars(structs).items() if _is_struct(kind)}
    assert set(table) == declared - {"Abi", "StructSize"}
    fields = [(struct, name) for struct, kind in table.items() for name, *_ in kind._fields_]
    lines = [f"SHOW({struct}, {name})" for struct, name in fields]
    program = tmp_path / "offsets.c"
    program.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "ops.h"\n'
        '#define SHOW(S, F) printf("%s %s %zu %zu\\n", #S, #F, offsetof(S, F), sizeof(((S *)0)->F));\n'
        "int main(void) {\n" + "\n".join(lines) + "\n}\n"
    )
    assert COMPILER is not None
    subprocess.run([COMPILER, f"-I{sources}", str(program), "-o", str(tmp_path / "offsets")], check=True)
    printed = subprocess.run([tmp_path / "offsets"], check=True, capture_output=True, text=True).stdout
    expected = []
    for struct, name in fields:
        field = getattr(table[struct], name)
        expected.append(f"{struct} {name} {field.offset} {field.size}")
    assert printed.splitlines() == expected


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, ctypes.Structure) and kind is not ctypes.Structure
