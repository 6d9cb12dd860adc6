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
#: Seconds in which a client may load its model: SageMaker's longest time for a container's start. Gigabytes
#: take longer than a request.
LOADING_S = 3600.0
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
    """The time in which a client must be made. One that loads its model has :data:`LOADING_S`.

    Args:
        folder: Has a file for each client that was not, so that no worker tries it again.
        seconds: The limit.
        patience_s: Seconds that a worker's other requests get when it ends.
        most_loading: Threads that may load beyond the limit at once: a worker has some for others.
    """

    def __init__(self, folder: Path, seconds: float, patience_s: float, most_loading: int) -> None:
        self._folder, self._seconds, self._patience_s = folder, seconds, patience_s
        self._most_loading = most_loading
        #: The threads that load a model, and those of them that are beyond the limit.
        self._loading: set[int] = set()
        self._slow: set[int] = set()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Say that the block loads a model: then the others do not wait for it, and it may go on."""
        thread = threading.get_ident()
        self._loading.add(thread)
        try:
            yield
        finally:
            self._loading.discard(thread)

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
        ended, thread = threading.Event(), threading.get_ident()
        threading.Thread(target=self._wait, args=(ended, path, thread, give_up), daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _wait(self, ended: threading.Event, path: Path, thread: int, give_up: Callable[[], object]) -> None:
        if ended.wait(self._seconds):
            return
        if thread in self._loading and len(self._slow) < self._most_loading:
            self._slow.add(thread)
            log.info("%s is still loading its model: other clients do not wait for it", path)
            give_up()
            has_ended = ended.wait(LOADING_S - self._seconds)
            self._slow.discard(thread)
            if has_ended:
                return
        self._expire(path, thread, give_up)

    def _expire(self, path: Path, thread: int, give_up: Callable[[], object]) -> None:
        if abandoned:
            return  # what this one waits for is stuck
        reason = (
            f"its import has not ended within {self._seconds:g} s (SAGEMAKER_MODEL_SERVER_TIMEOUT, at least "
            f"30), or its setup() within {LOADING_S:g} s"
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
