"""Predict the bytes of an answer's outputs, to reserve room for them in a region."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from sm.client.base import ModelMetadata
from sm.triton.tensors import byte_size

#: Kinds of requests that are remembered; the least recently used is forgotten.
MAX_REQUEST_KINDS = 4096
#: After so many wrong predictions, a kind's outputs are sent as bytes: each one costs a second inference.
MAX_OVERFLOWS = 2
#: Room for an output that was larger than predicted before.
HEADROOM_FACTOR = 1.25


@dataclass
class ObservedSizes:
    """The largest bytes of each output so far, and how often an output was larger than predicted."""

    sizes: dict[str, int] = field(default_factory=dict)
    overflows: int = 0


class OutputSizes:
    """Bytes of outputs by kind of request: model, version, requested outputs, and shapes of the inputs."""

    def __init__(self) -> None:
        self._observed: OrderedDict[Hashable, ObservedSizes] = OrderedDict()
        self._lock = threading.Lock()

    def predict(self, kind: Hashable, metadata: ModelMetadata, batch: int) -> dict[str, int]:
        """Return the bytes of each output: as in earlier requests of this kind, or by its fixed shape."""
        with self._lock:
            observed = self._observed.get(kind)
            if observed:
                self._observed.move_to_end(kind)
                return dict(observed.sizes) if observed.overflows < MAX_OVERFLOWS else {}
        rows = max(1, batch) if metadata.max_batch_size else 1
        fixed = {name: byte_size(output.datatype, output.shape) for name, output in metadata.outputs.items()}
        return {name: size * rows for name, size in fixed.items() if size}

    def learn(self, kind: Hashable, sizes: Mapping[str, int]) -> None:
        """Record the ``sizes`` of an answer to a request of this kind."""
        with self._lock:
            observed = self._observed.setdefault(kind, ObservedSizes())
            factor = HEADROOM_FACTOR if observed.overflows else 1
            for name, size in sizes.items():
                observed.sizes[name] = max(int(size * factor), observed.sizes.get(name, 1))
            if len(self._observed) > MAX_REQUEST_KINDS:
                self._observed.popitem(last=False)

    def record_overflow(self, kind: Hashable) -> None:
        """Record that an output was larger than predicted."""
        with self._lock:
            observed = self._observed.setdefault(kind, ObservedSizes())
            observed.sizes.clear()
            observed.overflows += 1

    def forget(self, models: Collection[str]) -> None:
        """Drop what was recorded for these models."""
        with self._lock:
            for kind in [kind for kind in self._observed if isinstance(kind, tuple) and kind[0] in models]:
                del self._observed[kind]
