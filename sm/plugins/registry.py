"""Find and load the clients of a box, and compare them with the models that Triton serves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sm.client.base import Client, ModelMetadata, TensorClient, TensorMetadata, Triton
from sm.client.batches import Batches
from sm.client.own_metrics import setting_up
from sm.client.readiness import Question, ask
from sm.client.tensor_roles import UnsuitableModel, record_shape
from sm.errors import StartError, TriremeError, UnknownModel
from sm.invocation import turn
from sm.plugins.loading import ClientSource, describe_failure, discover, discover_tasks, load, plain_names
from sm.plugins.toolkit.scripts import ToolkitClient
from sm.polling import WATCH_S
from sm.repository.models import CodeFolder, read_config
from sm.run_state import CODE

log = logging.getLogger(__name__)


class NameTaken(StartError):
    """Two clients have the same name."""


def check_name(client: Client, source: ClientSource, others: Mapping[str, ClientSource]) -> None:
    """Raise :class:`NameTaken` if one of ``others`` has the client's name. Only bundled clients may be
    replaced.
    """
    other = others.get(client.name, source)
    if client.replaces not in ("", client.name):
        raise NameTaken(
            f"{source.display_path}: it replaces {client.replaces!r}, but its name is {client.name!r}: a "
            "client can replace only one with its own name."
        )
    if other == source or (other.is_bundled and client.replaces):
        return
    if not other.is_bundled:
        differing = next(iter(find_differences(source, other)), "")
        copies = f" As copies of one client they differ in {differing}." if source.name == other.name else ""
        raise NameTaken(
            f"{source.display_path}: there is already a client called {client.name!r}: "
            f"{other.display_path}. Rename one, or remove it.{copies}"
        )
    raise NameTaken(
        f"{source.display_path}: the box comes with a client {client.name!r}, {other.display_path}: give "
        f"yours another name, or write replaces = {client.name!r} into its class to serve it instead."
    )


def select_sources(all_sources: Iterable[ClientSource]) -> tuple[ClientSource, ...]:
    """Return the sources without copies and without the bundled clients that others replace."""
    sources = tuple(without_copies(all_sources))
    own_names = {source.name for source in sources if not source.is_bundled}
    return tuple(source for source in sources if not source.is_bundled or source.name not in own_names)


def without_copies(sources: Iterable[ClientSource]) -> Iterator[ClientSource]:
    """Yield each client once: the same files in ``clients/`` and in ``code/`` are one client."""
    first_sources: dict[str, ClientSource] = {}
    for source in sources:
        first = first_sources.setdefault(source.name, source)
        if first is source or source.is_bundled or find_differences(first, source):
            yield source


def find_differences(first: ClientSource, second: ClientSource) -> list[str]:
    """Return the names of the files in which two clients differ, or which only one has."""
    if first.has_folder != second.has_folder or first.module != second.module:
        return [first.file.name]
    contents, others = _files(first), _files(second)
    return sorted(name for name in {**contents, **others} if contents.get(name) != others.get(name))


def _files(source: ClientSource) -> dict[str, bytes]:
    """Return a client's files by their paths, without those that Python and pytest write."""
    home = source.file.parent
    paths = home.rglob("*") if source.has_folder else [source.file]
    files = {str(path.relative_to(home)): path for path in paths if path.is_file() and path.suffix != ".pyc"}
    return {name: path.read_bytes() for name, path in files.items() if "/." not in f"/{name}"}


#: The beginning of the error for a request without a model.
NO_MODEL = "the request names no model (modelname in the JSON or in the query), and there is no default"


