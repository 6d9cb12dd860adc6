"""Codecs, errors and answers under the older toolkit's names."""

from . import content_types, encoders, env, errors, modules, transformer, worker

__all__ = ["content_types", "encoders", "env", "errors", "modules", "transformer", "worker"]
