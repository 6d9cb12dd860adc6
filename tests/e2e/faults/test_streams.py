"""Each attack on streams and WebSockets once, while other callers get right answers and nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.support.faults.streams import attack_streams, markdown


def test_attacks_on_streams_hurt_no_other_caller(tmp_path: Path) -> None:
    rows = attack_streams(tmp_path, times=1, seed=1)
    assert not [missed for row in rows for missed in row.misses()], markdown(rows)