@dataclass(frozen=True)
class Registry:
    """The clients by name, and the reasons why others were left out."""

    clients: Mapping[str, Client]
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: All models that Triton serves.
    models: tuple[str, ...] = ()
    #: The clients that were left out because Triton did not serve their models, by name.
    unserved: Mapping[str, UnservedClient] = field(default_factory=dict)
    #: The reasons why clients that the user meant to serve are left out, by name.
    broken: Mapping[str, str] = field(default_factory=dict)
    #: True if a model that Triton does not know, but the box, has been lost and comes again.
    loads_on_demand: bool = False

    def get(self, name: str) -> Client:
        """Return the client of a ``modelname``. :class:`UnknownModel` lists those that exist."""
        client = self.clients.get(name)
        if client is not None:
            return client
        if name in self.models:
            reason = f" ({self.left_out[name]})" if name in self.left_out else ""
            raise UnknownModel(
                f"model {name!r} has no client{reason}: send it the v2 protocol, a body with inputs"
            )
        if not name:
            exists = sorted(self.clients)
            raise UnknownModel(f"{NO_MODEL}; there are: {', '.join(exists) or 'none'}", models=exists)
        raise self.unknown(name)

    def unknown(self, name: str) -> UnknownModel:
        """Return the error for a name that is not served."""
        exists = sorted({*self.clients, *self.models})
        reason = f" ({self.left_out[name]})" if name in self.left_out else ""
        return UnknownModel(
            f"no model {name[:200]!r}{reason}; there are: {', '.join(exists) or 'none'}", models=exists
        )

    def is_served(self, name: str) -> bool:
        """True if a model or a client of that name is served."""
        return name in self.clients or name in self.models

    def made_clients(self) -> Iterable[Client]:
        """Return the clients that exist. Clients of archives are made when they are first called."""
        return self.clients.values()

    def asked_clients(self) -> Iterable[Client]:
        """Return the clients whose readiness matters, of each name the newest last."""
        return self.made_clients()

    def is_repeatable(self, model: str) -> bool:
        """False if a client says that calls of this Triton model, or of its own, may not be sent twice."""
        return all(
            each.repeatable or model not in (each.name, *each.required_models())
            for each in self.clients.values()
        )

    def served_without_client(self, name: str) -> bool:
        """True if Triton serves a model of that name and no client has the name."""
        return name in self.models and name not in self.clients

    def find(self, name: str) -> Client | None:
        """Return the client of that name, if there is one."""
        return self.clients.get(name)

    @property
    def load_errors(self) -> Mapping[str, str]:
        """The reasons why clients cannot serve, by name."""
        return {name: reason for name, reason in self.broken.items() if name not in self.clients}

    @property
    def reload_errors(self) -> Mapping[str, str]:
        """The reasons why clients still run their old version, by name."""
        return {}

    def triton_model(self, name: str) -> str:
        """Return the Triton model of a v2 request for ``name``: the model of that name, else the client's
        own.
        """
        client = self.clients.get(name)
        if client is None or name in self.models:
            return name
        return next(iter(client.required_models()), name)

    def is_own_name(self, name: str) -> bool:  # noqa: ARG002
        """True if Triton knows a model by this name, so that a request in its own API can be passed on."""
        return True

    def name_in_answers(self, name: str) -> str:
        """Return the ``model_name`` of v2 answers for ``name``: Triton's."""
        return self.triton_model(name)

    def default(self, requested: str) -> str:
        """Return the model of a request that names none; empty if there is no default.

        It is the one that ``requested``, the setting, names; else the toolkit script, the only client, or the
        only model.
        """
        if requested and requested not in (*self.clients, *self.models):
            raise StartError(
                f"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME={requested!r} is not served; there are: "
                f"{', '.join(sorted({*self.clients, *self.models})) or 'none'}."
            )
        scripts = [name for name, client in self.clients.items() if isinstance(client, ToolkitClient)]
        choices = (scripts, self.clients, self.models)
        only_name = next((next(iter(names)) for names in choices if len(names) == 1), "")
        return requested or only_name


def log_broken_client(_source: ClientSource, error: StartError) -> None:
    """Log a client that cannot load; the box serves without it."""
    log.error("left out: %s", error)


def find_sources(folders: tuple[Path, ...], code: CodeFolder, repository: Path) -> list[ClientSource]:
    """Return the files of all clients, without second copies of one client.

    A user's clients come first: one may replace a bundled client, which is then not loaded.
    """
    sources = list(without_copies((*discover(folders), *discover((code.folder,), code.program))))
    sources += discover_tasks(repository, sources)
    return sorted(sources, key=lambda source: source.is_bundled)


