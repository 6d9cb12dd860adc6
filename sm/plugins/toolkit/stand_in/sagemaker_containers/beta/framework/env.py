"""Values of the environment variables."""

from __future__ import annotations

from sagemaker_inference.environment import Environment, code_dir, model_dir

__all__ = ["ServingEnv", "code_dir", "model_dir"]


class ServingEnv(Environment):  # type: ignore[misc]  # a class without types to mypy, which does not know its place
    """The same under the older toolkit's name."""
