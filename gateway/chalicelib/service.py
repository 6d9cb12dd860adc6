"""The API of the routes, without HTTP."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sm.errors import NotFound, NotReady, TooLarge, TriremeError, UnknownModel
from sm.http.messages import JSON
from sm.invocation import Invocation, current, running

from .cache import Cache
from .clients import Clients
from .failures import LoadFailed, NoSuchModel
from .inferring import Inference, read, read_any
from .loads import Loads
from .options import Options
from .reference import ReferenceApi
from .repository import ModelBucket, Repository, check_name
from .storage import NoStorage, Storage
from .tritons import Tritons

#: Seconds for listing the bucket when a model is unknown; the list is only a hint.
HINT_TIMEOUT_S = 2.0
#: Seconds for loading a model again that a Triton has lost.
LOAD_TIMEOUT_S = 360.0


class Service:
    """The gRPC channel, clients and cache of one process, kept across invocations."""

    def __init__(self, options: Options, storage: Storage, tritons: Tritons) -> None:
        self._options, self._tritons = options, tritons
        self._bucket = ModelBucket(storage, options.models)
        self._repository = Repository(options.repository, self._bucket) if options.repository else None
        self._clients = Clients(options.clients, tritons.transport, self._bucket, create_files_folder())
        self._cache = Cache(int(options.cache_mb * 2**20))
        self._loads = Loads()
        self._inference = Inference(storage, options.results, self._cache)

    def health(self) -> tuple[int, dict[str, Any]]:
        """Return 200 if at least one Triton is ready, else 503, with the reasons of the others."""
        states = self._tritons.server_states()
        tritons = {state.address: state.reason or "ready" for state in states}
        if any(not state.reason for state in states):
            return 200, {"status": "healthy", "tritons": tritons}
        return 503, {"status": "unhealthy", "reason": states[0].reason, "tritons": tritons}

    def models(self) -> dict[str, Any]:
        if not self._options.bucket:
            return {"status": "success", "models": list(self._tritons.ready_versions())}
        return {"bucket": self._bucket.names(), "loaded": self._tritons.ready_versions()}

    def load(self, model: str) -> dict[str, Any]:
        """Copy a model from the bucket to the repository, and load it into every Triton."""
        check_name(model)
        if self._repository:
            self._repository.claim_and_copy(model)
        elif self._options.bucket:
            self._bucket.files(model)
        try:
            self._tritons.load(model)
        finally:
            # Some of the Tritons may have loaded it, even after an error.
            self._clients.forget(model)
            self._cache.clear()
        versions = self._tritons.ready_versions().get(model, [])
        return {"status": "loaded", "model": model, "versions": versions}

    def has_client(self, model: str) -> bool:
        """True if the client of a model is loaded, with its files."""
        return self._clients.has(model)

    def infer(
        self, model: str, body: bytes, version: str, request_id: str, content_type: str = JSON
    ) -> dict[str, Any]:
        check_name(model)
        if len(body) > self._options.max_body:
            raise TooLarge(f"the body is larger than {self._options.max_body:,} bytes")
        if self._options.bucket:
            inputs = read(body, version, self._options.inputs)
        else:
            inputs = read_any(body, content_type, version)
        was_served = self._clients.has(model)
        try:
            return self._inference.run(self._clients.get(model), inputs, request_id)
        except UnknownModel:
            if not (was_served and self._load_missing(model)):
                raise self._unknown(model, inputs.version) from None
        except NotReady:
            # Triton calls a version that it does not have, and a model that it has lost, unavailable.
            if not (was_served and self._load_missing(model)):
                if not self._lacks_version(model, inputs.version):
                    raise
                raise self._unknown(model, inputs.version) from None
        return self._inference.run(self._clients.get(model), inputs, request_id)

    def _load_missing(self, model: str) -> bool:
        """Load a served client's models again into Tritons that came back without them; True if it helped."""
        is_back = False
        for name in self._clients.get(model).required_models() or (model,):
            missing = self._tritons.servers_without(name)
            if missing:
                try:
                    self._loads.share(name, partial(self._tritons.load, name, missing, LOAD_TIMEOUT_S))
                except LoadFailed:
                    return False
                is_back = True
        return is_back

    def _lacks_version(self, model: str, version: str) -> bool:
        versions = self._tritons.ready_versions().get(model, ())
        return bool(version and versions) and version not in versions

    def _unknown(self, model: str, version: str) -> NoSuchModel:
        loaded = self._tritons.ready_versions()
        listed = ", ".join(loaded) or "none"
        if version and model in loaded:
            versions = loaded[model]
            return NoSuchModel(
                f"no version {version} of model {model!r}; there are: {', '.join(versions)}",
                versions=versions,
            )
        in_bucket: list[str] = []
        # Only a hint, so S3 may be down or slow.
        with contextlib.suppress(TriremeError), _limit_deadline(HINT_TIMEOUT_S):
            in_bucket = self._bucket.names()
        if model in in_bucket:
            sentence = (
                f"the model {model!r} is not loaded: POST /load_model/{model} loads it; loaded are: {listed}"
            )
        else:
            sentence = f"no model {model!r}; loaded are: {listed}"
        return NoSuchModel(sentence, models=list(loaded))


Answer = tuple[int, dict[str, Any]]


class Api(Protocol):
    """The calls of the routes. Each returns a status and a body, or raises a :class:`TriremeError`."""

    def health(self) -> Answer: ...

    def models(self) -> Answer: ...

    def load(self, model: str) -> Answer: ...

    def infer(
        self, model: str, body: bytes, version: str, request_id: str, content_type: str, /
    ) -> Answer: ...

    def infer_default(self, body: bytes, /) -> Answer:
        """Answer the route without a model's name."""
        ...

    def is_prepared(self, model: str) -> bool:
        """True if a request for the model, or for the default one, has nothing to wait for."""
        ...


class OwnApi:
    """This gateway's own contract."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def health(self) -> Answer:
        return self._service.health()

    def models(self) -> Answer:
        return 200, self._service.models()

    def load(self, model: str) -> Answer:
        return 200, self._service.load(model)

    def infer(self, model: str, body: bytes, version: str, request_id: str, content_type: str) -> Answer:
        return 200, self._service.infer(model, body, version, request_id, content_type)

    def infer_default(self, _body: bytes) -> Answer:
        raise NotFound("no such path: /infer; the path names the model: /infer/MODEL")

    def is_prepared(self, model: str) -> bool:
        return self._service.has_client(model)


def open_api(options: Options) -> Api:
    """Create the API that the options select, with the real S3 and the real Tritons."""
    peers = options.peers
    storage = Storage(options.bucket, options.max_body) if options.bucket else NoStorage()
    tritons = Tritons(peers, options.timeout)
    if options.short_names:
        return ReferenceApi(options, storage, tritons, create_files_folder())
    return OwnApi(Service(options, storage, tritons))


def create_files_folder() -> Path:
    """Create a folder for the files beside the models; it is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="trireme-gateway-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _limit_deadline(seconds: float) -> contextlib.AbstractContextManager[Invocation]:
    """Set the deadline to ``seconds`` from now unless the request's is earlier."""
    limit, at = current(), time.monotonic() + seconds
    if limit is None:
        return running(Invocation(at))
    return running(Invocation(min(at, limit.at), limit.is_disconnected, limit.request_id, limit.slot_model))
