"""``serve``: PID 1 of the box. Decides what runs, then starts, watches, restarts and drains it.

This module is the start and the clean end. The rules are in :mod:`process_manager`, the event loop in
:mod:`loop`, and the reasons in docs/inside/supervisor.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from selectors import PollSelector

from sm import NO_TELEMETRY, __version__
from sm.errors import BadInput, StartError
from sm.hardware import memory_limit
from sm.models.origins import HUB, is_prefix, is_source, shown
from sm.models.sources import Sources, held
from sm.models.staging import copy_archive
from sm.repository import gpu_driver, models, overlay, problems, response_cache
from sm.repository.cache import Cache
from sm.repository.machine import Machine
from sm.run_state import SHARED_MEMORY, Box, shared_bytes, temporary_folder
from sm.server.logs import Formatter, Log, LogFile, open_log_file
from sm.server.startup import (
    BAKED_REPOSITORY,
    check_client_folders,
    check_readable,
    choose_repository,
    find_repository,
    prepare_access,
)
from sm.server.supervisor import ports
from sm.server.supervisor.hints import announce
from sm.server.supervisor.loop import Loop
from sm.server.supervisor.nginx import (
    WITHOUT_NGINX,
    capacity,
    describe_limits,
    descriptor_limit,
    find_nginx,
    fit_to_descriptors,
)
from sm.server.supervisor.preparation import PlanBuilder, Preparation, StopRequested
from sm.server.supervisor.processes import Commands, Processes, Signals, Watchdog
from sm.settings import ON_DEMAND, Settings, find_misspelled, names_of
from sm.tracing import variables as tracing_variables
from sm.triton import python_models, server, shared_memory_cleanup
from sm.triton.generation import SharedGeneration

#: The highest limit of open files; larger tables would only cost memory.
MAX_OPEN_FILES = 65536
#: Seconds to write the last log lines, and to reap the last processes.
FLUSH_TIMEOUT_S = 2.0
#: Seconds between two lines of the log while models are fetched.
FETCH_LOG_INTERVAL_S = 10.0
REPOSITORY = "TRIREME_MODEL_REPOSITORY"
#: Options of ``serve``. The platform passes none.
FLAGS = ("--demo", "--examples", "--reload")
RELOAD_NOTICE = (
    "reload is on: a client is loaded again when its files change, and its callers see its errors; "
    "for development only"
)


@dataclass(frozen=True)
class Fetch:
    """A repository that was fetched, the bytes that came over the network, and how long it took."""

    repository: Path
    bytes: int
    seconds: float


def main(arguments: Sequence[str]) -> int:
    """Run the box; return its exit code."""
    selector = PollSelector()  # unlike epoll it takes an output that is a plain file
    terminal = os.isatty(1)
    log = Log(Formatter("info", text=terminal, colour=False), selector)
    try:
        demo_mode, examples = is_demo(arguments), "--examples" in arguments
        reload = "--reload" in arguments
        for source in repositories(arguments):
            os.environ[REPOSITORY] = source
        settings = Settings.read(os.environ)
        text = terminal or demo_mode if settings.log_format == "auto" else settings.log_format == "text"
        formatter = Formatter(settings.level, text, colour=terminal and "NO_COLOR" not in os.environ)
        log = Log(formatter, selector, file=open_file(settings, terminal or demo_mode))
        if demo_mode and settings.repository is None:
            repository = Cache(settings.cache).repositories / ("examples" if examples else "cpu")
            settings = replace(settings, repository=repository)
        return run(settings, selector, log, text or demo_mode, reload)
    except StartError as error:
        log.log("error", str(error))
        return 1
    except StopRequested:
        log.log("info", "stopped")
        return 0
    except Exception:
        log.fail("internal error of the supervisor", traceback.format_exc())
        return 1
    finally:
        log.output.flush(FLUSH_TIMEOUT_S)


def open_file(settings: Settings, local: bool) -> tuple[Formatter, LogFile] | None:
    """Open the log file, if there is one. A box that a person starts has one in the cache by default."""
    if settings.log_file:
        try:
            return open_log_file(settings.log_file.absolute(), settings.level)
        except OSError as error:
            raise StartError(
                f"TRIREME_LOG_FILE={str(settings.log_file)!r} cannot be written: {error.strerror}."
            ) from None
    if local:
        with contextlib.suppress(OSError):
            path = settings.cache.expanduser().absolute() / "logs" / f"{settings.port}.jsonl"
            return open_log_file(path, settings.level)
    return None


def is_demo(arguments: Sequence[str]) -> bool:
    """True if the demo is requested. The platform starts the box with the single word ``serve``."""
    known = ("serve", *FLAGS, *repositories(arguments)[:1])
    unknown = [argument for argument in arguments if argument not in known]
    if unknown:
        raise StartError(
            f"serve takes no {unknown[0]!r}: only the word serve, {', '.join(FLAGS)}, and a model repository."
        )
    return "--demo" in arguments or "--examples" in arguments


def repositories(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that name a model repository."""
    words = (argument for argument in arguments if argument != "serve")
    return [word for word in words if is_source(word) or "/" in word or Path(word).is_dir()]


