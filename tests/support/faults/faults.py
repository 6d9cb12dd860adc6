"""The fault table: what is broken, in which kind of box."""

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
from tests.support.faults.attack import Fault, kill, present, stall
from tests.support.faults.boxes import (
    ECHO,
    FEW_DESCRIPTORS,
    GREEDY,
    MEMORY_LIMIT_BYTES,
    SMALL_TMP,
    guard,
    masters,
    restart,
    stubs,
    triton,
    workers,
)
from tests.support.faults.callers import REFUSED, RESET, Callers
from tests.support.faults.inputs import DEMO_MODELS, JSON, v2_numbers, with_golden_answers

SHORTEST_STOP_S, LONGEST_STOP_S = 1.0, 10.0
#: Seconds that a disk stays full, that a flood lasts, and between two signals to one process.
FULL_S, FLOOD_S, SECOND_SIGNAL_S = 3.0, 5.0, 0.3
FLOODING_CALLERS = 200
#: Seconds from the start of a box until it answers right, on a machine that others use too.
START_TIMEOUT_S = 60.0

Find = Callable[[RunningBox], list[int]]
Inject = Callable[[RunningBox], Counter[str] | None]

#: Each process of the box by what it is. The supervisor's end is the box's, so it is only stopped, with all others.
PROCESSES: dict[str, Find] = {
    "nginx's master": partial(masters, words="nginx: "),
    "nginx's worker": partial(workers, words="nginx: "),
    "the control plane's master": partial(masters, words="sm.server.worker control"),
    "the control plane's worker": partial(workers, words="sm.server.worker control"),
    "the data plane's master": partial(masters, words="sm.server.worker data"),
    "a data worker": partial(workers, words="sm.server.worker data"),
    "Triton": triton,
    **{f"a stub of {model}": partial(stubs, model=model) for model in (*DEMO_MODELS, ECHO)},
    "the supervisor's guard": guard,
}
#: Whose death breaks the connections that it had in its hands.
HOLDERS = {"nginx's master", "nginx's worker"}


def make_faults(seed: int, restarts: int) -> Iterator[Fault]:
    """The whole table; ``restarts`` is how often the box, and Triton, are started again in a row."""
    choice = random.Random(seed)
    for name, find in PROCESSES.items():
        model = name.rpartition(" ")[2] if name.startswith("a stub") else ""
        allowed = frozenset({RESET, "502"} if name in HOLDERS else ())
        yield Fault(f"{name} killed", kill(find), model, allowed=allowed)
    for name, find in PROCESSES.items():
        model = name.rpartition(" ")[2] if name.startswith("a stub") else ""
        seconds = round(choice.uniform(SHORTEST_STOP_S, LONGEST_STOP_S), 1)
        yield Fault(f"{name} stopped for {seconds:g} s", stall(find, seconds), model, seconds)
    small = partial(Fault, kind="small disks")
    yield small("full /dev/shm", fill_shared_memory())
    yield small("full /dev/shm, and Triton killed", fill_shared_memory(kill(triton)))
    yield small("full /tmp", fill_temporary_files())
    yield small("full /tmp, and a data worker killed", fill_temporary_files(kill(PROCESSES["a data worker"])))
    yield Fault(f"{FEW_DESCRIPTORS} descriptors, {FLOODING_CALLERS} callers", flood, kind="few descriptors")
    yield Fault(
        f"a memory limit of {MEMORY_LIMIT_BYTES >> 20} MiB, and a model that takes more",
        exhaust_memory,
        kind="limited memory",
    )
    stopped = partial(Fault, back_within_s=START_TIMEOUT_S, allowed=frozenset({REFUSED}))
    yield stopped("SIGTERM, and started again", stop_and_start(signals=1))
    yield stopped("SIGTERM twice, and started again", stop_and_start(signals=2))
    yield stopped(f"{restarts} restarts of the box", repeated(stop_and_start(signals=1), restarts))
    yield Fault(
        f"Triton killed {restarts} times", repeated(kill(triton), restarts), back_within_s=START_TIMEOUT_S
    )


def fill_shared_memory(meanwhile: Inject | None = None) -> Inject:
    return filled(lambda box: SHARED_MEMORY, meanwhile)


def fill_temporary_files(meanwhile: Inject | None = None) -> Inject:
    return filled(lambda box: box.log.parent / SMALL_TMP, meanwhile)


def filled(folder: Callable[[RunningBox], Path], meanwhile: Inject | None) -> Inject:
    """An action that fills a disk for a while, and does something else ``meanwhile``."""

    def inject(box: RunningBox) -> None:
        with filled_disk(box, folder(box)):
            if meanwhile:
                meanwhile(box)
            time.sleep(FULL_S)

    return inject


def flood(box: RunningBox) -> Counter[str]:
    """Many more callers than there are descriptors."""
    numbers = [float(number) for number in range(3)]
    asked = with_golden_answers([v2_numbers(ECHO, numbers)], box.port)
    callers = Callers(box.port, asked, FLOODING_CALLERS).start()
    time.sleep(FLOOD_S)
    return callers.stop().outcomes()


def exhaust_memory(box: RunningBox) -> None:
    """One caller asks for more than there is; that one may be told so in any way."""
    megabytes = 2 * MEMORY_LIMIT_BYTES >> 20
    request = v2_numbers(GREEDY, [float(megabytes)])
    connection = HTTPConnection("127.0.0.1", box.port, timeout=START_TIMEOUT_S)
    connection.request("POST", request.path, body=request.body, headers={"Content-Type": JSON})
    status = connection.getresponse().status
    connection.close()
    assert status in (500, 503, 507), status


def stop_and_start(signals: int) -> Inject:
    """An action that ends the box as the platform does, and starts it again on the same port."""

    def inject(box: RunningBox) -> None:
        for number in range(signals):
            time.sleep(SECOND_SIGNAL_S if number else 0)
            os.kill(present([box.process.pid])[0], signal.SIGTERM)
        code = box.process.wait(START_TIMEOUT_S)
        assert code == 0, f"serve ended with {code}"
        restart(box)

    return inject


def repeated(inject: Inject, times: int) -> Inject:
    """The same again and again, each time once the box is ready."""

    def inject_again(box: RunningBox) -> None:
        for number in range(times):
            if number:
                time.sleep(FULL_S)  # what was broken is noticed first
                box.wait_ready(START_TIMEOUT_S)
            inject(box)

    return inject_again
