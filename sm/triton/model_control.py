"""Load and unload Triton's models while it runs.

It uses gRPC, because Triton gives each such call a thread of its own there. Over HTTP, a load would block one
of the few threads that serve all callers, and all connections of that thread.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from sm.errors import (
    BadInput,
    DeadlinePassed,
    NotFound,
    NotReady,
    OutOfMemory,
    Refused,
    TriremeError,
    UnknownModel,
)
from sm.polling import POLL_S, WATCH_S
from sm.triton.channel import Channel
from sm.triton.triton_errors import MEMORY_ERRORS, Failed

#: Beginning of a Python exception, in which only the type says that memory is short.
PYTHON_ERROR = re.compile(r"[A-Za-z_]\w*(?:: |$)")
#: Python exceptions that mean a lack of memory: of a call, of an engine, or of a full disk.
PYTHON_MEMORY = re.compile(
    rf"{MEMORY_ERRORS}|OSError: \[Errno (?:12|28)\] .*|RuntimeError: CUDA (?:error: )?out of memory.*|"
    r"\w+: \[ONNXRuntimeError\] : [0-9]+ : .*(?:bad.alloc|[Ff]ailed to allocate memory).*",
    re.DOTALL,
)
#: Other messages of Triton and its backends for a lack of memory.
OUT_OF_MEMORY = re.compile(
    r"out of memory|bad_alloc|shared memory pool|failed to allocate|no space left|cannot allocate memory|"
    r"out_?of_?memory|ALLOC_FAILED|\bOOM\b",
    re.IGNORECASE,
)
#: Wait for a restarted Triton for this long.
CONNECT_TIMEOUT_S = 5.0
#: Triton reads the whole repository at each load and unload, and fails with this message if another model's
#: folder is removed meanwhile. The next attempt succeeds, as Triton does not find that folder any more.
FOLDER_REMOVED = re.compile(r"failed to (stat|open|read) (file|directory)", re.IGNORECASE)
MAX_ATTEMPTS = 50
#: The beginning of a text that goes on with a model's own reason.
LOAD_FAILED = re.compile(r"^load failed for model '.*?': version \d+ is at UNAVAILABLE state: (?:\w+: )?")
#: ONNX Runtime's text is for its developers, and quotes the graph.
ONNX_ERROR = re.compile(r"(?:\w+: )?\[ONNXRuntimeError\] : \d+ : (\w+)")
#: States that end by themselves; and those in which a model holds memory.
CHANGING_STATES = ("LOADING", "UNLOADING")
HELD_STATES = ("READY", *CHANGING_STATES)
Watching = Callable[[Collection[str]], AbstractContextManager[Callable[[], None]]]


class ModelControl:
    """Loads and unloads models.

    Args:
        channel: To Triton.
        seconds: For a load or an unload.
        has_died: Returns True if a model's process has died, so that it holds no memory any more.
        watching: Called with the names of a load's models; a context during the load. Its function raises as
            soon as one of the models can never load.
    """

    def __init__(
        self,
        channel: Channel,
        seconds: float,
        has_died: Callable[[str], bool] = lambda _: False,
        watching: Watching = lambda _: nullcontext(lambda: None),
    ) -> None:
        self._channel, self._seconds, self._has_died, self._watching = channel, seconds, has_died, watching

    def load(self, model: str, parts: Collection[str] = (), seconds: float | None = None) -> None:
        """Load a model and wait until it is ready.

        Args:
            model: The model's name.
            parts: Models that are loaded with it, such as the steps of an ensemble.
            seconds: The time limit.

        Raises:
            OutOfMemory: There is no room for it.
            BadInput: Triton cannot load it; the sentence has Triton's reason.
            DeadlinePassed: It was not ready within ``seconds``.
        """
        self._channel.connect(CONNECT_TIMEOUT_S)
        request = pb.RepositoryModelLoadRequest(model_name=model)
        with self._watching({model, *parts}) as check:
            self._call("RepositoryModelLoad", request, model, seconds, check)

    def unload(self, model: str) -> None:
        """Unload a model, if it is loaded, and wait until it holds no memory."""
        end = time.monotonic() + self._seconds
        self._call("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name=model), model)
        interval = POLL_S
        while self.states().get(model) in HELD_STATES and not self._has_died(model):
            if time.monotonic() > end:
                raise DeadlinePassed(f"Triton has not let go of {model!r} within {self._seconds:g} s")
            time.sleep(interval)
            interval = min(WATCH_S, interval * 2)

    def states(self) -> dict[str, str]:
        """Return Triton's state of each model: READY, LOADING, UNLOADING or UNAVAILABLE."""
        self._channel.connect(CONNECT_TIMEOUT_S)
        index = self._call("RepositoryIndex", pb.RepositoryIndexRequest(), "")
        return {row.name: row.state for row in index.models}

    def ready(self, model: str) -> bool:
        """True if the model serves."""
        try:
            return is_ready(self._channel, model)
        except Failed as failure:
            raise failure.error from None

    def _call(
        self,
        method: str,
        request: object,
        model: str,
        seconds: float | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Any:
        attempts = 0
        while True:
            try:
                return self._channel.call(method, request, seconds, check)
            except Failed as failure:
                attempts += 1
                if not FOLDER_REMOVED.match(failure.sentence) or attempts == MAX_ATTEMPTS:
                    raise _explain(failure.error, model, seconds or self._seconds) from None
            time.sleep(POLL_S)


def is_ready(channel: Channel, model: str) -> bool:
    """Ask Triton whether a model serves. A Triton that has no such model says no (2.51), or fails (2.71).

    Raises:
        Failed: Triton does not answer.
    """
    try:
        return bool(channel.call("ModelReady", pb.ModelReadyRequest(name=model)).ready)
    except Failed as failure:
        if issubclass(failure.kind, (UnknownModel, NotFound, BadInput, Refused)):
            return False
        raise


def _explain(error: TriremeError, model: str, seconds: float) -> TriremeError:
    if isinstance(error, DeadlinePassed):
        return DeadlinePassed(f"Triton was not done with {model!r} within {seconds:g} s")
    if isinstance(error, NotReady):
        return error
    reason = LOAD_FAILED.sub("", error.sentence)
    if isinstance(error, OutOfMemory) or _lacks_memory(reason):
        return OutOfMemory(f"there is no room for {model!r}: {error.sentence}")
    if match := ONNX_ERROR.match(reason):
        kind = match[1].lower().replace("_", " ")
        reason = f"ONNX Runtime refuses its graph ({kind}); the log has the reason"
    return BadInput(f"Triton cannot load {model!r}: {reason}")


def _lacks_memory(reason: str) -> bool:
    """True if a load failed for a lack of memory."""
    if PYTHON_ERROR.match(reason):
        return PYTHON_MEMORY.fullmatch(reason) is not None
    return OUT_OF_MEMORY.search(reason) is not None
