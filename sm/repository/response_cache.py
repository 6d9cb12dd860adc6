"""Which models may answer from Triton's response cache.

Its key is the model's name, its version, and the names and bytes of the inputs (``TritonCache::Hash`` in
src/cache_manager.cc of https://github.com/triton-inference-server/core). Two requests that differ in anything
else get one answer. So a model whose requests may differ so is served without the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sm.repository.ensembles import steps
from sm.repository.models import Model


def refused(inspected: Sequence[Model], has_cache: bool = True) -> dict[str, str]:
    """Return the models that ask for the cache and do not get it, each with the reason."""
    parts = {step for model in inspected for step in steps(model)}
    reasons = {
        model.name: _why_not(model.config, model.name in parts) if has_cache else "no setting starts it"
        for model in inspected
        if model.config and model.config.response_cache.enable
    }
    return {name: reason for name, reason in reasons.items() if reason}


#: Triton 2.51 keeps the answer of a model that failed as one without outputs, and gives it to later callers.
KEPT_FAILURE = (
    "the model failed for this input before, and the response cache has kept that: send another input, or "
    "use the model without the cache"
)


def cached_outputs(model: Model) -> frozenset[str]:
    """Return the outputs of a model that has the cache, of which a request must ask for all or none.

    The cache's key does not have them: an answer with some would be given to a request for others.
    """
    config = model.config
    if config is None or not config.response_cache.enable:
        return frozenset()
    return frozenset(output.name for output in config.output)


def without(config: Any) -> Any:
    """Return a copy of a configuration that does not ask for the cache."""
    copy = type(config)()
    copy.CopyFrom(config)
    copy.ClearField("response_cache")
    return copy


def _why_not(config: Any, is_step: bool) -> str:
    # Triton does not load such a model that asks for the cache.
    if config.HasField("sequence_batching") or config.model_transaction_policy.decoupled:
        return "Triton has none for sequences and for decoupled models"
    if not config.input or not config.output:
        return "its config.pbtxt does not list its inputs and outputs"
    if not _bytes_tell_shapes(config):
        return "its key has the bytes of inputs and not their shapes, which may differ for the same bytes"
    if is_step and len(config.output) > 1:
        return "its key does not say for which of its outputs an ensemble asks"
    return ""


def _bytes_tell_shapes(config: Any) -> bool:
    """True if the same bytes have the same shapes: at most one size of each input is open."""
    open_sizes = [sum(size < 0 for size in tensor.dims) for tensor in config.input]
    # An input without an open size of its own tells the size of the batch.
    is_batch_known = config.max_batch_size == 0 or any(
        count == 0 and not tensor.optional for count, tensor in zip(open_sizes, config.input, strict=True)
    )
    return is_batch_known and max(open_sizes) <= 1
