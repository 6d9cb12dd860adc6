"""One packed environment for all tests of this folder: making it takes seconds."""

from tests.integration.environments.packed_environments import packed_environment

__all__ = ["packed_environment"]
