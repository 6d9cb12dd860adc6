"""Which models may answer from Triton's response cache.

Its key is the model's name, its version, and the names and bytes of the inputs (``TritonCache::Hash`` in
src/cache_manager.cc of https://github.com/triton-inference-server/core). Two requests that differ in anything
else get one answer. So a model whose requests may differ so is served without the cache. And so is all but an
ensemble: Triton 2.51 keeps the failure of any other model as an answer without outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from sm.repository.ensembles import is_ensemble, reachable, steps
from sm.repository.models import Model


def refused(inspected: Sequence[Model], has_cache: bool = True) -> dict[str, str]:
    """Return the models that ask for the cache and do not get it, each with the reason."""
    parts = {step for model in inspected for step in steps(model)}
    by_name = {model.name: model for model in inspected}
    reasons = {
        model.name: _why_not(model, by_name, model.name in parts) if has_cache else "no setting starts it"
        for model in inspected
        if model.config and model.config.response_cache.enable
    }
    return {name: reason for name, reason in reasons.items() if reason}


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
    changed = copy.deepcopy(config)
    changed.ClearField("response_cache")
    return changed


def _why_not(model: Model, by_name: Mapping[str, Model], is_step: bool) -> str:
    config: Any = model.config
    if not is_ensemble(model):
        return "Triton would give its failures to later callers: let an ensemble with it as its step ask"
    if any(map(_keeps_state, _parts(model, by_name))):
        return "Triton has none for sequences and for decoupled models"
    if not config.input or not config.output:
        return "its config.pbtxt does not list its inputs and outputs"
    if not _bytes_tell_shapes(config):
        return "its key has the bytes of inputs and not their shapes, which may differ for the same bytes"
    if is_step and len(config.output) > 1:
        return "its key does not say for which of its outputs an ensemble asks"
    return ""


def _parts(model: Model, by_name: Mapping[str, Model]) -> list[Model]:
    """Return the models below an ensemble, also those of ensembles in it."""
    calls = {name: steps(each) for name, each in by_name.items()}
    return [by_name[name] for name in reachable(calls, model.name) if name in by_name]


def _keeps_state(model: Model) -> bool:
    config = model.config
    return bool(
        config and (config.HasField("sequence_batching") or config.model_transaction_policy.decoupled)
    )


def _bytes_tell_shapes(config: Any) -> bool:
    """True if the same bytes have the same shapes: at most one size of each input is open."""
    open_sizes = [sum(size < 0 for size in tensor.dims) for tensor in config.input]
    # An input without an open size of its own tells the size of the batch.
    is_batch_known = config.max_batch_size == 0 or any(
        count == 0 and not tensor.optional for count, tensor in zip(open_sizes, config.input, strict=True)
    )
    return is_batch_known and max(open_sizes) <= 1
