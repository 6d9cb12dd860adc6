"""Send a worker's heartbeat while it loads clients: gunicorn kills a worker that is silent for a minute."""

from __future__ import annotations

import time
from collections.abc import Callable

from sm.polling import Poll

#: Seconds between two heartbeats.
HEARTBEAT_INTERVAL_S = 5.0


def keep_heartbeat(
    notify: Callable[[], object], seconds: float, interval_s: float = HEARTBEAT_INTERVAL_S
) -> Callable[[], None]:
    """Call ``notify`` at intervals, for at most ``seconds`` or until the returned function is called."""
    end = time.monotonic() + seconds

    def notify_until_end() -> None:
        if time.monotonic() < end:
            notify()
        else:
            poll.stop()

    poll = Poll("heartbeat", interval_s, notify_until_end)
    poll.start()
    return poll.stop
