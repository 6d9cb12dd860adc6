"""No part of the repository, and no process's imports, grow over their ceiling: one person can hold the core."""

from __future__ import annotations

from tests.support.sizes import CEILINGS, measured


def test_every_part_is_below_its_ceiling() -> None:
    sizes = measured()
    assert {name: size for name, size in sizes.items() if size > CEILINGS[name].most} == {}
