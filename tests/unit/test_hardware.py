"""Memory is read from the control groups of both versions, the process's own and those around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.hardware import control_groups, free_memory, memory_kills, memory_limit

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
    groups = control_groups(tmp_path / "membership", root)
    assert groups[0] == root / own
    assert root in groups
