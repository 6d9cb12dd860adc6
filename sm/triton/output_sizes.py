"""Predict how large an answer will be, so that room for it is reserved first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from sm.client.base import ModelMetadata
from sm.triton.tensors import byte_size

MAX_KEPT = 4096
#: An output whose size depends on what is in the input outgrows its place again and again: each time
#: costs a second inference, so it gets this many chances.
MAX_ATTEMPTS = 2
HEADROOM = 1.25


@dataclass
class ObservedSizes:
    """The most bytes of each output so far, and how often one was larger than expected."""

    sizes: dict[str, int] = field(default_factory=dict)
    outgrown: int = 0


class Sizes:
    """Byte sizes by kind of request: a model, a version, the outputs asked for and the inputs' shapes."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, ObservedSizes] = OrderedDict()
        self._lock = threading.Lock()

    def expected(self, kind: Hashable, metadata: ModelMetadata, batch: int) -> dict[str, int]:
        """Bytes of the outputs that can be told: of fixed shape, or seen before for such a request."""
        with self._lock:
            seen = self._seen.get(kind)
            if seen:
                self._seen.move_to_end(kind)
                return dict(seen.sizes) if seen.outgrown < MAX_ATTEMPTS else {}
        rows = max(1, batch) if metadata.max_batch_size else 1
        fixed = {name: byte_size(output.datatype, output.shape) for name, output in metadata.outputs.items()}
        return {name: size * rows for name, size in fixed.items() if size}

    def learn(self, kind: Hashable, sizes: Mapping[str, int]) -> None:
        """An answer of this kind had ``sizes``."""
        with self._lock:
            seen = self._seen.setdefault(kind, ObservedSizes())
            room = HEADROOM if seen.outgrown else 1
            for name, size in sizes.items():
                seen.sizes[name] = max(int(size * room), seen.sizes.get(name, 1))
            if len(self._seen) > MAX_KEPT:
                self._seen.popitem(last=False)

    def outgrew(self, kind: Hashable) -> None:
        """An output did not fit: what was known of this kind is wrong."""
        with self._lock:
            seen = self._seen.setdefault(kind, ObservedSizes())
            seen.sizes.clear()
            seen.outgrown += 1

    def forget(self, models: Collection[str]) -> None:
        with self._lock:
            for kind in [kind for kind in self._seen if isinstance(kind, tuple) and kind[0] in models]:
                del self._seen[kind]
