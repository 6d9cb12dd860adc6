"""Load more archives than memory holds, as a platform does: evict another model on a 507, and load again.

Callers use the loaded models meanwhile. They may get right answers, and 404 for a model that was evicted.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import requests

from sm import hardware
from tests.support.boxes import RunningBox, running_box
from tests.support.faults import report
from tests.support.faults.boxes import RESTARTS, limited_memory
from tests.support.faults.callers import RIGHT, WRONG
from tests.support.model_archives import ArchiveFolder
from tests.support.multi_model_endpoint import MultiModelEndpoint
from tests.support.tritons import HEAD, Model

#: Of the control group; about 250 of it are the box without a model.
MEMORY_MIB = 1024
#: MiB that a model takes in its initialization. Half of the archives have a file of that size, which tells.
MODEL_MIB = (0, 5, 20, 60, 120)
LOADERS, CALLERS = 4, 6
COLUMNS = (
    "loads",
    "evictions",
    "models at most",
    "killed processes",
    "answers to loads",
    "answers to callers",
)


@dataclass
class MemoryAttack:
    """What the platform and its callers saw."""

    loads: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    evictions: int = 0
    most_models: int = 0
    kills: int = 0
    details: list[str] = field(default_factory=list)

    def misses(self) -> list[str]:
        """Return a sentence for each goal that is missed."""
        missed = []
        if unexpected := set(self.answers) - {RIGHT, "404"}:
            missed.append(f"callers saw: {', '.join(sorted(unexpected))}")
        if unexpected := set(self.loads) - {"200", "507"}:
            missed.append(f"loads got: {', '.join(sorted(unexpected))}")
        if not self.loads["507"]:
            missed.append("memory never was full")
        return missed

    def markdown(self) -> str:
        def counts(counter: Counter[str]) -> str:
            return ", ".join(f"{count} × {outcome}" for outcome, count in sorted(counter.items()))

        cells = [sum(self.loads.values()), self.evictions, self.most_models, self.kills]
        return report.table(COLUMNS, [[*map(str, cells), counts(self.loads), counts(self.answers)]])


class Platform:
    """Loads archives, evicts the model that was loaded first, and calls the loaded ones."""

    def __init__(self, endpoint: MultiModelEndpoint, archives: int, seed: int, result: MemoryAttack) -> None:
        self.endpoint, self.result, self._random = endpoint, result, random.Random(seed)
        self._lock = threading.Lock()
        #: What the platform takes for loaded, in the order of the loads.
        self.loaded: dict[str, float] = {}
        self._urls = {f"m{number}": self._write(number) for number in range(archives)}

    def _write(self, number: int) -> str:
        size = self._random.choice(MODEL_MIB)
        head = f"{HEAD}        self.weights = np.ones({size} << 20, np.uint8)\n"
        model = Model(
            f'return {{"y": tensor(request, "x") * np.float32({number})}}',
            {"x": ("FP32", [-1])},
            {"y": ("FP32", [-1])},
            max_batch_size=8,
            head=head,
        )
        url = self.endpoint.platform.write_flat(f"m{number}", model)
        if number % 2:
            (Path(url) / "1" / "weights.bin").write_bytes(bytes(size << 20))
        return url

    def load_one(self) -> None:
        """Load an archive that is not loaded; while the answer is 507, evict and load again."""
        with self._lock:
            name = self._random.choice([name for name in self._urls if name not in self.loaded])
            self.loaded[name] = -1.0
        response = self.endpoint.load(name, self._urls[name])
        for _ in range(10):
            self.result.loads[str(response.status_code)] += 1
            if response.status_code not in (200, 507):
                self.result.details.append(f"load of {name}: {response.status_code} {response.text[:300]}")
            if response.status_code != 507 or not self.evict():
                break
            response = self.endpoint.load(name, self._urls[name])
        with self._lock:
            del self.loaded[name]
            if response.status_code in (200, 409):
                self.loaded[name] = time.monotonic()
                self.result.most_models = max(self.result.most_models, len(self.loaded))

    def evict(self) -> bool:
        """Unload the model that was loaded first; False if none is loaded."""
        with self._lock:
            name = next((name for name, at in self.loaded.items() if at > 0), None)
            if name is None:
                return False
            del self.loaded[name]
        self.result.evictions += 1
        response = self.endpoint.unload(name)
        if response.status_code == 503:
            # Triton is being started again, and then has the model again.
            with self._lock:
                self.loaded.setdefault(name, time.monotonic())
        if response.status_code not in (200, 404):
            self.result.loads[f"{response.status_code} to DELETE"] += 1
            self.result.details.append(f"unload of {name}: {response.status_code} {response.text[:300]}")
        return True

    def call_one(self, choice: random.Random) -> None:
        with self._lock:
            names = [name for name, at in self.loaded.items() if at > 0]
        if not names:
            time.sleep(0.05)
            return
        name = choice.choice(names)
        try:
            response = self.endpoint.invoke(name)
        except requests.RequestException as error:
            outcome, text = type(error).__name__, str(error)
        else:
            outcome, text = str(response.status_code), response.text
            if response.status_code == 200:
                factor = int(name[1:])
                right = response.json()["outputs"][0]["data"] == [factor, 2 * factor]
                outcome = RIGHT if right else WRONG
        self.result.answers[outcome] += 1
        if outcome == "404":
            with self._lock:
                # The box gave it up for lack of memory: the platform loads it again when it is called.
                self.loaded.pop(name, None) if self.loaded.get(name, 0) > 0 else None
        if outcome not in (RIGHT, "404"):
            self.result.details.append(f"call of {name}: {outcome} {text[:300]}")


@contextmanager
def memory_box(folder: Path) -> Iterator[tuple[RunningBox, Path]]:
    """Run a box in multi-model mode in a control group of :data:`MEMORY_MIB`."""
    with (
        limited_memory(folder, MEMORY_MIB << 20) as prefix,
        running_box(
            folder,
            None,
            command_prefix=prefix,
            SAGEMAKER_MULTI_MODEL="true",
            TRIREME_MODEL_ARCHIVES=str(folder / "models"),
            SAGEMAKER_MODEL_SERVER_WORKERS="2",
            TRIREME_RESTARTS=str(RESTARTS),
        ) as box,
    ):
        yield box, Path(prefix.split()[5].partition("/cgroup.procs")[0])


def exhaust_memory(
    folder: Path, loads: int, seed: int, say: Callable[[str], None] = lambda _: None
) -> MemoryAttack:
    """Load ``loads`` archives into a box whose memory holds a part of them."""
    result = MemoryAttack()
    with memory_box(folder) as (box, group):
        platform = Platform(
            MultiModelEndpoint(box, ArchiveFolder(folder / "models")), max(40, loads // 2), seed, result
        )
        done = threading.Event()

        def call(number: int) -> None:
            choice = random.Random(seed + number)
            while not done.is_set():
                platform.call_one(choice)

        with ThreadPoolExecutor(CALLERS) as callers, ThreadPoolExecutor(LOADERS) as loaders:
            calling = [callers.submit(call, number) for number in range(CALLERS)]
            try:
                for number, load in enumerate([loaders.submit(platform.load_one) for _ in range(loads)], 1):
                    load.result()
                    if number % 10 == 0:
                        say(f"{number} of {loads}: {result.markdown().splitlines()[-1]}")
            finally:
                done.set()
            for caller in calling:
                caller.result()
        result.kills = hardware.memory_kills([group])
        assert box.ping()[0] == 200
    return result
