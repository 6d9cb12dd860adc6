"""Call a function every few seconds, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Poll:
    """A daemon thread that calls ``look`` every ``interval_s`` seconds until it is stopped.

    A ``look`` that fails is logged and called again after the next interval.

    Args:
        name: of the thread, and of what failed in the log.
        interval_s: between the end of one look and the next, and before the first.
        look: what to call. It may call :meth:`stop`.
        at_once: look without waiting for the first interval to pass.
    """

    def __init__(
        self, name: str, interval_s: float, look: Callable[[], object], *, at_once: bool = False
    ) -> None:
        self._name, self._interval_s, self._look, self._at_once = name, interval_s, look, at_once
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Do not look again. A look that is under way ends."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for the end of a look that is under way. Not for ``look`` itself to call."""
        self._thread.join()

    def _run(self) -> None:
        if self._at_once:
            self._try()
        while not self._stopped.wait(self._interval_s):
            self._try()

    def _try(self) -> None:
        try:
            self._look()
        except BaseException:  # a client that is reloaded may call sys.exit()
            log.exception("%s failed, and is tried again in %g s", self._name, self._interval_s)
