"""The clients of a box: found, loaded, and checked against the models that Triton serves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sm.client.base import Client, ModelMetadata, TensorClient, TensorMetadata, Triton
from sm.client.payloads import BodyPayload
from sm.client.tensor_roles import UnsuitableModel, record_shape
from sm.code_folder import CodeFolder
from sm.errors import StartError, TriremeError, UnknownModel
from sm.plugins.loading import ClientSource, describe_failure, discover, load, plain_names
from sm.plugins.model_choice import choose_model, is_served
from sm.plugins.name_conflicts import NameTaken, check_name
from sm.plugins.toolkit.script_client import ToolkitClient
from sm.run_state import CODE

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registry:
    """The clients by name, and why others were left out."""

    clients: Mapping[str, Client]
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: What Triton serves, whether or not a client calls it.
    models: tuple[str, ...] = ()

    def get(self, name: str) -> Client:
        """The client of a ``modelname``; :class:`UnknownModel` lists what exists."""
        client = self.clients.get(name)
        if client is not None:
            return client
        if name in self.models:
            why = f" ({self.left_out[name]})" if name in self.left_out else ""
            raise UnknownModel(
                f"model {name!r} has no client{why}: send it the v2 protocol, a body with inputs"
            )
        exists = ", ".join(sorted(self.clients)) or "none"
        if not name:
            raise UnknownModel(f"the request names no model and there is no default; there are: {exists}")
        why = f" ({self.left_out[name]})" if name in self.left_out else ""
        raise UnknownModel(f"no model {name[:200]!r}{why}; there are: {exists}", models=sorted(self.clients))

    def unknown(self, name: str) -> UnknownModel:
        """The error for a caller who names what is not served."""
        exists = sorted({*self.clients, *self.models})
        return UnknownModel(
            f"no model {name[:200]!r}; there are: {', '.join(exists) or 'none'}", models=exists
        )

    def known(self, name: str) -> bool:
        """Whether a model or a client of that name is served."""
        return name in self.clients or name in self.models

    def served_without_client(self, name: str) -> bool:
        """Whether a model of Triton's is served without a client."""
        return name in self.models and name not in self.clients

    def takes_bodies(self, name: str) -> bool:
        """Whether the client of that name takes any body as it is."""
        client = self.clients.get(name)
        return client is not None and issubclass(client.payload, BodyPayload)

    def claims(self, name: str, content_type: str) -> bool:
        """Whether the client of that name takes bodies of that content type."""
        client = self.clients.get(name)
        return client is not None and content_type in client.payload.content_types

    @property
    def reload_errors(self) -> Mapping[str, str]:
        """Why the old version of a client serves, by its name; the others are as they are on disk."""
        return {}

    def triton_model(self, name: str) -> str:
        """The Triton model that a v2 request for ``name`` is for: a client's own, or the one of that name."""
        client = self.clients.get(name)
        if client is None or name in self.models:
            return name
        return next(iter(client.required_models()), name)

    def default(self, wanted: str) -> str:
        """The model of a request that names none.

        The setting's, the toolkit's script, the sole client, or the sole model.
        """
        if wanted and wanted not in (*self.clients, *self.models):
            raise StartError(
                f"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME={wanted!r} is not served; there are: "
                f"{', '.join(sorted({*self.clients, *self.models})) or 'none'}."
            )
        scripts = [name for name, client in self.clients.items() if isinstance(client, ToolkitClient)]
        choices = (scripts, self.clients, self.models)
        sole = next((next(iter(names)) for names in choices if len(names) == 1), "")
        return wanted or sole


class ModelMissing(Exception):
    """A client's model is not in the repository."""


def find_unserved(_found: ClientSource, error: StartError) -> None:
    """Report a client that is broken, where that does not stop the start."""
    log.error("left out: %s", error)


def raise_start_error(_found: ClientSource, error: StartError) -> None:
    """A client that is broken ends the start."""
    raise error


def candidates(folders: tuple[Path, ...], own: CodeFolder) -> list[ClientSource]:
    """All files of clients. A user's come first: one may take the place of a client of the box, which is
    not loaded then."""
    everything = (*discover(folders), *discover((own.folder,), own.program))
    return sorted(everything, key=lambda found: found.bundled)


