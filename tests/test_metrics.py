"""The series stay few, however many models come and go, and have their room on the disk from the start."""

from __future__ import annotations

from pathlib import Path

from sm.metrics import OTHERS, ROOM, Labels, reserve


def test_the_first_names_have_series_of_their_own_and_keep_them() -> None:
    labels = Labels(2)
    assert [labels.of(name) for name in ("a", "b", "c", "a", "d", "b")] == [
        "a",
        "b",
        OTHERS,
        "a",
        OTHERS,
        "b",
    ]


def test_the_room_of_a_workers_series_is_taken_whole(tmp_path: Path) -> None:
    reserve(tmp_path, 7)
    for kind, size in ROOM.items():
        found = (tmp_path / f"{kind}_7.db").stat()
        assert found.st_size == size
        assert found.st_blocks * 512 >= size
