"""Keep a worker alive while it loads clients: gunicorn kills one that is silent for a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Seconds between two signs.
HEARTBEAT_INTERVAL_S = 5.0


def keep_heartbeat(
    notify: Callable[[], object], seconds: float, every: float = HEARTBEAT_INTERVAL_S
) -> Callable[[], None]:
    """Call ``notify`` again and again, for ``seconds`` at most or until what is returned is called."""
    over = threading.Event()
    end = time.monotonic() + seconds

    def beat() -> None:
        while not over.wait(every) and time.monotonic() < end:
            notify()

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
    return over.set
