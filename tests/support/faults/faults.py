"""The table of faults: what each breaks, and in which kind of box."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from sm.run_state import SHARED_MEMORY
from tests.support.boxes import RunningBox
from tests.support.disks import filled_disk
from tests.support.faults.attack import Fault, make_kill, make_stall, require_processes
from tests.support.faults.boxes import (
    ECHO,
    FEW_DESCRIPTORS,
    GREEDY,
    MEMORY_LIMIT_BYTES,
    SMALL_TMP,
    masters,
    restart,
    stubs,
    triton,
    watchdog,
    workers,
)
from tests.support.faults.callers import REFUSED, RESET, Callers
from tests.support.faults.inputs import DEMO_MODELS, JSON, v2_numbers, with_golden_answers

SHORTEST_STOP_S, LONGEST_STOP_S = 1.0, 10.0
#: Seconds that a disk stays full, that a flood lasts, and between two signals to one process.
FULL_DISK_S, FLOOD_S, SECOND_SIGNAL_S = 3.0, 5.0, 0.3
FLOODING_CALLERS = 200
START_TIMEOUT_S = 60.0  # from a box's start to its first right answer, on a busy machine

Find = Callable[[RunningBox], list[int]]
Inject = Callable[[RunningBox], Counter[str] | None]

#: How to find each process of the box. The supervisor is missing: the box ends with it.
PROCESSES: dict[str, Find] = {
    "nginx's master": partial(masters, words="nginx: "),
    "nginx's worker": partial(workers, words="nginx: "),
    "the control plane's master": partial(masters, words="sm.server.worker control"),
    "the control plane's worker": partial(workers, words="sm.server.worker control"),
    "the data plane's master": partial(masters, words="sm.server.worker data"),
    "a data worker": partial(workers, words="sm.server.worker data"),
    "Triton": triton,
    **{f"a stub of {model}": partial(stubs, model=model) for model in (*DEMO_MODELS, ECHO)},
    "the supervisor's guard": watchdog,
}
#: Processes that hold callers' connections, which break when they are killed.
CONNECTION_HOLDERS = {"nginx's master", "nginx's worker"}


def make_faults(seed: int, restarts: int) -> Iterator[Fault]:
    """Yield all faults. ``restarts`` is how often the box, and Triton, are restarted in a row."""
    choice = random.Random(seed)
    for name, find in PROCESSES.items():
        model = name.rpartition(" ")[2] if name.startswith("a stub") else ""
        allowed = frozenset({RESET, "502"} if name in CONNECTION_HOLDERS else ())
        waits = bool(model) or name == "Triton"
        yield Fault(f"{name} killed", make_kill(find), model, allowed=allowed, unnoticed=waits)
    for name, find in PROCESSES.items():
        model = name.rpartition(" ")[2] if name.startswith("a stub") else ""
        seconds = round(choice.uniform(SHORTEST_STOP_S, LONGEST_STOP_S), 1)
        stop = make_stall(find, seconds)
        waits = bool(model) or name == "Triton"
        yield Fault(f"{name} stopped for {seconds:g} s", stop, model, seconds, unnoticed=waits)
    disk_fault = partial(Fault, kind="small disks")
    yield disk_fault("full /dev/shm", fill_shared_memory())
    yield disk_fault("full /dev/shm, and Triton killed", fill_shared_memory(make_kill(triton)))
    yield disk_fault("full /tmp", fill_temporary_files())
    yield disk_fault(
        "full /tmp, and a data worker killed", fill_temporary_files(make_kill(PROCESSES["a data worker"]))
    )
    yield Fault(f"{FEW_DESCRIPTORS} descriptors, {FLOODING_CALLERS} callers", flood, kind="few descriptors")
    yield Fault(
        f"a memory limit of {MEMORY_LIMIT_BYTES >> 20} MiB, and a model that takes more",
        exhaust_memory,
        kind="limited memory",
    )
    restart_fault = partial(Fault, recovery_limit_s=START_TIMEOUT_S, allowed=frozenset({REFUSED}))
    yield restart_fault("SIGTERM, and started again", stop_and_start(signals=1))
    yield restart_fault("SIGTERM twice, and started again", stop_and_start(signals=2))
    yield restart_fault(f"{restarts} restarts of the box", repeat(stop_and_start(signals=1), restarts))
    yield Fault(
        f"Triton killed {restarts} times",
        repeat(make_kill(triton), restarts),
        recovery_limit_s=START_TIMEOUT_S,
    )


def fill_shared_memory(meanwhile: Inject | None = None) -> Inject:
    return fill_disk(lambda box: SHARED_MEMORY, meanwhile)


def fill_temporary_files(meanwhile: Inject | None = None) -> Inject:
    return fill_disk(lambda box: box.log.parent / SMALL_TMP, meanwhile)


def fill_disk(folder: Callable[[RunningBox], Path], meanwhile: Inject | None) -> Inject:
    """Return an action that fills a disk for a while, and runs another action ``meanwhile``."""

    def inject(box: RunningBox) -> None:
        with filled_disk(box, folder(box)):
            if meanwhile:
                meanwhile(box)
            time.sleep(FULL_DISK_S)

    return inject


def flood(box: RunningBox) -> Counter[str]:
    """Send requests from many more callers than the box has descriptors."""
    numbers = [float(number) for number in range(3)]
    samples = with_golden_answers([v2_numbers(ECHO, numbers)], box.port)
    callers = Callers(box.port, samples, FLOODING_CALLERS).start()
    time.sleep(FLOOD_S)
    return callers.stop().outcomes()


def exhaust_memory(box: RunningBox) -> None:
    """Send one request that takes more memory than there is. Its own answer may be 500, 503 or 507."""
    megabytes = 2 * MEMORY_LIMIT_BYTES >> 20
    request = v2_numbers(GREEDY, [float(megabytes)])
    connection = HTTPConnection("127.0.0.1", box.port, timeout=START_TIMEOUT_S)
    connection.request("POST", request.path, body=request.body, headers={"Content-Type": JSON})
    status = connection.getresponse().status
    connection.close()
    assert status in (500, 503, 507), status


def stop_and_start(signals: int) -> Inject:
    """Return an action that stops the box with SIGTERM, as SageMaker does, and starts it again on the same port."""

    def inject(box: RunningBox) -> None:
        for number in range(signals):
            time.sleep(SECOND_SIGNAL_S if number else 0)
            os.kill(require_processes([box.process.pid])[0], signal.SIGTERM)
        code = box.process.wait(START_TIMEOUT_S)
        assert code == 0, f"serve ended with {code}"
        restart(box)

    return inject


def repeat(inject: Inject, times: int) -> Inject:
    """Return an action that repeats another one, each time once the box is ready."""

    def inject_again(box: RunningBox) -> None:
        for number in range(times):
            if number:
                time.sleep(FULL_DISK_S)  # lets the supervisor notice the last fault
                box.wait_ready(START_TIMEOUT_S)
            inject(box)

    return inject_again
