"""Memory is read from the control groups of both versions, the process's own and those around it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sm.hardware import control_groups, cores, free_memory, memory_kills, memory_limit

MIB = 2**20


def write_group(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return folder


def test_the_limit_is_the_lowest_of_all_groups_and_of_the_machine(tmp_path: Path) -> None:
    inner = write_group(tmp_path / "a" / "b", {"memory.max": "max"})
    outer = write_group(tmp_path / "a", {"memory.max": f"{64 * MIB}"})
    assert memory_limit([inner, outer]) == 64 * MIB
    assert memory_limit([inner]) == memory_limit([tmp_path / "none"]) > 128 * MIB


#: A group of version 2, and one of version 1.
V2 = {"memory.max": "67108864", "memory.current": "41943040"}
V2["memory.stat"] = "anon 1\nactive_file 1048576\ninactive_file 2097152"
V2["memory.events"] = "low 0\nhigh 0\nmax 7\noom 4\noom_kill 2\n"
V1 = {"memory.limit_in_bytes": "67108864", "memory.usage_in_bytes": "41943040"}
V1["memory.stat"] = "active_file 7\ntotal_active_file 1048576\ntotal_inactive_file 2097152"
V1["memory.oom_control"] = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"


@pytest.mark.parametrize("files", [V2, V1], ids=["version 2", "version 1"])
def test_free_memory_includes_the_page_cache_and_kills_are_counted(tmp_path: Path, files: Any) -> None:
    group = write_group(tmp_path / "group", files)
    assert free_memory([group]) == 27 * MIB
    assert free_memory([tmp_path / "none"]) > 128 * MIB
    assert memory_kills([tmp_path / "none", group]) == 2
    assert memory_kills([tmp_path / "none"]) == 0


@pytest.mark.parametrize(
    ("line", "own"), [("4:cpu,memory:/a/b", "memory/a/b"), ("0::/a/b", "a/b"), ("0::/seen/from/outside", "")]
)
def test_the_own_group_comes_first_and_a_containers_is_the_root(tmp_path: Path, line: str, own: str) -> None:
    root = tmp_path / "cgroup"
    for folder in ("memory/a/b", "a/b", "."):
        write_group(root / folder, {"memory.max": "1"})
    (tmp_path / "membership").write_text(f"3:cpu:/x\n{line}\n")
    groups = control_groups("memory", tmp_path / "membership", root)
    assert groups[0] == root / own
    assert root in groups


V1_ONE, V2_TWO = {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"}, {"cpu.max": "200000 100000"}


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/", {".": {"cpu.max": "50000 100000"}}, 1),
        ("0::/", {".": {"cpu.max": "30000 20000"}}, 2),
        ("0::/", {".": {"cpu.max": "1600000 200000"}}, 8),
        ("0::/", {".": {"cpu.max": "max 100000"}}, 32),
        ("0::/", {".": {"cpu.max": ""}}, 32),
        ("4:cpu:/", {"cpu": V1_ONE}, 1),
        ("4:cpu:/", {"cpu": {**V1_ONE, "cpu.cfs_quota_us": "-1"}}, 32),
        ("4:cpu:/", {"cpu": {"cpu.cfs_quota_us": "100000"}}, 32),
        # A parent's quota counts, also one that is seen from outside.
        ("0::/a/b", {"a": V2_TWO, "a/b": {"cpu.max": "max 100000"}}, 2),
        ("0::/seen/from/outside", {".": V2_TWO}, 2),
        ("4:cpu,cpuacct:/a/b", {"cpu/a": V1_ONE, "cpu/a/b": {}}, 1),
    ],
)
def test_processors_are_counted_by_the_lowest_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: Any, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    for folder, group in files.items():
        write_group(tmp_path / "cgroup" / folder, group)
    (tmp_path / "membership").write_text(f"3:memory:/x\n{membership}\n")
    assert cores(control_groups("cpu", tmp_path / "membership", tmp_path / "cgroup")) == expected