def run(settings: Settings, selector: PollSelector, log: Log, for_people: bool, reload: bool) -> int:
    """Start and run everything. ``for_people``: print a command for each client when the box is ready."""
    if reload and settings.multi_model:
        raise StartError("--reload is for clients in folders: in multi-model mode load the archive again.")
    check_client_folders(settings)
    with contextlib.ExitStack() as stack:
        # When PID 1 ends, the kernel kills all processes of its container.
        watchdog = None
        if os.getpid() != 1:
            watchdog = Watchdog.start(shared_memory_cleanup.remove_dead_boxes)
            stack.callback(watchdog.dismiss)
        signals = Signals()
        processes = Processes(watchdog)
        processes.adopt_orphans()
        raise_file_limit()
        requested, files = settings, descriptor_limit()
        settings = fit_to_descriptors(requested, files)
        listener, tls_listener = stack.enter_context(ports.listen(settings.port)), None
        if settings.tls:
            tls_listener = stack.enter_context(ports.listen(settings.tls_port, "TRIREME_TLS_PORT"))
        preparation = Preparation(listener, selector, signals, processes)
        # A path would turn the two slashes of a URL into one.
        source, fetch = os.environ.get(REPOSITORY, "").strip(), None
        on_demand = settings.models == ON_DEMAND
        is_whole = not is_prefix(source) if on_demand else not settings.multi_model
        if is_source(source) and is_whole:
            cache = Cache(settings.cache).root / "sources"
            fetch = fetch_models(source, cache, preparation, log)
            stack.enter_context(held(fetch.repository, cache))
            settings = replace(settings, repository=fetch.repository)
        checkpoint = find_checkpoint(settings, source)
        if checkpoint:
            preparation.reason = f"building {checkpoint[1]} for this machine"
            log.log("info", preparation.reason)
            built = preparation.run(("sm.server.hugging_face", *checkpoint), lambda _: None)
            settings = replace(settings, repository=Path(built))
        gpu_driver.check_gpus(gpu_driver.of_this_machine().cuda)
        repository = None if settings.multi_model else find_repository(settings)
        machine = Machine.find(settings)
        if repository and settings.build_engines == "never":
            check_models(repository, machine, settings, log)
        nginx = find_nginx(settings)
        if repository and settings.build_engines == "missing":
            repository = PlanBuilder(settings, preparation, log).run(repository)
            check_models(repository, machine, settings, log)
        box, generation = stack.enter_context(prepare_box(settings, repository, nginx, reload))
        if fetch:
            box = replace(box, source=source, fetched_bytes=fetch.bytes, fetch_seconds=fetch.seconds)
        if on_demand:
            box = replace(box, catalog=find_catalog(settings, source))
        if settings.model_poll is not None and repository:
            check_versions(settings, box, nginx, reload)
            is_polled = is_source(source) and not checkpoint
            box = keep_first_versions(box, source if is_polled else str(box.repository), log)
        if repository:
            wrap = python_models.wrap if settings.request_tokens else None
            has_cache = settings.caches_responses
            for name, why in response_cache.refused(models.read(box.repository), has_cache).items():
                log.log("warning", f"{name} is served without the response cache that it asks for: {why}")
            links = overlay.for_triton(box.repository, box.run / "repository", machine, wrap, has_cache)
            box = replace(box, overlay=links)
        box.save()
        stack.callback(reap_all, processes, log)
        log_notices(nginx, reload, log)
        for warning in prepare_access(settings, box, machine.triton):
            log.log("warning", warning)
        descriptors = tuple(sock.fileno() for sock in (listener, tls_listener) if sock)
        data_listener = stack.enter_context(ports.bind_workers(box.data_socket)) if nginx else listener
        environment = children_environment(settings)
        commands = Commands(settings, box, nginx, descriptors, data_listener.fileno(), environment)
        log_start(settings, repository, box, log)
        if nginx:
            log.log(*describe_limits(requested, settings, capacity(settings, memory_limit(), files), files))
        loop = Loop(
            settings,
            box,
            commands=commands,
            listener=listener,
            tls_listener=tls_listener,
            selector=selector,
            signals=signals,
            processes=processes,
            generation=generation,
            log=log,
            has_gpu=machine.has_gpu,
            when_ready=lambda: announce(settings, box, log, for_people),
        )
        code = loop.run()
        log.log("info", "stopped")
        return code


