"""Predict the size of an answer, to reserve space for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from sm.client.base import ModelMetadata
from sm.triton.tensors import byte_size

MAX_REQUEST_KINDS = 4096
#: Attempts for an output whose size depends on the input's content: each one that is too small costs a second
#: inference.
MAX_ATTEMPTS = 2
HEADROOM_FACTOR = 1.25


@dataclass
class ObservedSizes:
    """The largest size of each output so far, and how often one was larger than predicted."""

    sizes: dict[str, int] = field(default_factory=dict)
    outgrown: int = 0


class Sizes:
    """Byte sizes by kind of request: model, version, requested outputs, and shapes of the inputs."""

    def __init__(self) -> None:
        self._observed: OrderedDict[Hashable, ObservedSizes] = OrderedDict()
        self._lock = threading.Lock()

    def expected(self, kind: Hashable, metadata: ModelMetadata, batch: int) -> dict[str, int]:
        """Return the bytes of the outputs that have a fixed shape, or that such a request had before."""
        with self._lock:
            observed = self._observed.get(kind)
            if observed:
                self._observed.move_to_end(kind)
                return dict(observed.sizes) if observed.outgrown < MAX_ATTEMPTS else {}
        rows = max(1, batch) if metadata.max_batch_size else 1
        fixed = {name: byte_size(output.datatype, output.shape) for name, output in metadata.outputs.items()}
        return {name: size * rows for name, size in fixed.items() if size}

    def learn(self, kind: Hashable, sizes: Mapping[str, int]) -> None:
        """Record the ``sizes`` of an answer to a request of this kind."""
        with self._lock:
            observed = self._observed.setdefault(kind, ObservedSizes())
            room = HEADROOM_FACTOR if observed.outgrown else 1
            for name, size in sizes.items():
                observed.sizes[name] = max(int(size * room), observed.sizes.get(name, 1))
            if len(self._observed) > MAX_REQUEST_KINDS:
                self._observed.popitem(last=False)

    def outgrew(self, kind: Hashable) -> None:
        """Record that an output did not fit."""
        with self._lock:
            observed = self._observed.setdefault(kind, ObservedSizes())
            observed.sizes.clear()
            observed.outgrown += 1

    def forget(self, models: Collection[str]) -> None:
        with self._lock:
            for kind in [kind for kind in self._observed if isinstance(kind, tuple) and kind[0] in models]:
                del self._observed[kind]
