"""Send a worker's heartbeat while it loads clients: gunicorn kills a worker that is silent for a minute."""

from __future__ import annotations

import time
from collections.abc import Callable

from sm.polling import Poll

#: Seconds between two heartbeats.
HEARTBEAT_INTERVAL_S = 5.0


def keep_heartbeat(
    notify: Callable[[], object], seconds: float, every: float = HEARTBEAT_INTERVAL_S
) -> Callable[[], None]:
    """Call ``notify`` at intervals, for at most ``seconds`` or until the returned function is called."""
    end = time.monotonic() + seconds

    def beat() -> None:
        if time.monotonic() < end:
            notify()
        else:
            poll.stop()

    poll = Poll("heartbeat", every, beat)
    poll.start()
    return poll.stop