def build(
    folders: tuple[Path, ...],
    triton: Triton,
    repository: Path,
    skip_broken: bool = False,
    code: CodeFolder | None = None,
    made: dict[Path, Client] | None = None,
    report: Callable[[ClientSource, StartError], None] = find_unserved,
) -> Registry:
    """Find, load and check every client. :class:`StartError` names the first that fails, and why.

    ``code``: the user's own, ``code/`` of the repository if not given. ``made``: clients of an earlier
    build by their files, which are taken as they are; new ones are added.
    """
    everything = candidates(folders, code or CodeFolder(repository / CODE))
    bundled = {found.name: found for found in everything if found.bundled}
    made = {} if made is None else made
    refuse = report if skip_broken else raise_start_error
    clients: dict[str, Client] = {}
    files: dict[str, ClientSource] = {}
    without: dict[str, str] = {}
    for found in everything:
        if found.bundled and found.name in files:
            log.info("%s gives way to %s", found.shown, files[found.name].shown)
            continue
        try:
            with plain_names(found) if found.file not in made else nullcontext():
                client = made.get(found.file) or load(found, triton, repository)
                check_name(client, found, {**bundled, **files})
                files[client.name] = found
                if found.file not in made:
                    check(client, found, triton)
        except ModelMissing as missing:
            without[found.name] = str(missing)
            if not found.bundled:
                refuse(found, StartError(f"{found.shown}: {missing}."))
        except UnsuitableModel as error:
            without[found.name] = str(error)
            if not found.bundled:
                refuse(found, error)
            else:
                log.warning("%s The model is served without it, by the v2 protocol.", error)
        except StartError as error:
            without[found.name] = str(error)
            refuse(found, error)
            if not isinstance(error, NameTaken):
                # It may have said that it replaces the box's: better no answer than another's.
                files.setdefault(found.name, found)
        else:
            clients[client.name] = made[found.file] = client
    return Registry(clients, without)


def check(client: Client, found: ClientSource, triton: Triton) -> None:
    """Compare what a client names with what Triton serves, then let it set itself up."""
    if isinstance(client, TensorClient):
        client.model = choose_model(client, client.repository, partial(is_served, triton))
    for model in client.required_models():
        try:
            metadata = triton.metadata(model)
        except UnknownModel:
            raise ModelMissing(f"its model {model!r} is not served by Triton") from None
        if isinstance(client, TensorClient) and model == client.model:
            for fault in differences(client, metadata):
                raise StartError(f"{found.shown}: {fault}.")
    try:
        client.setup()
    except StartError as error:
        raise type(error)(f"{found.shown}: {error}") from None
    except TriremeError as error:
        raise StartError(f"{found.shown}: {error.sentence}") from error
    except BaseException as error:  # also sys.exit() and KeyboardInterrupt: one client may end nobody else
        raise StartError(f"{found.shown}: {describe_failure(error, found.file)}") from error


def differences(client: TensorClient, metadata: ModelMetadata) -> Iterator[str]:
    """Sentences about tensors that the client names and the model has not, or has otherwise."""
    sides = (("input", client.inputs, metadata.inputs), ("output", client.outputs, metadata.outputs))
    for side, named, served in sides:
        for name, (datatype, shape) in named.items():
            if name not in served:
                yield f"it names the {side} {name!r}, but {metadata.name!r} has {', '.join(served)}"
            elif not _fits(metadata, served[name], datatype, shape):
                theirs = f"{served[name].datatype} {list(served[name].shape)}"
                ours = f"{datatype.replace('|', ' or ')} {list(shape)}"
                yield f"its {side} {name!r} is {ours}, but {metadata.name!r} has {theirs}"


def _fits(model: ModelMetadata, served: TensorMetadata, datatypes: str, shape: tuple[int, ...]) -> bool:
    theirs = record_shape(model, served, len(shape))
    return (
        served.datatype in datatypes.split("|")
        and theirs is not None
        and all(-1 in sizes or len(set(sizes)) == 1 for sizes in zip(shape, theirs, strict=True))
    )
