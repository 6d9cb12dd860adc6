from __future__ import annotations

from pathlib import Path

import pytest

from sm.triton.region_pool import MIN_REGION_BYTES, Region, round_up


def test_a_region_is_never_created_over_an_existing_file(tmp_path: Path) -> None:
    Region.create(tmp_path / "r", 4096)
    with pytest.raises(FileExistsError):
        Region.create(tmp_path / "r", 4096)


@pytest.mark.parametrize("size", [1, 65_536, 65_537, 1_000_000, 13_516_800, 2**30 + 1])
def test_sizes_are_rounded_up_by_at_most_an_eighth(size: int) -> None:
    assert size <= round_up(size) <= max(MIN_REGION_BYTES, size + size // 8 + MIN_REGION_BYTES)
    assert round_up(round_up(size)) == round_up(size)
