"""Code of a client that does not return: its client fails, and the worker is replaced.

Python cannot end a thread. Such a thread keeps what it has locked, and may use a whole processor.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from sm.errors import StartError
from sm.run_state import write_atomically

log = logging.getLogger(__name__)
#: Seconds that code gets after its time, and a worker that should end: it may not end by itself.
GRACE_S = 5.0
#: Threads that never return: a worker that ends does not wait for them.
abandoned: set[int] = set()


def replace_worker(thread: int, patience_s: float) -> None:
    """End this worker, which finishes its other requests first: gunicorn starts another.

    Args:
        thread: The thread that does not return.
        patience_s: Seconds that the other requests get.
    """
    if abandoned:
        return
    abandoned.add(thread)
    os.kill(os.getpid(), signal.SIGTERM)
    kill_timer = threading.Timer(patience_s + GRACE_S, os.kill, (os.getpid(), signal.SIGKILL))
    kill_timer.daemon = True
    kill_timer.start()


class MakingLimit:
    """The time in which a client must be made.

    Args:
        folder: Has a file for each client that was not, so that no worker tries it again.
        seconds: The limit.
        patience_s: Seconds that a worker's other requests get when it ends.
    """

    def __init__(self, folder: Path, seconds: float, patience_s: float) -> None:
        self._folder, self._seconds, self._patience_s = folder, seconds, patience_s

    @contextlib.contextmanager
    def watch(self, path: Path, give_up: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Watch that the block ends in time.

        Args:
            path: The file or folder of the code that runs in it.
            give_up: Called if it does not.

        Raises:
            StartError: It did not end in a worker before, and the code is the same.
        """
        mark = self._folder / _digest(path) if self._folder.is_dir() else None
        if mark and mark.is_file():
            raise StartError(mark.read_text())
        timer = threading.Timer(self._seconds, self._expire, (path, threading.get_ident(), give_up))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _expire(self, path: Path, thread: int, give_up: Callable[[], object]) -> None:
        if abandoned:
            return  # what this one waits for is stuck
        reason = (
            f"its import or setup() has not ended within {self._seconds:g} s "
            "(SAGEMAKER_MODEL_SERVER_TIMEOUT, at least 30)"
        )
        log.error("%s: %s: the client fails, and this worker is replaced", path, reason)
        with contextlib.suppress(OSError):  # the next worker finds it out itself
            self._folder.mkdir(exist_ok=True)
            write_atomically(self._folder / _digest(path), reason)
        replace_worker(thread, self._patience_s)
        give_up()


def _digest(path: Path) -> str:
    """Return a name for the code as it is now: an edited file is tried again."""
    files: Iterable[Path] = sorted(path.rglob("*.py")) if path.is_dir() else (path,)
    states = []
    for file in files:
        with contextlib.suppress(OSError):
            status = file.stat()
            states.append((str(file), status.st_mtime_ns, status.st_size))
    return hashlib.sha256(repr(states).encode()).hexdigest()
