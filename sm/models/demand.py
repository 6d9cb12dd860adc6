"""A worker of a box whose models are loaded on demand asks the control plane for them."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from sm.errors import NotReady, OutOfMemory, Overloaded, UnknownModel
from sm.http.messages import SocketConnection
from sm.invocation import UNKNOWN, Invocation, span, wait
from sm.models.load_records import LoadRecords
from sm.polling import poll_until

#: Seconds before the deadline of a request at which it gets 429, and between two questions to the control
#: plane.
MARGIN_S, QUESTION_INTERVAL_S = 0.5, 1.0


class Demand:
    """Asks the control plane for models: see :class:`~sm.models.on_demand.OnDemand`."""

    def __init__(self, control: Path, records: LoadRecords, keys: Mapping[str, str]) -> None:
        self._control, self._records, self._keys = control, records, keys

    def load(self, name: str, invocation: Invocation | None) -> bool:
        """Wait until a model is loaded. Returns False if the repository does not have it.

        Raises:
            Overloaded: It is not loaded in time, or too many requests wait for it already.
            OutOfMemory: It alone is too large.
            NotReady: It cannot be loaded.
        """
        invocation = invocation or Invocation(time.monotonic() + MARGIN_S)
        with span("load") as load:
            with invocation.waiting_for(UNKNOWN):
                answer = self._ask(name, load.headers)
            # Only now the name is known to be in the repository, and not a caller's invention.
            if answer[0] == UnknownModel.status:
                return False
            with invocation.waiting_for(name), contextlib.suppress(UnknownModel):
                self._wait(name, load.headers, invocation, answer)
                return True
        return False

    def _wait(
        self, name: str, headers: Mapping[str, str], invocation: Invocation, answer: tuple[int, str]
    ) -> None:
        end, asked = invocation.at - MARGIN_S, time.monotonic()

        def judge() -> None:
            status, sentence = answer
            if status == UnknownModel.status:
                raise UnknownModel(sentence)
            if status == OutOfMemory.status:
                raise OutOfMemory(sentence)
            if status >= 400 and status != Overloaded.status:
                raise NotReady(f"the model {name[:200]!r} cannot be loaded: {sentence}")

        def check() -> None:
            nonlocal asked, answer
            now = time.monotonic()
            if now >= end:
                suffix = f": {answer[1]}" if answer[0] >= 400 else ""
                raise Overloaded(f"the model {name[:200]!r} is still being loaded{suffix}")
            if now - asked >= QUESTION_INTERVAL_S:
                asked, answer = now, self._ask(name, headers)
                judge()

        judge()
        wait(partial(poll_until, lambda: name in self._records.read().serving), invocation, check)

    def _ask(self, name: str, headers: Mapping[str, str]) -> tuple[int, str]:
        """Return the status of the control plane's answer, and its error; 0 if it does not answer."""
        connection = SocketConnection(self._control, QUESTION_INTERVAL_S)
        try:
            body = json.dumps({"model_name": name})
            connection.request("POST", "/models", body, {**headers, **self._keys})
            answer = connection.getresponse()
            return answer.status, str(json.loads(answer.read()).get("error", ""))
        except (OSError, http.client.HTTPException, ValueError):
            return 0, ""
        finally:
            connection.close()
