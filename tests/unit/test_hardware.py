"""Memory is read from the control groups of both versions, the process's own and those around it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sm.hardware import control_groups, cores, free_memory, memory_kills, memory_limit

MIB = 2**20


def write_group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("memory_", "memory.")).write_text(text)
    return folder


def test_the_limit_is_the_lowest_of_all_groups_and_of_the_machine(tmp_path: Path) -> None:
    inner = write_group(tmp_path / "a" / "b", memory_max="max\n")
    outer = write_group(tmp_path / "a", memory_max=f"{64 * MIB}\n")
    assert memory_limit([inner, outer]) == 64 * MIB
    assert memory_limit([inner]) == memory_limit([tmp_path / "none"]) > 128 * MIB


@pytest.mark.parametrize(
    "files",
    [
        {
            "memory_max": "67108864",
            "memory_current": "41943040",
            "memory_stat": "anon 1\nactive_file 1048576\ninactive_file 2097152",
        },
        {
            "memory_limit_in_bytes": "67108864",
            "memory_usage_in_bytes": "41943040",
            "memory_stat": "active_file 7\ntotal_active_file 1048576\ntotal_inactive_file 2097152",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_what_is_free_includes_the_page_cache(tmp_path: Path, files: dict[str, str]) -> None:
    assert free_memory([write_group(tmp_path, **files)]) == 27 * MIB
    assert free_memory([tmp_path / "none"]) > 128 * MIB


@pytest.mark.parametrize(
    "files",
    [
        {"memory_events": "low 0\nhigh 0\nmax 7\noom 4\noom_kill 2\n"},
        {"memory_oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"},
    ],
    ids=["version 2", "version 1"],
)
def test_killed_processes_are_counted(tmp_path: Path, files: dict[str, str]) -> None:
    group = write_group(tmp_path / "group", **files)
    assert memory_kills([tmp_path / "none", group]) == 2
    assert memory_kills([tmp_path / "none"]) == 0


@pytest.mark.parametrize(
    ("line", "own"), [("4:cpu,memory:/a/b", "memory/a/b"), ("0::/a/b", "a/b"), ("0::/seen/from/outside", "")]
)
def test_the_own_group_comes_first_and_a_containers_is_the_root(tmp_path: Path, line: str, own: str) -> None:
    root = tmp_path / "cgroup"
    for folder in ("memory/a/b", "a/b", "."):
        write_group(root / folder, memory_max="1")
    (tmp_path / "membership").write_text(f"3:cpu:/x\n{line}\n")
    groups = control_groups("memory", tmp_path / "membership", root)
    assert groups[0] == root / own
    assert root in groups


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "30000 20000"}, 2),
        ({"cpu.max": "1600000 200000"}, 8),
        ({"cpu.max": "max 100000"}, 32),
        ({"cpu.max": "9900000 100000"}, 32),
        ({"cpu.max": ""}, 32),
        ({"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"}, 1),
        ({"cpu.cfs_quota_us": "30000", "cpu.cfs_period_us": "10000"}, 3),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 32),
        ({"cpu.cfs_quota_us": "100000"}, 32),
    ],
)
def test_processors_are_counted_by_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    for name, content in files.items():
        (tmp_path / name).write_text(content + "\n")
    assert cores([tmp_path]) == expected


@pytest.mark.parametrize(
    ("membership", "folder", "files"),
    [
        ("0::/a/b", "a", {"cpu.max": "200000 100000"}),
        ("0::/seen/from/outside", ".", {"cpu.max": "200000 100000"}),
        ("4:cpu,cpuacct:/a/b", "cpu/a", {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}),
        ("4:cpuacct,cpu:/a", "cpu", {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}),
    ],
)
def test_a_parents_quota_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, folder: str, files: dict[str, str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    root = tmp_path / "cgroup"
    for name in (".", "a/b", "cpu/a/b"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "a/b/cpu.max").write_text("max 100000\n")
    for name, content in files.items():
        (root / folder / name).write_text(content + "\n")
    (tmp_path / "membership").write_text(f"3:memory:/x\n{membership}\n")
    assert cores(control_groups("cpu", tmp_path / "membership", root)) == 2
