"""Check a client before it serves: compare its tensors with its model's, and set it up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sm.client.base import Client, ModelMetadata, TensorClient, TensorMetadata, Triton
from sm.client.batches import Batches
from sm.client.marks import Marks
from sm.client.own_metrics import setting_up
from sm.client.readiness import ReadinessCheck, ask
from sm.client.tensor_roles import record_shape
from sm.errors import StartError, TriremeError, UnknownModel
from sm.plugins.code_imports import loading
from sm.plugins.loading import describe_failure, plain_names
from sm.plugins.sources import ClientSource
from sm.repository.models import read_config

log = logging.getLogger(__name__)


def check(client: Client, source: ClientSource, triton: Triton) -> None:
    """Compare a client's tensors with its model's, then call its ``setup``."""
    if isinstance(client, TensorClient):
        client.model = choose_model(client, client.repository, partial(is_served, triton))
    for model in client.required_models():
        try:
            metadata = triton.metadata(model)
        except UnknownModel:
            raise ModelMissing(model) from None
        if isinstance(client, TensorClient) and model == client.model:
            for difference in differences(client, metadata):
                raise StartError(f"{source.display_path}: {difference}.")
    vars(client).setdefault("_marks", Marks())  # its __init__ may not call the base's
    try:
        with setting_up(client), loading():
            client.setup()
    except StartError as error:
        raise type(error)(f"{source.display_path}: {error}") from None
    except TriremeError as error:
        raise StartError(f"{source.display_path}: {error.sentence}") from error
    except BaseException as error:  # also a client's sys.exit() and KeyboardInterrupt
        raise StartError(f"{source.display_path}: {describe_failure(error, source.file)}") from error
    if client.takes_batches():  # a task knows it when it has read its model's files
        client._marks.batches = Batches(client)
    if client.watches_readiness():
        client._marks.readiness = client._marks.readiness or ReadinessCheck(client, client.ready)
        ask([client])


def differences(client: TensorClient, metadata: ModelMetadata) -> Iterator[str]:
    """Yield a sentence for each tensor of the client that the model lacks or has in another type or shape."""
    directions = (("input", client.inputs, metadata.inputs), ("output", client.outputs, metadata.outputs))
    for direction, tensors, served in directions:
        for name, (datatype, shape) in tensors.items():
            if name not in served:
                yield f"it names the {direction} {name!r}, but {metadata.name!r} has {', '.join(served)}"
            elif not _fits(metadata, served[name], datatype, shape):
                served_type = f"{served[name].datatype} {list(served[name].shape)}"
                client_type = f"{datatype.replace('|', ' or ')} {list(shape)}"
                yield f"its {direction} {name!r} is {client_type}, but {metadata.name!r} has {served_type}"


def _fits(model: ModelMetadata, served: TensorMetadata, datatypes: str, shape: tuple[int, ...]) -> bool:
    served_shape = record_shape(model, served, len(shape))
    return (
        served.datatype in datatypes.split("|")
        and served_shape is not None
        and all(-1 in sizes or len(set(sizes)) == 1 for sizes in zip(shape, served_shape, strict=True))
    )


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
            parameters = read_config(path).parameters
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


class ModelMissing(Exception):
    """A client's model is not in the repository. ``model``: its name."""

    def __init__(self, model: str) -> None:
        super().__init__(f"its model {model!r} is not served by Triton")
        self.model = model


@dataclass(frozen=True)
class UncheckedClient:
    """A loaded client that has not passed its check: it may wait for its models."""

    client: Client
    source: ClientSource
    triton: Triton

    def check(self) -> None:
        """Check it, see :func:`check`."""
        with plain_names(self.source, anew=False):
            check(self.client, self.source, self.triton)

    def can_serve(self) -> bool:
        """True if it passes the check now."""
        try:
            self.check()
        except (ModelMissing, TriremeError):
            return False
        except StartError as error:
            log.error("left out: %s", error)
            return False
        return True
