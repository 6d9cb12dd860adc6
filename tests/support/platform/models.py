"""The models of one multi-model instance: loaded at the first request, the least recently used unloaded first."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable

import requests

from tests.support.platform.archives import ArchiveStore, ArchiveUnavailable
from tests.support.platform.failures import validation_error
from tests.support.platform.machines import Machine

LOAD_TIMEOUT_S = 360.0  # SageMaker's limit for loading or unloading a model
INSUFFICIENT_STORAGE = 507  # the container has no memory for another model


class LoadedModels:
    """Loads and unloads one instance's models. ``prefix`` is the S3 URL below which their archives lie."""

    def __init__(self, machine: Machine, archives: ArchiveStore, prefix: str) -> None:
        self._machine, self._archives = machine, archives
        self._prefix = prefix.rstrip("/")
        #: From the caller's name of a model to the container's, the least recently used first.
        self._loaded: OrderedDict[str, str] = OrderedDict()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()

    @property
    def loaded(self) -> list[str]:
        """The names that callers use, the least recently used first."""
        with self._lock:
            return list(self._loaded)

    def invoke(self, target: str, send: Callable[[str], requests.Response]) -> requests.Response:
        """Load ``target`` if need be, and return the response to the request; to the load, if that fails."""
        while True:
            failed_load = self._ensure_loaded(target)
            if failed_load is not None:
                return failed_load
            response = send(f"/models/{self._container_name(target)}/invoke")
            if response.status_code != INSUFFICIENT_STORAGE or not self._evict(target):
                return response
            response.close()

    def _ensure_loaded(self, target: str) -> requests.Response | None:
        """Load a model unless it is loaded; return the container's response if that fails.

        A lock for each model makes sure that no model is loaded twice at once.
        """
        with self._locks[target]:
            while True:
                with self._lock:
                    if target in self._loaded:
                        self._loaded.move_to_end(target)
                        return None
                response = self._request_load(target)
                if response.status_code == 200:
                    with self._lock:
                        self._loaded[target] = self._container_name(target)
                elif response.status_code != INSUFFICIENT_STORAGE or not self._evict(target):
                    return response

    def _request_load(self, target: str) -> requests.Response:
        url = f"{self._prefix}/{target.lstrip('/')}"
        try:
            folder = self._archives.unpack_into(url, self._machine.archives_folder)
        except ArchiveUnavailable as error:
            raise validation_error(str(error)) from None
        folder_inside = (
            f"{self._machine.archives_folder_inside}/{folder.relative_to(self._machine.archives_folder)}"
        )
        return requests.post(
            f"{self._machine.url}/models",
            json={"model_name": self._container_name(target), "url": folder_inside},
            headers={"X-Amzn-SageMaker-Target-Model": target},
            timeout=LOAD_TIMEOUT_S,
        )

    def _evict(self, keep: str) -> bool:
        """Unload the least recently used model other than ``keep``. Return false if there is none."""
        with self._lock:
            oldest = next((name for name in self._loaded if name != keep), None)
        if oldest is None:
            return False
        with self._locks[oldest]:
            with self._lock:
                name = self._loaded.pop(oldest, None)
            if name is not None:
                requests.delete(f"{self._machine.url}/models/{name}", timeout=LOAD_TIMEOUT_S)
                url = f"{self._prefix}/{oldest.lstrip('/')}"
                shutil.rmtree(
                    self._archives.archive_folder(url, self._machine.archives_folder), ignore_errors=True
                )
        return True

    @staticmethod
    def _container_name(target: str) -> str:
        return hashlib.sha256(target.encode()).hexdigest()[:32]
