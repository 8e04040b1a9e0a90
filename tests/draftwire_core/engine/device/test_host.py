"""Free memory is the least of what the machine and each control group have left."""

from pathlib import Path

import pytest

from draftwire_core.engine.device.host import free_memory

GIB = 1 << 30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    write(tmp_path / "proc" / "meminfo", "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n")
    return tmp_path / "proc"


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def group(place: Path, limit: object, used: int, cached: int, active: int = 0) -> None:
    write(place / "memory.max", limit)
    write(place / "memory.current", used)
    write(place / "memory.stat", f"anon 7\ninactive_file {cached}\nactive_file {active}\nfile {cached + active}")


def test_without_groups(proc: Path, tmp_path: Path) -> None:
    assert free_memory(proc, tmp_path / "none") == 16 * GIB
    assert free_memory(tmp_path / "none", tmp_path / "none") is None
    assert (free_memory() or 1) > 0


def test_a_container_sees_its_limit_at_the_root(proc: Path, tmp_path: Path) -> None:
    write(proc / "self" / "cgroup", "0::/")
    group(tmp_path / "cg", 4 * GIB, 2 * GIB, GIB)
    assert free_memory(proc, tmp_path / "cg") == 3 * GIB


def test_files_that_were_read_twice_count_as_free(proc: Path, tmp_path: Path) -> None:
    write(proc / "self" / "cgroup", "0::/")
    group(tmp_path / "cg", 4 * GIB, 3 * GIB, GIB // 2, GIB)
    assert free_memory(proc, tmp_path / "cg") == 4 * GIB - 3 * GIB // 2


@pytest.mark.parametrize(("own", "above", "free"), [("max", 2 * GIB, 1), (8 * GIB, "max", 7), ("max", "max", 16)])
def test_groups_above_count(proc: Path, tmp_path: Path, own: object, above: object, free: int) -> None:
    write(proc / "self" / "cgroup", "0::/system/ours")
    group(tmp_path / "cg" / "system" / "ours", own, GIB, 0)
    group(tmp_path / "cg" / "system", above, GIB, 0)
    assert free_memory(proc, tmp_path / "cg") == free * GIB


@pytest.mark.parametrize(("limit", "free"), [(4 * GIB, 3), (9223372036854771712, 16)])
def test_the_first_version(proc: Path, tmp_path: Path, limit: int, free: int) -> None:
    write(proc / "self" / "cgroup", "9:name=systemd:/\n4:memory:/box")
    place = tmp_path / "cg" / "memory" / "box"
    write(place / "memory.limit_in_bytes", limit)
    write(place / "memory.usage_in_bytes", 2 * GIB)
    write(place / "memory.stat", f"active_file 5\ntotal_inactive_file {GIB // 2}\ntotal_active_file {GIB // 2}")
    assert free_memory(proc, tmp_path / "cg") == free * GIB


def test_a_group_that_is_full(proc: Path, tmp_path: Path) -> None:
    write(proc / "self" / "cgroup", "0::/")
    group(tmp_path / "cg", GIB, 2 * GIB, 0)
    assert free_memory(proc, tmp_path / "cg") == 0
