"""Good answers a second at a full gate: ``python -m bench.overload``. No box: the gate of one worker alone.

A model that takes 0.1 s has 8 slots and a queue of 250. A request has 3 s. Callers ask without a rest; who is
refused comes again when the answer says so.
"""

from __future__ import annotations

import threading
import time
from collections import Counter

from sm.deadline import Deadline
from sm.errors import Overloaded, TriremeError
from sm.router.admission import Admission, FairGate

SLOTS, QUEUE, SERVICE_S, TIMEOUT_S = 8, 250, 0.1, 3.0
#: Callers, and seconds for which they ask.
LOADS = ((8, 5.0), (16, 5.0), (500, 12.0), (8, 3.0))


def ask(gate: FairGate, stop: float, counts: Counter[int]) -> None:
    """Ask until ``stop``, and count the statuses of what was answered until then."""
    while time.monotonic() < stop:
        deadline, slot, pause = Deadline(time.monotonic() + TIMEOUT_S), Admission(gate), 0.0
        try:
            slot.enter("model", lambda limit=deadline: limit)  # type: ignore[misc]
            time.sleep(SERVICE_S)
            slot.leave()
            status = 200 if deadline.remaining() else 504
        except TriremeError as error:
            status = error.status
            pause = float(error.retry_after or 0) if isinstance(error, Overloaded) else 0.0
        now = time.monotonic()
        if now < stop:
            counts[status] += 1
            time.sleep(min(pause, stop - now))


def main() -> None:
    gate = FairGate(SLOTS, QUEUE)
    print("| callers | answers a second, by status |\n|---|---|")
    for callers, seconds in LOADS:
        counts: Counter[int] = Counter()
        stop = time.monotonic() + seconds
        threads = [threading.Thread(target=ask, args=(gate, stop, counts)) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates = ", ".join(f"{status}: {count / seconds:.1f}" for status, count in sorted(counts.items()))
        print(f"| {callers} | {rates} |")


if __name__ == "__main__":
    main()
