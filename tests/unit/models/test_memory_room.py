"""Loads share the memory of the box: what cannot fit is refused, what may fit waits, a kill is a 507."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sm.errors import BadInput, OutOfMemory
from sm.models.memory_room import PROCESS_BYTES, MemoryRoom, needed_bytes
from sm.repository.models import Model
from tests.support.model_archives import ArchiveFolder

MIB = 2**20


class Memory:
    """The kernel's numbers, which a test sets."""

    def __init__(self, free: int) -> None:
        self.free, self.kills = free * MIB, 0
        self.room = MemoryRoom(lambda: self.free, lambda: 160 * MIB, lambda: self.kills)


def test_a_load_that_cannot_fit_is_refused_with_the_numbers() -> None:
    room = Memory(free=100).room
    with room.reserve("small", 90 * MIB):
        pass
    with pytest.raises(OutOfMemory, match="91 MiB"), room.reserve("large", 91 * MIB):
        pytest.fail("it was started")


def test_loads_that_fit_only_one_after_the_other_wait_for_each_other() -> None:
    room = Memory(free=100).room

    def load() -> None:
        with room.reserve("second", 60 * MIB):
            pass

    with ThreadPoolExecutor(1) as pool:
        with room.reserve("first", 60 * MIB):
            second = pool.submit(load)
            with pytest.raises(TimeoutError):
                second.result(0.1)
        second.result(10)


@pytest.mark.parametrize("error", [None, BadInput("Stub process is not healthy")])
def test_a_load_during_which_the_kernel_kills_a_process_is_out_of_memory(error: Exception | None) -> None:
    memory = Memory(free=100)
    with pytest.raises(OutOfMemory), memory.room.reserve("one", MIB):
        memory.kills += 1
        if error:
            raise error


def test_a_model_needs_at_least_its_served_files_and_its_processes(tmp_path: Path) -> None:
    url = Path(ArchiveFolder(tmp_path).write_flat("hash"))
    for number, size in ((1, 7), (2, 3)):
        (url / str(number)).mkdir(exist_ok=True)
        (url / str(number) / "weights").write_bytes(bytes(size * MIB))
    config = url / "config.pbtxt"
    config.write_text(f"{config.read_text()}instance_group {{ count: 2 }}")
    assert needed_bytes([Model.read(url)]) == 2 * PROCESS_BYTES + 3 * MIB
    config.write_text(config.read_text().replace('backend: "python"', 'backend: "tensorrt"'))
    assert needed_bytes([Model.read(url)]) == 0
