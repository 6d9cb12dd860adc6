"""A registry of the tests" own, a cache of their own, and a small model that is built from a package."""

from tests.support.tiny_recipe import cache, fetcher, models, registry, said, tiny, waits

__all__ = ["cache", "fetcher", "models", "registry", "said", "tiny", "waits"]
