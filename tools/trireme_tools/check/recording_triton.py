"""Record a client's calls to Triton: inputs, times, and answers for a replay."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from threading import Lock

import numpy as np

from sm.client.base import Array, ModelMetadata, Triton
from sm.errors import TriremeError
from sm.triton.tensors import STRINGS, datatype, input_mismatches


class RecordingTriton:
    """A proxy between a client and the real Triton."""

    def __init__(self, triton: Triton) -> None:
        self._triton = triton
        self._lock = Lock()
        self._recorded: dict[Hashable, list[dict[str, Array]]] = {}
        #: Sentences about inputs that do not fit their models, in order.
        self.faults: dict[str, None] = {}
        #: Seconds that calls have taken so far.
        self.seconds = 0.0
        #: True if repeated calls get the recorded answers.
        self.replaying = False

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        version: str = "",
        outputs: Sequence[str] | None = None,
    ) -> dict[str, Array]:
        """See :meth:`sm.client.base.Triton.infer`."""

        def ask() -> Generator[dict[str, Array], None, None]:
            yield self._triton.infer(model, inputs, version=version, outputs=outputs)

        with self._timed():
            self._check_inputs(model, version, inputs)
            (answer,) = self._answers(("infer", model, version, outputs), inputs, ask)
        return answer

    def stream(
        self,
        model: str,
        inputs: Mapping[str, Array],
        *,
        version: str = "",
        outputs: Sequence[str] | None = None,
    ) -> Generator[dict[str, Array], None, None]:
        """See :meth:`sm.client.base.Triton.stream`. The recorded time is what the client waits for the
        answers.
        """
        self._check_inputs(model, version, inputs)
        answers = self._answers(
            ("stream", model, version, outputs),
            inputs,
            lambda: self._triton.stream(model, inputs, version=version, outputs=outputs),
        )
        with closing(answers):
            while True:
                with self._timed():
                    answer = next(answers, None)
                if answer is None:
                    return
                yield answer

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """See :meth:`sm.client.base.Triton.metadata`."""
        return self._triton.metadata(model, version)

    def _answers(
        self,
        call: tuple[str, str, str, Sequence[str] | None],
        inputs: Mapping[str, Array],
        ask: Callable[[], Generator[dict[str, Array], None, None]],
    ) -> Generator[dict[str, Array], None, None]:
        """Yield Triton's answers; in a replay, those to the same ``call`` before."""
        if not self.replaying:
            yield from ask()
            return
        method, model, version, outputs = call
        key = (method, model, version, tuple(outputs or ()), *map(_fingerprint, inputs.items()))
        if key not in self._recorded:
            # Copies, as views would keep the shared memory in use.
            self._recorded[key] = [_copy(answer) for answer in ask()]
        yield from map(_copy, self._recorded[key])

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds += time.perf_counter() - began

    def _check_inputs(self, model: str, version: str, inputs: Mapping[str, Array]) -> None:
        try:
            metadata = self._triton.metadata(model, version)
        except TriremeError:
            return  # the call itself will say so
        self.faults.update((mismatch.sentence, None) for mismatch in input_mismatches(metadata, inputs))


def _copy(answer: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in answer.items()}


def _fingerprint(item: tuple[str, Array]) -> Hashable:
    name, array = item[0], np.ascontiguousarray(item[1])
    if datatype(array) == STRINGS:
        return name, array.shape, tuple(array.ravel().tolist())
    return name, array.shape, array.dtype.str, zlib.crc32(array.data.cast("B") if array.size else b"")
