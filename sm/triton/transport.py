"""Inference on the local Triton: calls over gRPC, large tensors through shared memory.

An output may be a view of shared memory. That memory is reused only when the last view is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from sm.client.base import Array, ModelMetadata, TensorMetadata
from sm.errors import (
    BadInput,
    CallerGone,
    DeadlinePassed,
    Interrupted,
    ModelFailed,
    NotReady,
    Refused,
    StreamStalled,
    TriremeError,
    UnknownModel,
)
from sm.invocation import Invocation, Ticket, current
from sm.metrics import SHARED_LIMIT, SHARED_MEMORY_FALLBACKS, TENSORS
from sm.run_state import SHARED_MEMORY, Box
from sm.settings import Settings
from sm.triton.calls import Calls
from sm.triton.channel import Channel
from sm.triton.inference_plan import REQUEST_TOKEN, InferencePlan, Plans, sizes_of
from sm.triton.region_pool import RegionPool
from sm.triton.tensors import explain_refusal
from sm.triton.triton_errors import Failed

log = logging.getLogger(__name__)

#: Bytes of a request's tensors above which shared memory is faster than the message.
MIN_SHARED_BYTES = 2**16
#: Bits of a request's first token. It is random, so that workers do not share tokens.
TOKEN_BITS = 62
#: Seconds without an answer after which a stream with tokens ends, if a process of its model is gone.
MAX_SILENCE_S = 5.0


class Transport:
    """The :class:`~sm.client.base.Triton` of a worker, for all its threads. Create it after the fork.

    Args:
        settings: Time-outs.
        box: Triton's ports, and the bytes of shared memory for this worker; 0: it is off.
        folder: For shared memory.
        channel: To remote Tritons; then the box has no shared memory.
        calls: Those of the process.
    """

    def __init__(
        self,
        settings: Settings,
        box: Box,
        folder: Path = SHARED_MEMORY,
        channel: Channel | None = None,
        calls: Calls | None = None,
    ) -> None:
        self._channel = channel or Channel(box.grpc_port, settings.timeout, box.grpc_keys)
        self._min_shared_bytes = MIN_SHARED_BYTES if box.shared_bytes else None
        #: A model whose folder is gone was unloaded. None if Triton is not the box's own.
        self._served_folder = box.served if box.generation_file else None
        self._calls = calls or Calls.of(box, settings.wait_seconds)
        self._guard = self._calls.guard
        self._tokens = itertools.count(secrets.randbits(TOKEN_BITS))
        SHARED_LIMIT.set(box.shared_bytes if self._min_shared_bytes else 0)
        self._pool = RegionPool(self._channel, box.shared_bytes, f"trireme-{box.id}-{os.getpid()}-", folder)
        self._plans = Plans(self._calls.has_state)
        self._metadata: dict[tuple[str, str], ModelMetadata] = {}
        #: Models and versions that Triton has served. If Triton does not know them now, it is loading them.
        self._served: set[tuple[str, str]] = set()
        self._shared_memory_count = TENSORS.labels("shared_memory")._value
        self._message_count = TENSORS.labels("grpc")._value
        self._pid = os.getpid()
        atexit.register(self.close)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        version: str = "",
        outputs: Sequence[str] | None = None,
    ) -> dict[str, Array]:
        """Run ``model``; see :meth:`sm.client.base.Triton.infer`. Raises the classes of :mod:`sm.errors`."""
        invocation = current()
        make = partial(self._plan, invocation, model, inputs, version, outputs)
        return self._calls.run(model, partial(self._infer, make), invocation)

    def _infer(self, make: Callable[[], InferencePlan], ticket: Ticket) -> dict[str, Array]:
        plan, began = make(), time.monotonic()
        try:
            if self._min_shared_bytes is not None and plan.size >= self._min_shared_bytes:
                answer = self._infer_through_region(plan, ticket)
                if answer is not None:
                    return answer
                SHARED_MEMORY_FALLBACKS.inc()
            return self._infer_by_message(plan, ticket)
        except Failed as failure:
            known = _judge(failure, plan, began)
            self._report(known, plan, ticket)
            raise self._explain(known, plan) from None

    def stream(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        version: str = "",
        outputs: Sequence[str] | None = None,
    ) -> Generator[dict[str, Array], None, None]:
        """Yield each answer of ``model`` as bytes; see :meth:`sm.client.base.Triton.stream`."""
        invocation = current()
        make = partial(self._plan, invocation, model, inputs, version, outputs)

        def begin(ticket: Ticket) -> tuple[list[dict[str, Array]], Generator[dict[str, Array]]]:
            """Return the first answer, if any, and the others. A stream that has begun is not repeated."""
            answers = self._stream(make(), ticket)
            return [*itertools.islice(answers, 1)], answers

        first, others = self._calls.run(model, begin, invocation)
        with contextlib.closing(others):
            yield from first
            yield from others

    def _stream(self, plan: InferencePlan, ticket: Ticket) -> Generator[dict[str, Array], None, None]:
        self._message_count.inc()
        began = last_answer = time.monotonic()
        identifies = bool(plan.token) and len(ticket.generations) == 1

        def check() -> None:
            """End the stream if its process is gone: Triton never does."""
            # Another instance of a model may be gone. An answer with a token may still come from this one.
            if not identifies or time.monotonic() - last_answer > MAX_SILENCE_S:
                self._guard.confirm_delivery((ticket,))

        try:
            with contextlib.closing(self._channel.stream(plan.request(), check)) as answers:
                for answer in answers:
                    last_answer = time.monotonic()
                    # The last answer may be empty.
                    if answer.outputs:
                        self._accept(plan, answer, ticket)
                        self._guard.note_part(plan.model)
                        yield plan.read(answer)
        except Failed as failure:
            known = _judge(failure, plan, began)
            self._report(known, plan, ticket, streamed=True)
            raise self._explain(known, plan) from None
        except (GeneratorExit, StreamStalled):
            self._guard.report_abandoned(ticket, plan.model, plan.invocation, streamed=True)
            raise

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Describe a model. The description is cached until Triton restarts."""
        known = self._metadata.get((model, version))
        return known or self._calls.run(model, lambda _: self._describe(model, version), current())

    def _describe(self, model: str, version: str) -> ModelMetadata:
        metadata = self._metadata.get((model, version))
        if metadata is None:
            metadata = self._metadata[model, version] = self._fetch_metadata(model, version)
            self._served.add((model, version))
        return metadata

    def forget(self, models: Collection[str]) -> None:
        """Drop what is known of these models: other models may have their names now."""
        for model_key in [key for key in list(self._served) if key[0] in models]:
            self._metadata.pop(model_key, None)
            self._served.discard(model_key)
        self._plans.forget(models)

    def connect(self, seconds: float) -> None:
        """Wait up to ``seconds`` for Triton. If it does not answer by then, calls raise."""
        self._channel.connect(seconds)

    def ready_models(self) -> dict[str, tuple[str, ...]]:
        """Return the models that Triton serves now, each with its versions."""
        ready: dict[str, tuple[str, ...]] = {}
        try:
            index = self._channel.call("RepositoryIndex", pb.RepositoryIndexRequest(ready=True))
        except Failed as failure:
            raise failure.error from None
        for row in index.models:
            ready[row.name] = (*ready.get(row.name, ()), row.version)
        return ready

    def rest(self) -> None:
        """Close what wakes up an idle worker; the next call opens it again."""
        self._channel.rest()

    def close(self) -> None:
        """Remove the shared memory and close the connection. Arrays that are still referenced stay valid."""
        atexit.unregister(self.close)
        if os.getpid() == self._pid:
            self._pool.close()
            self._channel.close()

    def _plan(
        self,
        invocation: Invocation | None,
        model: str,
        inputs: Mapping[str, Array],
        version: str,
        outputs: Sequence[str] | None,
    ) -> InferencePlan:
        metadata = self._metadata.get((model, version)) or self._describe(model, version)
        return self._plans.make(metadata, version, inputs, outputs, next(self._tokens), invocation)

    def _accept(self, plan: InferencePlan, response: Any, ticket: Ticket) -> None:
        """Accept an answer. Raises :class:`Interrupted` if it may belong to another request."""
        if plan.token and not plan.is_answered_by(response):
            raise self._guard.report_mismatch(ticket, plan.model)
        if len(plan.outputs) + bool(plan.token) < len(response.outputs):
            # Outputs that had no room in the region, because their sizes were unknown.
            plan.output_sizes.learn(sizes_of(response))
        # A token says nothing about the models that the model calls.
        identified = bool(plan.token) and len(ticket.generations) == 1
        self._guard.confirm(ticket, identified, plan.invocation)
        if plan.invocation and not identified:
            plan.invocation.tickets.add(ticket)

    def _infer_through_region(self, plan: InferencePlan, ticket: Ticket) -> dict[str, Array] | None:
        """Infer through a region; None if there is none, or if an output did not fit into it.

        Raises:
            NotReady: Triton was restarted and refused the region unread. The next call registers it again.
        """
        lease = self._pool.lease(plan.size)
        if lease is None:
            return None
        plan.write(lease.memory)
        try:
            interrupt = partial(self._calls.check, ticket, plan.invocation)
            response = self._channel.infer(plan.request(lease.region), interrupt)
            self._accept(plan, response, ticket)
        except Failed as failure:
            # Nobody else knows the region's name.
            if failure.lost_region and lease.region.name in failure.text:
                self._pool.forget_registrations(lease)
                self._metadata.clear()
                raise failure.error from None
            if not failure.finished:
                self._pool.retire(lease)
            if not failure.overflowed:
                raise
            plan.output_sizes.record_overflow()
            return None
        except BaseException:
            # Triton may still write to the region.
            self._pool.retire(lease)
            raise
        self._shared_memory_count.inc()
        return plan.read(response, lease.memory)

    def _infer_by_message(self, plan: InferencePlan, ticket: Ticket) -> dict[str, Array]:
        response = self._channel.infer(plan.request(), partial(self._calls.check, ticket, plan.invocation))
        self._accept(plan, response, ticket)
        self._message_count.inc()
        return plan.read(response)

    def _fetch_metadata(self, model: str, version: str) -> ModelMetadata:
        try:
            metadata = self._channel.call(
                "ModelMetadata", pb.ModelMetadataRequest(name=model, version=version)
            )
            request = pb.ModelConfigRequest(name=model, version=version)
            config = self._channel.call("ModelConfig", request).config
        except Failed as failure:
            error = self._to_error(failure, model, version)
            # No model has been called yet.
            is_away = isinstance(error, Refused | Interrupted)
            raise NotReady(error.sentence) if is_away else error from None
        batch, outputs = config.max_batch_size, _tensors(metadata.outputs, config.max_batch_size)
        # With Triton's response cache, a right answer may have another request's token.
        identifies = outputs.pop(REQUEST_TOKEN, None) is not None and not config.response_cache.enable
        return ModelMetadata(
            model,
            tuple(metadata.versions),
            batch,
            _tensors(metadata.inputs, batch),
            outputs,
            identifies,
            config.response_cache.enable,
        )

    def _report(self, failure: Failed, plan: InferencePlan, ticket: Ticket, streamed: bool = False) -> None:
        """Tell the guard of a process that stalled, or of a call whose answer nobody reads."""
        if failure.stalled is not None:
            self._guard.report_stall(ticket, failure.stalled)
        elif failure.kind in (CallerGone, DeadlinePassed) and not failure.finished:
            self._guard.report_abandoned(ticket, plan.model, plan.invocation, streamed)

    def _explain(self, failure: Failed, plan: InferencePlan) -> TriremeError:
        """Return the error for the caller; a refused tensor is compared with what the model takes."""
        error = self._to_error(failure, plan.model, plan.version)
        if type(error) is not BadInput:
            return error
        metadata = self._describe(plan.model, plan.version)
        return explain_refusal(error, metadata, plan.arrays, plan.requested)

    def _to_error(self, failure: Failed, model: str, version: str) -> TriremeError:
        """Return the error for the caller. The model's metadata may be out of date now."""
        error = failure.error
        if isinstance(error, NotReady):
            self._metadata.clear()
        if isinstance(error, UnknownModel):
            self._metadata.pop((model, version), None)
            subject = f"version {version!r} of model {model!r}" if version else f"model {model!r}"
            was_served = (model, version) in self._served and (
                self._served_folder is None or (self._served_folder / model).is_dir()
            )
            if was_served or self._calls.comes_again(model, version):
                return Refused(f"Triton has not loaded {subject} again yet")
            return UnknownModel(f"Triton has no {subject}")
        if isinstance(error, ModelFailed):
            log.warning("%s", error.sentence)
        return error


def _judge(failure: Failed, plan: InferencePlan, began: float) -> Failed:
    """Return a failure as that of this call: a model may have quoted Triton's words."""
    failure = failure.of(plan.model, time.monotonic() - began)
    return failure.quoted() if failure.lost_region else failure


def _tensors(tensors: Sequence[Any], batch: int) -> dict[str, TensorMetadata]:
    """Return a model's inputs or outputs by name, without the batch dimension."""
    return {
        tensor.name: TensorMetadata(tensor.name, tensor.datatype, tuple(tensor.shape)[1 if batch else 0 :])
        for tensor in tensors
    }
