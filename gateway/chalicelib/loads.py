"""Share the load of a model among all requests that wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from sm.errors import DeadlinePassed, TriremeError
from sm.invocation import current

from .failures import LoadFailed

log = logging.getLogger(__name__)


class Loads:
    """Runs at most one load of each model at a time.

    A load has its own thread: it continues after the request that started it, and a later request finds the
    model loaded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Future[None]] = {}

    def share(self, model: str, load: Callable[[], None]) -> None:
        """Wait for the running load of this model, or run ``load``.

        Raises:
            LoadFailed: the load failed; every request that waits gets the reason.
            DeadlinePassed: the request's time is over; the load continues.
        """
        with self._lock:
            future = self._running.get(model)
            if future is None:
                future = self._running[model] = Future()
                threading.Thread(
                    target=self._run, args=(model, load, future), name="load_model", daemon=True
                ).start()
        invocation = current()
        try:
            future.result(invocation.remaining() if invocation else None)
        except FutureTimeout:
            raise DeadlinePassed(f"the model {model!r} is still being loaded; ask again later") from None
        except TriremeError as error:
            # A new exception for each request that waits.
            raise LoadFailed(error.sentence) from None
        except Exception as error:
            log.error("a load of %s failed", model, exc_info=error)
            raise LoadFailed(f"unexpected {type(error).__name__}") from None

    def _run(self, model: str, load: Callable[[], None], future: Future[None]) -> None:
        error: BaseException | None = None
        try:
            load()
        except BaseException as raised:
            error = raised
        with self._lock:
            del self._running[model]
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
