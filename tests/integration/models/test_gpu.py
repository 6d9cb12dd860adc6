"""The limit of GPU memory for loads, with a stand-in for nvidia-smi on PATH."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from sm.errors import OutOfMemory
from sm.models import memory_room

QUERY = "--query-gpu=memory.used,memory.total --format=csv,noheader,nounits"


@pytest.mark.parametrize(
    ("output", "limit", "named"),
    [
        ("1000, 10000\n8100, 10000\n", 0.9, ""),
        ("1000, 10000\n8100, 10000\n", 0.8, "GPU 1"),
        *((output, 0.5, "") for output in ("", "[N/A], [N/A]\n", "0, 0\n")),
        (None, 0.5, ""),
    ],
)
def test_a_gpu_over_the_limit_refuses_every_load_and_useless_output_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str | None, limit: float, named: str
) -> None:
    if output is not None:
        stand_in = tmp_path / "nvidia-smi"
        stand_in.write_text(f'#!/bin/sh\ntest "$*" = "{QUERY}" || exit 1\nprintf "{output}"\n')
        stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OutOfMemory, match=named) if named else nullcontext():
        memory_room.check_gpus(limit)