def fetch_models(source: str, cache: Path, preparation: Preparation, log: Log) -> Fetch:
    """Fetch a repository, and say in the log and in ``/ping`` how far it is."""
    started = logged_at = time.monotonic()
    preparation.reason = f"fetching {shown(source)}"
    log.log("info", preparation.reason)

    def report(line: str) -> None:
        nonlocal logged_at
        if line and not line.startswith("{"):
            preparation.reason = f"fetching {shown(source)}: {line}"
            if time.monotonic() - logged_at >= FETCH_LOG_INTERVAL_S:
                logged_at = time.monotonic()
                log.log("info", preparation.reason)

    try:
        result = json.loads(preparation.run(("sm.models.sources", source, str(cache)), report))
    finally:
        Sources(cache, report).remove_leftovers()
    fetch = Fetch(Path(result["repository"]), result["bytes"], time.monotonic() - started)
    if removed := result["removed_bytes"]:
        log.log("info", f"removed {removed / 1e6:,.1f} MB from {cache} to make room: no box used it")
    log.log("info", f"fetched {shown(source)}: {fetch.bytes / 1e6:,.1f} MB in {fetch.seconds:,.1f} s")
    return fetch


def find_checkpoint(settings: Settings, source: str) -> tuple[str, str] | None:
    """Return the folder with a model of Hugging Face's form that must be built, and what names it."""
    if settings.repository is None:
        is_set = settings.model_id and not settings.multi_model
        return (settings.model_id, "HF_MODEL_ID") if is_set else None
    if source.startswith(HUB) and "," not in source and not any(settings.repository.glob("*/config.pbtxt")):
        return str(settings.repository), source
    return None


def find_catalog(settings: Settings, source: str) -> str:
    """Return where models that are loaded on demand come from. Raises :class:`StartError` without it."""
    if is_prefix(source):
        return source
    folder = choose_repository(settings)
    if not folder.is_dir():
        raise StartError(f"There is no folder {shown(str(folder))} with models: set {REPOSITORY}.")
    check_readable(folder)
    return str(folder)


def check_versions(settings: Settings, box: Box, nginx: Path | None, reload: bool) -> None:
    """Raise :class:`StartError` if models of this box cannot be replaced."""
    problem = (
        "needs nginx, which passes its requests to one process" if nginx is None
        else "does not go with --reload" if reload
        else "" if server.loads_models(settings, box)
        else "needs a Triton that this box alone controls: leave its ports closed"
    )  # fmt: skip
    if problem:
        raise StartError(f"TRIREME_MODEL_POLL {problem}.")


def keep_first_versions(box: Box, source: str, log: Log) -> Box:
    """Return the box with a copy of its repository: what the team changes there must not change what serves.

    Large files are linked.
    """
    versions = {
        name: (f"{shown(source)}/{name}", models.digest(box.repository, name))
        for name in models.names(box.repository)
    }
    first = box.run / "first"
    first.mkdir()
    for entry in filter(Path.is_dir, box.repository.iterdir()):
        if not models.is_own(entry.name):
            continue
        try:
            copy_archive(entry.resolve(), first / entry.name)
        except (BadInput, OSError) as error:
            shutil.rmtree(first / entry.name, ignore_errors=True)
            (first / entry.name).symlink_to(entry)
            log.log("warning", f"{entry} must not change while this version of it serves: {error}")
    return replace(box, repository=first, has_versions=True, source=source, first_versions=versions)


