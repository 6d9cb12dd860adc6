"""Archives are loaded until memory is full; then a platform evicts a model on each 507 and loads again.

Callers use the loaded models meanwhile. They may get right answers, and 404 for a model that was evicted.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.e2e.faults import FULL, SEED
from tests.support.boxes import wait_until
from tests.support.faults.attack import RESTARTS
from tests.support.multi_model_endpoint import MultiModelEndpoint, running_endpoint
from tests.support.tritons import HEAD, Model

#: Of the control group; about 250 of it are the box without a model.
MEMORY_MIB = 1024
#: MiB that a model takes in its initialization. Half of the archives have a file of that size, which tells.
MODEL_MIB = (0, 5, 20, 60, 120)
LOADS, LOADERS, CALLERS = 100 if FULL else 30, 4, 6


@contextmanager
def limited_memory(size: int) -> Iterator[str]:
    """Yield a command prefix that puts the box into a control group with a memory limit, like a container."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    parent, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (second, "memory.max")
    group = parent / f"trireme-faults-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(size))
        yield f"sh -c 'echo $$ > {group}/cgroup.procs && exec \"$@\"' sh"
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), description="the end of the group")
        group.rmdir()


def write_archive(endpoint: MultiModelEndpoint, number: int, choice: random.Random) -> str:
    """Write a model that multiplies by its number, and return its URL."""
    size = choice.choice(MODEL_MIB)
    answer = f'return {{"y": tensor(request, "x") * np.float32({number})}}'
    head = f"{HEAD}        self.weights = np.ones({size} << 20, np.uint8)\n"
    tensors = {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}
    url = endpoint.platform.write_flat(f"m{number}", Model(answer, *tensors, max_batch_size=8, head=head))
    if number % 2:
        (Path(url) / "1" / "weights.bin").write_bytes(bytes(size << 20))
    return url


@dataclass
class Platform:
    """Loads archives, evicts the model that was loaded first, and calls the loaded ones."""

    endpoint: MultiModelEndpoint
    urls: dict[str, str]
    choice: random.Random
    #: The number of the load of what the platform takes for loaded, in their order; 0: it is being loaded or unloaded.
    loaded: dict[str, int] = field(default_factory=dict)
    loads: Counter[int] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def load_one(self) -> None:
        """Load an archive that is not loaded; while the answer is 507, evict and load again."""
        with self.lock:
            name = self.choice.choice([name for name in self.urls if name not in self.loaded])
            self.loaded[name] = 0
        for _ in range(10):
            status = self.endpoint.load(name, self.urls[name]).status_code
            self.loads[status] += 1
            if status != 507 or not self.evict():
                break
        with self.lock:
            del self.loaded[name]
            if status == 200:
                self.loaded[name] = self.loads[200]

    def evict(self) -> bool:
        """Unload the model that was loaded first; False if none is loaded."""
        with self.lock:
            name = next(iter(self.names()), None)
            if name is None:
                return False
            number, self.loaded[name] = self.loaded[name], 0
        status = self.endpoint.unload(name).status_code
        with self.lock:
            del self.loaded[name]
            if status == 503:
                # Triton is being started again, and then has the model again.
                self.loaded[name] = number
        if status not in (200, 404, 503):
            self.loads[status] += 1
        return True

    def names(self) -> list[str]:
        return [name for name, number in self.loaded.items() if number]

    def call(self, seed: int) -> None:
        choice = random.Random(seed)
        while not self.done.is_set():
            with self.lock:
                numbers = {name: self.loaded[name] for name in self.names()}
            if not numbers:
                time.sleep(0.05)
                continue
            name = choice.choice(list(numbers))
            outcome = self.outcome(name)
            self.answers[outcome] += 1
            with self.lock:
                if outcome == "404" and self.loaded.get(name) == numbers[name]:
                    # The box gave it up for lack of memory: the platform loads it again when it is called.
                    del self.loaded[name]

    def outcome(self, name: str) -> str:
        try:
            response = self.endpoint.invoke(name)
        except requests.RequestException as error:
            return repr(error)
        factor = int(name[1:])
        is_wrong = response.ok and response.json()["outputs"][0]["data"] != [factor, 2 * factor]
        return "wrong" if is_wrong else str(response.status_code)


def test_a_platform_that_evicts_on_507_sees_no_other_error(tmp_path: Path) -> None:
    variables: Any = {"SAGEMAKER_MODEL_SERVER_WORKERS": "2", "TRIREME_RESTARTS": str(RESTARTS)}
    with (
        limited_memory(MEMORY_MIB << 20) as prefix,
        running_endpoint(tmp_path, command_prefix=prefix, **variables) as endpoint,
        ThreadPoolExecutor(CALLERS + LOADERS) as threads,
    ):
        choice = random.Random(SEED)
        urls = {
            f"m{number}": write_archive(endpoint, number, choice) for number in range(max(40, LOADS // 2))
        }
        platform = Platform(endpoint, urls, choice)
        calling = [threads.submit(platform.call, SEED + number) for number in range(CALLERS)]
        try:
            for load in [threads.submit(platform.load_one) for _ in range(LOADS)]:
                load.result()
        finally:
            platform.done.set()
        for call in calling:
            call.result()
        assert endpoint.box.ping()[0] == 200
    assert set(platform.answers) <= {"200", "404"}, platform.answers
    assert set(platform.loads) == {200, 507}, platform.loads
