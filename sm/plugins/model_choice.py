"""Choose the Triton model of a client: one that names the client, its own name, or an alias."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from sm.client.base import TensorClient, Triton
from sm.errors import StartError, UnknownModel
from sm.repository import config_files

#: The parameter in a model's ``config.pbtxt`` that names the client.
PARAMETER = "trireme_client"


def choose_model(client: TensorClient, repository: Path, is_callable: Callable[[str], bool]) -> str:
    """Choose the model of ``repository`` that a client calls; the client's own name if there is none.

    Args:
        is_callable: Returns True if a model of a name can be called.

    Raises:
        StartError: Two models name the client.
    """
    models = sorted(find_models_naming(client.name, repository))
    if len(models) > 1:
        raise StartError(
            f"{' and '.join(models)} both have the parameter {PARAMETER} {client.name!r} in config.pbtxt: "
            "remove it from all but one."
        )
    if models:
        return models[0]
    return next((name for name in (client.model, *client.aliases) if is_callable(name)), client.model)


def find_models_naming(client: str, repository: Path) -> Iterator[str]:
    """Yield the models in a repository whose ``config.pbtxt`` names the client."""
    for path in repository.glob("*/config.pbtxt"):
        try:
            parameters = config_files.read(path).parameters
        except ValueError:
            continue  # Triton reports what is wrong with it.
        if PARAMETER in parameters and parameters[PARAMETER].string_value == client:
            yield path.parent.name


def is_served(triton: Triton, name: str) -> bool:
    """True if Triton has a model of that name."""
    try:
        triton.metadata(name)
    except UnknownModel:
        return False
    return True
