"""The reference gateway's own contract: its routes, bodies and statuses, for short names of models.

Failures have the status 500, as there. A caller's mistake, or a limit that the reference gateway does not
have, has the status that fits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from sm.client.base import Array
from sm.errors import (
    BadInput,
    CallerGone,
    Conflict,
    Forbidden,
    NotReady,
    StartError,
    TooLarge,
    TriremeError,
    UnknownModel,
    WrongPayload,
)
from sm.http import messages

from .failures import LoadFailed, NoSuchModel, NoSuchObject
from .inferring import check_version
from .loads import Loads
from .model_files import ModelFiles, read_labels
from .options import Options
from .plain import best_labels
from .repository import ModelBucket, Repository
from .short_names import ShortName
from .storage import Storage, check_key
from .tritons import Tritons

log = logging.getLogger(__name__)
Answer = tuple[int, dict[str, Any]]
#: Labels in an answer.
TOP = 5
#: Seconds between two polls of a load by another process, and for the whole load.
POLL_INTERVAL_S, LOAD_TIMEOUT_S = 0.5, 360.0
#: The caller's mistakes and this gateway's limits: these errors keep their own status.
OWN_STATUS = (BadInput, Forbidden, NoSuchModel, TooLarge)


class ReferenceApi:
    """The API of one process, as :class:`~chalicelib.service.OwnApi` is."""

    def __init__(self, options: Options, storage: Storage, tritons: Tritons, folder: Path) -> None:
        self._options, self._storage, self._tritons = options, storage, tritons
        self._names: Mapping[str, ShortName] = options.short_names or {}
        self._bucket = ModelBucket(storage, options.models)
        self._files = ModelFiles(self._bucket, folder)
        self._repository = Repository(options.repository, self._bucket) if options.repository else None
        self._loads = Loads()
        #: Models that have answered a request.
        self._served: set[str] = set()

    def health(self) -> Answer:
        """Return 200 if one Triton is live, even if its models are not ready."""
        states = self._tritons.server_states(live=True)
        if any(not state.reason for state in states):
            return 200, {"status": "healthy"}
        return 503, {"status": "unhealthy", "error": states[0].reason}

    def models(self) -> Answer:
        try:
            if not self._options.bucket:
                return 200, {"status": "success", "models": list(self._tritons.ready_versions())}
            return 200, {
                "status": "success",
                "available_models_in_s3": self._bucket.names(),
                "loaded_models_in_triton": list(self._tritons.ready_versions()),
            }
        except TriremeError as error:
            return 500, {"status": "error", "message": error.sentence}

    def load(self, short: str) -> Answer:
        """Load the model again, from the bucket if Triton's repository is a folder."""
        model = self._names.get(short)
        if model is None:
            return 400, {"error": f"Model {short[:200]} not supported"}
        try:
            self._loads.share(model.name, lambda: self._load_again(model.name))
        except CallerGone:
            raise
        except TriremeError as error:
            return 500, {"status": "error", "message": f"Failed to load model into Triton: {error.sentence}"}
        return 200, {"status": "success", "message": f"Model {short} loaded successfully"}

    def infer(self, short: str, body: bytes, version: str, _request_id: str, _content_type: str) -> Answer:
        """Run the model on the picture in the bucket; without a bucket, on random numbers."""
        model = self._names.get(short)
        if model is None:
            available = list(self._names)
            message = f"Model {short[:200]} not supported. Available models: {available}"
            return 400, {"error": message}
        if not self._options.bucket:
            return self._to_answer(short, lambda: self._infer_random(model, body, version))
        return self._to_answer(short, lambda: self._infer_object(short, model, body, version))

    def infer_default(self, body: bytes) -> Answer:
        """Run the first model on random numbers, as a test of the whole path; the body is ignored."""
        short, model = next(iter(self._names.items()))
        return self._to_answer(short, lambda: self._infer_random(model, body, ""))

    def _infer_random(self, model: ShortName, body: bytes, version: str) -> Answer:
        self._check_size(body)
        numbers = np.random.default_rng().random(model.input_shape, np.float32)
        return 200, {"status": "success", "output": to_json(self._output(model, numbers, version))}

    def is_prepared(self, short: str) -> bool:
        """True if a request does not have to wait for its model."""
        model = self._names.get(short) if short else next(iter(self._names.values()))
        return model is None or model.name in self._served

    def _to_answer(self, short: str, infer: Callable[[], Answer]) -> Answer:
        try:
            return infer()
        except CallerGone:
            raise
        except NoSuchObject as error:
            return 404, {"error": f"Failed to retrieve image from S3: {error.sentence}"}
        except OWN_STATUS as error:
            return error.status, {"error": error.sentence}
        except TriremeError as error:
            log.warning("%s", error.sentence, extra={"model": short})
            return 500, {"status": "error", "model": short, "message": error.sentence}
        except Exception as error:
            log.exception("unexpected error", extra={"model": short})
            message = f"unexpected {type(error).__name__}"
            return 500, {"status": "error", "model": short, "message": message}

    def _infer_object(self, short: str, model: ShortName, body: bytes, version: str) -> Answer:
        self._check_size(body)
        members = messages.parse_json(body)
        key = members.get("s3_key") if isinstance(members, dict) else None
        if not key:
            return 400, {"error": "No S3 key provided"}
        key = check_key(key, self._options.inputs)
        content = self._storage.get(key).body
        output = self._output(model, self._picture(model, content), version)
        labels = read_labels(self._files.fetch(model.name))
        rows = best_labels(labels, output, TOP)
        predictions = [{"label": row["label"], "score": row["score"]} for row in rows] or to_json(output)
        answer = {"status": "success", "model": short, "predictions": predictions}
        place = f"{self._options.results}{key}_{short}_inference.json"
        self._storage.put(place, orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))
        return 200, {**answer, "result_s3_key": place}

    def _check_size(self, body: bytes) -> None:
        if len(body) > self._options.max_body:
            raise TooLarge(f"the body is larger than {self._options.max_body:,} bytes")

    def _picture(self, model: ShortName, content: bytes) -> Array:
        """Turn the picture into the model's input. Another file is a 500, as in the reference."""
        from sm.client.images import decode
        from sm.client.preprocessing import Preprocessing

        try:
            pixels = decode(content)
        except BadInput as error:
            raise TriremeError(f"the object is not a picture: {error.sentence}") from None
        if model.preprocessing == "squash":
            return squash(pixels, model.input_shape[2], model.input_shape[3])
        try:
            described = Preprocessing.read(self._files.fetch(model.name) / "preprocess.json")
        except StartError as error:
            log.error("%s", error)
            sentence = f"preprocess.json of {model.name!r} cannot be used; the log says why"
            raise TriremeError(sentence) from None
        return described(pixels)[None]

    def _output(self, model: ShortName, tensor: Array, version: str) -> Array:
        """Return the model's output; load the model first if needed, once for all waiting requests."""
        try:
            check_version(version)
        except WrongPayload as error:
            raise BadInput(error.sentence) from None
        try:
            output = self._infer(model, tensor, version)
        except (UnknownModel, NotReady):
            versions = self._tritons.ready_versions().get(model.name, ())
            if version and versions and version not in versions:
                listed = ", ".join(versions)
                raise NoSuchModel(f"no version {version} of this model; there are: {listed}") from None
            self._loads.share(model.name, lambda: self._load_missing(model.name))
            output = self._infer(model, tensor, version)
        self._served.add(model.name)
        return output

    def _infer(self, model: ShortName, tensor: Array, version: str) -> Array:
        inputs, outputs = {model.input_name: tensor}, [model.output_name]
        try:
            answer = self._tritons.transport.infer(model.name, inputs, version=version, outputs=outputs)
        except BadInput as error:
            raise TriremeError(f"Triton refuses the input: {error.sentence}") from None
        return answer[model.output_name]

    def _load_missing(self, name: str) -> None:
        """Load a model into each Triton that does not have it."""
        with self._claim(name):
            missing = self._tritons.servers_without(name)
            if not missing:
                return
            if self._repository and not self._repository.has(name):
                self._repository.copy(name)
            self._tritons.load(name, missing, LOAD_TIMEOUT_S)
            self._files.forget(name)

    def _load_again(self, name: str) -> None:
        with self._claim(name):
            if self._repository:
                self._repository.copy(name)
            self._tritons.load(name, seconds=LOAD_TIMEOUT_S)
            self._files.forget(name)

    @contextmanager
    def _claim(self, name: str) -> Iterator[None]:
        """Wait until no other process loads the model, if the processes share a repository folder."""
        if self._repository is None:
            yield
            return
        end = time.monotonic() + LOAD_TIMEOUT_S
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(self._repository.claim(name))
                    break
                except Conflict:
                    if time.monotonic() > end:
                        raise LoadFailed(f"another process is still loading {name!r}") from None
                time.sleep(POLL_INTERVAL_S)
            yield


def squash(pixels: Array, height: int, width: int) -> Array:
    """Resize the picture without keeping its aspect ratio: [1, 3, height, width], 0 to 1."""
    from PIL import Image

    resized = np.asarray(Image.fromarray(pixels).resize((width, height)), np.float32)
    return np.ascontiguousarray(resized.transpose(2, 0, 1)[None]) / np.float32(255.0)


def to_json(output: Array) -> object:
    """Convert an array to nested lists."""
    if output.dtype != np.object_:
        return output.tolist()
    texts = [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in output.ravel()]
    return np.array(texts, dtype=np.object_).reshape(output.shape).tolist()