def children_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of all children, with the threads and the queue that fit the descriptors, and
    CUDA's libraries that fit the driver.
    """
    fitted = {names_of(name)[0]: str(getattr(settings, name)) for name in ("threads", "queue")}
    libraries = gpu_driver.of_this_machine().variables(os.environ)
    return {**NO_TELEMETRY, **os.environ, **fitted, **libraries}


def log_notices(nginx: Path | None, reload: bool, log: Log) -> None:
    """Log what is unusual about this start."""
    if nginx is None:
        log.log("warning", WITHOUT_NGINX)
    if reload:
        log.log("warning", RELOAD_NOTICE)
    if line := tracing_variables.describe(os.environ):
        log.log(*line)


def log_start(settings: Settings, repository: Path | None, box: Box, log: Log) -> None:
    """Log the version, what is about to be served, and where."""
    for warning in find_misspelled(os.environ):
        log.log("warning", warning)
    log.log("info", f"trireme-serving {__version__} on Python {platform.python_version()}")
    if line := gpu_driver.of_this_machine().describe():
        log.log(*line)
    log.log("info", f"port {settings.port}: {describe_start(settings, repository, box)}")
    if settings.triton_ports != "off":
        address = ports.EVERYWHERE if settings.triton_is_open else ports.LOOPBACK
        log.log(
            "info",
            f"Triton's own ports, without TLS and keys: HTTP {box.http_port}, gRPC {box.grpc_port}, "
            f"metrics {box.metrics_port} on {address}",
        )


def check_models(repository: Path, machine: Machine, settings: Settings, log: Log) -> None:
    """Log the problems that Triton would meet. Raises :class:`StartError` with the last that stops the start.

    If ``/ping`` requires liveness only, a model that cannot load does not stop the others.
    """
    errors = []
    for problem in problems.find(repository, machine):
        if problem.is_certain and (settings.ping == "ready" or problem.hangs):
            errors.append(problem.sentence)
        else:
            log.log("warning", problem.sentence)
    for sentence in errors[:-1]:
        log.log("error", sentence)
    if errors:
        raise StartError(errors[-1])


def describe_start(settings: Settings, repository: Path | None, box: Box) -> str:
    """Return a sentence that says what is about to be served."""
    if repository is None:
        if box.catalog:
            return f"models come from {shown(box.catalog)} when requests name them"
        return f"multi-model mode: models come by POST /models from below {settings.archives}"
    baked = settings.repository is None and repository == BAKED_REPOSITORY
    source = f"{repository}{' (baked into the image: there is nothing in /opt/ml/model)' if baked else ''}"
    return f"loading {', '.join(models.names(repository)) or 'the code'} from {source}"


@contextlib.contextmanager
def prepare_box(
    settings: Settings, repository: Path | None, nginx: Path | None, reload: bool
) -> Iterator[tuple[Box, SharedGeneration]]:
    """Create the box's run folder and record; both are removed at the end, with its shared memory."""
    http, grpc, metrics = ports.choose_ports(settings)
    box_id = secrets.token_hex(4)
    lock = acquire_instance_lock(box_id)
    # Its mode is 0700.
    run_folder = Path(tempfile.mkdtemp(prefix="trireme-", dir=temporary_folder()))
    folder_lock = shared_memory_cleanup.try_lock(run_folder)
    try:
        generation = create_generation(box_id, run_folder)
        box = Box(
            id=box_id,
            run=run_folder,
            repository=repository or run_folder / "models",
            http_port=http,
            grpc_port=grpc,
            metrics_port=metrics,
            front="nginx" if nginx else "gunicorn",
            shared_bytes=shared_bytes(settings, repository),
            multi_model=repository is None,
            ping=settings.ping,
            http_keys=server.http_keys(settings.triton_arguments),
            grpc_keys=server.grpc_keys(settings.triton_arguments),
            repository_keys=server.repository_keys(settings.triton_arguments),
            reload=reload,
            model_timeout=settings.model_timeout or settings.timeout,
            generation_file=generation.path,
        )
        yield box, generation
    finally:
        shutil.rmtree(run_folder, ignore_errors=True)
        if folder_lock is not None:
            os.close(folder_lock)
        if lock:
            lock.release()


def create_generation(box_id: str, run_folder: Path) -> SharedGeneration:
    """Create the file in shared memory, which no slow disk delays; in the run folder if that is full."""
    name = f"trireme-{box_id}-generation"
    try:
        return SharedGeneration.create(SHARED_MEMORY / name)
    except OSError:
        return SharedGeneration.create(run_folder / name)


def acquire_instance_lock(box_id: str) -> shared_memory_cleanup.InstanceLock | None:
    """Take the box's lock in shared memory, and remove what dead boxes left."""
    if not SHARED_MEMORY.is_dir():
        return None
    shared_memory_cleanup.remove_dead_boxes()
    try:
        return shared_memory_cleanup.acquire_instance_lock(box_id, SHARED_MEMORY)
    except (PermissionError, FileNotFoundError) as error:
        # A volume that belongs to root may be mounted there.
        raise StartError(
            f"{SHARED_MEMORY} does not let this user ({os.getuid()}) create files: mount it so that every "
            "user may write (mode 1777), or run as another user."
        ) from error


def reap_all(processes: Processes, log: Log) -> None:
    """Kill and reap every process of the box."""
    processes.kill_all()
    if not processes.reap_all(FLUSH_TIMEOUT_S):
        log.log("error", "a process of the box did not end after SIGKILL")


def raise_file_limit() -> None:
    """Raise the limit of open files as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or target > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