def build(
    folders: tuple[Path, ...],
    triton: Triton,
    repository: Path,
    skip_broken: bool = False,
    code: CodeFolder | None = None,
    reusable: dict[Path, Client] | None = None,
    report: Callable[[ClientSource, StartError], None] = log_broken_client,
) -> Registry:
    """Find, load and check every client. :class:`StartError` names the first that fails, and why.

    Args:
        folders: Where clients are.
        repository: The model repository.
        skip_broken: Call ``report`` for a client that fails, instead of raising.
        code: The user's code folder; by default ``code/`` of the repository.
        reusable: Clients of an earlier build by file, which are used again. New clients are added.
    """
    sources = find_sources(folders, code or CodeFolder(repository / CODE), repository)
    bundled = {source.name: source for source in sources if source.is_bundled}
    reusable = {} if reusable is None else reusable
    broken: dict[str, str] = {}

    def report_error(source: ClientSource, error: StartError) -> None:
        broken[source.name] = str(error)
        if not skip_broken:
            raise error
        report(source, error)

    clients: dict[str, Client] = {}
    sources_by_name: dict[str, ClientSource] = {}
    left_out: dict[str, str] = {}
    unserved: dict[str, UnservedClient] = {}
    for source in sources:
        if source.is_bundled and source.name in sources_by_name:
            log.info("%s is replaced by %s", source.display_path, sources_by_name[source.name].display_path)
            continue
        try:
            with plain_names(source) if source.file not in reusable else nullcontext():
                client = reusable.get(source.file) or load(source, triton, repository)
                check_name(client, source, {**bundled, **sources_by_name})
                sources_by_name[client.name] = source
                if source.file not in reusable:
                    check(client, source, triton)
        except ModelMissing as missing:
            left_out[source.name] = str(missing)
            unserved[client.name] = UnservedClient(client, source, triton)
            if not source.is_bundled:
                report_error(source, StartError(f"{source.display_path}: {missing}."))
        except UnsuitableModel as error:
            left_out[source.name] = str(error)
            if not source.is_bundled:
                report_error(source, error)
            else:
                log.warning("%s The model is served without it, by the v2 protocol.", error)
        except StartError as error:
            left_out[source.name] = str(error)
            report_error(source, error)
            if not isinstance(error, NameTaken):
                # The broken client may be meant to replace the bundled one. No answer is better than one of
                # the wrong client.
                sources_by_name.setdefault(source.name, source)
        else:
            clients[client.name] = reusable[source.file] = client
    return Registry(clients, left_out, unserved=unserved, broken=broken)


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
    try:
        with setting_up(client):
            client.setup()
    except StartError as error:
        raise type(error)(f"{source.display_path}: {error}") from None
    except TriremeError as error:
        raise StartError(f"{source.display_path}: {error.sentence}") from error
    except BaseException as error:  # also a client's sys.exit() and KeyboardInterrupt
        raise StartError(f"{source.display_path}: {describe_failure(error, source.file)}") from error
    if client.takes_batches():  # a task knows it when it has read its model's files
        client.batches = Batches(client)
    if client.watches_readiness():
        client.readiness = client.readiness or Question(client, client.ready)
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
class UnservedClient:
    """A loaded client that waits for its models."""

    client: Client
    source: ClientSource
    triton: Triton

    def has_models(self) -> bool:
        """True if Triton serves its models now."""
        try:
            return all(is_served(self.triton, model) for model in self.client.required_models())
        except TriremeError:  # Triton is restarting
            return False

    def can_serve(self) -> bool:
        """True if it passes the check now."""
        try:
            with plain_names(self.source):
                check(self.client, self.source, self.triton)
        except (ModelMissing, TriremeError):
            return False
        except StartError as error:
            log.error("left out: %s", error)
            return False
        return True


class LateClients(Mapping[str, Client]):
    """The clients of a worker. Those without their models are added when Triton serves them."""

    def __init__(self, clients: Mapping[str, Client], unserved: Mapping[str, UnservedClient]) -> None:
        self._clients, self._unserved = dict(clients), dict(unserved)
        self._lock = threading.Lock()
        self._locks = {name: threading.Lock() for name in unserved}
        self._next_check: dict[str, float] = {}
        self._on_change: Callable[[], None] = lambda: None

    def __getitem__(self, name: str) -> Client:
        if name in self._unserved:
            self._check(name)
        return self._clients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` after a client was added."""
        self._on_change = on_change

    def _check(self, name: str) -> None:
        """Add the client if its models are served now."""
        with turn(self._locks[name], name):
            unserved, now = self._unserved.get(name), time.monotonic()
            if unserved is None or now < self._next_check.get(name, 0.0):
                return
            self._next_check[name] = now + WATCH_S  # each calls Triton
            if not unserved.can_serve():
                return
            with self._lock:
                # A new dictionary: another thread may be iterating over the old one.
                self._clients = {**self._clients, name: unserved.client}
                del self._unserved[name]
        log.info("the client %r is served now: its model was missing when this worker started", name)
        self._on_change()
