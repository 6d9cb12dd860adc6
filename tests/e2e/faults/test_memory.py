"""Archives are loaded until memory is full; then a platform evicts on each 507 and loads again."""

from __future__ import annotations

from pathlib import Path

from tests.support.faults.memory import exhaust_memory


def test_a_platform_that_evicts_on_507_sees_no_other_error(tmp_path: Path) -> None:
    result = exhaust_memory(tmp_path, loads=30, seed=1)
    assert not result.misses(), (result.markdown(), result.details)
    assert result.evictions > 0
