"""The adapter that serves a toolkit script as a client."""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sm.client.base import Client, Triton
from sm.client.payloads import BodyPayload
from sm.client.results import Encoded
from sm.deadline import current
from sm.errors import DeadlinePassed, NotAcceptable
from sm.plugins.toolkit.script_functions import Context, ScriptFunctions
from sm.plugins.toolkit.script_modules import plain_names

#: Seconds that a script gets after a request's deadline, and then the other requests of its worker.
GRACE_S = 5.0

log = logging.getLogger(__name__)


class ToolkitClient(Client):
    """Serves a script that has the functions of the SageMaker inference toolkit."""

    payload = BodyPayload

    def __init__(self, triton: Triton, folder: Path, repository: Path, module: str) -> None:
        super().__init__(triton, folder, repository)
        self._module = module
        #: The toolkit runs one request at a time in each process, and a script may rely on that.
        self._lock = threading.Lock()
        #: The deadline of the current request, in seconds of the monotonic clock.
        self._request_end = math.inf
        self._is_ending = False

    def setup(self) -> None:
        with plain_names(self.folder):
            self._handler = ScriptFunctions(importlib.import_module(self._module))
            self._model = self._handler.load(self._context())

    def inference(self, payload: BodyPayload) -> object:
        """Answer bytes with bytes, or the payload of a dispatch request with a value for its answer."""
        accept = "application/json" if payload.dispatched else payload.accept
        with self._exclusive_access():
            body, kind = self._handler.answer(
                self._model, payload.body, payload.content_type, accept, self._context(payload)
            )
        return _decode_answer(body, kind) if payload.dispatched else Encoded(body, kind)

    def _context(self, payload: BodyPayload | None = None) -> Context:
        if payload is None:
            return Context(self.name, self.repository)
        headers = {**payload.headers, "content-type": payload.content_type, "accept": payload.accept}
        accept = payload.dispatched or payload.accept_named
        return Context(self.name, self.repository, headers, accept)

    @contextmanager
    def _exclusive_access(self) -> Iterator[None]:
        deadline = current()
        if not self._lock.acquire(timeout=deadline.remaining() if deadline else -1):
            self._replace_if_stuck()
            raise DeadlinePassed(
                f"{self.name} was busy with earlier requests until the invocation's time was over"
            )
        try:
            if deadline:
                deadline.check()
            self._request_end = deadline.at if deadline else math.inf
            yield
        finally:
            self._lock.release()

    def _replace_if_stuck(self) -> None:
        """End this worker if the script does not return: gunicorn starts another."""
        if time.monotonic() < self._request_end + GRACE_S or self._is_ending:
            return
        self._is_ending = True
        log.error("%s is still busy with a request after its deadline: its worker is replaced", self.name)
        # The other requests have ended. The stuck thread would keep the process from ending by itself.
        os.kill(os.getpid(), signal.SIGTERM)
        kill_timer = threading.Timer(GRACE_S, os.kill, (os.getpid(), signal.SIGKILL))
        kill_timer.daemon = True
        kill_timer.start()


def _decode_answer(body: bytes, content_type: str) -> Any:
    """Decode a script's answer for the ``result`` of a JSON answer."""
    try:
        return json.loads(body) if content_type.startswith("application/json") else body.decode()
    except ValueError:
        raise NotAcceptable(
            f"the answer is {content_type[:100]!r}, which has no place in JSON: send the payload as the body"
        ) from None
