"""The models of one instance in multi-model mode: loaded on first use, the least recently used goes first."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable

import requests

from tests.support.platform.archives import Archives, NoArchive
from tests.support.platform.failures import invalid
from tests.support.platform.machines import Machine

#: Seconds that a container may take to load or unload a model.
LOADING = 360.0
FULL = 507


class Models:
    """``prefix`` is where the archives lie in S3."""

    def __init__(self, machine: Machine, archives: Archives, prefix: str) -> None:
        self._machine, self._archives = machine, archives
        self._prefix = prefix.rstrip("/")
        #: By name, the least recently used first: the container's name for it.
        self._loaded: OrderedDict[str, str] = OrderedDict()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()

    @property
    def loaded(self) -> list[str]:
        """Names as callers have them, the least recently used first."""
        with self._lock:
            return list(self._loaded)

    def invoke(self, target: str, send: Callable[[str], requests.Response]) -> requests.Response:
        """The container's answer for ``target``; its own of the load where that fails."""
        while True:
            refusal = self._load(target)
            if refusal is not None:
                return refusal
            answer = send(f"/models/{self._name(target)}/invoke")
            if answer.status_code != FULL or not self._evict(target):
                return answer
            answer.close()

    def _load(self, target: str) -> requests.Response | None:
        """None once it is loaded; one at a time for each model, others beside it."""
        with self._locks[target]:
            while True:
                with self._lock:
                    if target in self._loaded:
                        self._loaded.move_to_end(target)
                        return None
                answer = self._asked_to_load(target)
                if answer.status_code == 200:
                    with self._lock:
                        self._loaded[target] = self._name(target)
                elif answer.status_code != FULL or not self._evict(target):
                    return answer

    def _asked_to_load(self, target: str) -> requests.Response:
        url = f"{self._prefix}/{target.lstrip('/')}"
        try:
            here = self._archives.unpack(url, self._machine.archives)
        except NoArchive as error:
            raise invalid(str(error)) from None
        inside = f"{self._machine.archives_inside}/{here.relative_to(self._machine.archives)}"
        return requests.post(
            f"{self._machine.url}/models",
            json={"model_name": self._name(target), "url": inside},
            headers={"X-Amzn-SageMaker-Target-Model": target},
            timeout=LOADING,
        )

    def _evict(self, but: str) -> bool:
        """Unload the least recently used of the others, if there is one."""
        with self._lock:
            oldest = next((name for name in self._loaded if name != but), None)
        if oldest is None:
            return False
        with self._locks[oldest]:
            with self._lock:
                name = self._loaded.pop(oldest, None)
            if name is not None:
                requests.delete(f"{self._machine.url}/models/{name}", timeout=LOADING)
                url = f"{self._prefix}/{oldest.lstrip('/')}"
                shutil.rmtree(self._archives.place(url, self._machine.archives), ignore_errors=True)
        return True

    @staticmethod
    def _name(target: str) -> str:
        return hashlib.sha256(target.encode()).hexdigest()[:32]
