"""``serve``: PID 1 of the box. Decides what runs, then starts, watches, restarts and drains it.

This module is the start and the clean end. The rules are in :mod:`process_manager`, the event loop in
:mod:`loop`, and the reasons in docs/inside/supervisor.md.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import secrets
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from selectors import PollSelector

from sm import NO_TELEMETRY, __version__, entry_points
from sm.errors import StartError
from sm.hardware import memory_limit
from sm.model_processes.generations import SharedGeneration
from sm.models.fetch.addresses import is_source, shown
from sm.repository import gpu_driver, models
from sm.repository.machine import Machine
from sm.run_state import SHARED_MEMORY, Box, shared_bytes, temporary_folder
from sm.server import observers
from sm.server.logs import Desk, Formatter, Log
from sm.server.startup import (
    BAKED_REPOSITORY,
    check_client_folders,
    prepare_access,
)
from sm.server.supervisor import ports
from sm.server.supervisor.loop import Loop
from sm.server.supervisor.model_source import REPOSITORY, find_models
from sm.server.supervisor.nginx import (
    WITHOUT_NGINX,
    capacity,
    describe_limits,
    descriptor_limit,
    find_nginx,
    fit_to_descriptors,
)
from sm.server.supervisor.preparation import Preparation, StopRequested
from sm.server.supervisor.processes import Commands, Processes, Signals, Watchdog
from sm.server.supervisor.root_rights import UserAccount, is_root_of_image
from sm.settings import Settings, find_misspelled, names_of
from sm.triton import server, shared_memory_cleanup

#: Free bytes of shared memory for each worker, of which its series take a quarter (sm.metrics.files).
SERIES_FREE_BYTES = 20 * 2**20
#: The highest limit of open files; larger tables would only cost memory.
MAX_OPEN_FILES = 65536
#: Seconds to write the last log lines, and to reap the last processes.
FLUSH_TIMEOUT_S = 2.0
#: Options of ``serve``. The platform passes none.
FLAGS = ("--demo", "--examples", "--reload")
RELOAD_NOTICE = (
    "reload is on: a client is loaded again when its files change, and its callers see its errors; "
    "for development only"
)


def main(arguments: Sequence[str]) -> int:
    """Run the box; return its exit code."""
    selector = PollSelector()  # unlike epoll it takes an output that is a plain file
    terminal = os.isatty(1)
    log = Log(Formatter("info", text=terminal, colour=False), selector)
    try:
        flags, sources = read_arguments(arguments)
        demo_mode, examples = bool({"--demo", "--examples"} & flags), "--examples" in flags
        for source in sources:
            os.environ[REPOSITORY] = source
        settings = Settings.read(os.environ)
        text = terminal or demo_mode if settings.log_format == "auto" else settings.log_format == "text"
        formatter = Formatter(settings.level, text, colour=terminal and "NO_COLOR" not in os.environ)
        if is_root_of_image():
            give_up_root(formatter)
        for_people = text or demo_mode
        desks = entry_points.load("sm.desk") if terminal or for_people else ()
        logs = (desk.open_log(settings) for desk in desks if terminal or demo_mode)
        log = Log(formatter, selector, sinks=filter(None, logs))
        if demo_mode and settings.repository is None:
            repository = settings.cache / "repository" / ("examples" if examples else "cpu")
            settings = replace(settings, repository=repository)
        return run(settings, selector, log, desks if for_people else (), "--reload" in flags)
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


def give_up_root(formatter: Formatter) -> None:
    """Go on as an ordinary user. Returns if the box cannot run so, and logs why."""
    log, account = Log(formatter, PollSelector()), UserAccount.find()
    obstacle = account.obstacle(os.environ)
    if obstacle:
        log.log("warning", f"started as root, and stays root: {obstacle}")
    else:
        log.log("info", f"started as root: the box runs as user {account.user}, who can read all it needs")
    # Two logs must not write at the same time.
    log.output.flush(FLUSH_TIMEOUT_S)
    if not obstacle:
        account.execute_again()


def read_arguments(arguments: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the options, and the model repository if one is named. The platform gives the word ``serve``.

    Raises :class:`StartError` for any other word.
    """
    words = [word for word in arguments if word != "serve" and word not in FLAGS]
    sources = [word for word in words if is_source(word) or "/" in word or Path(word).is_dir()][:1]
    if unknown := [word for word in words if word not in sources]:
        raise StartError(
            f"serve takes no {unknown[0]!r}: only the word serve, {', '.join(FLAGS)}, and a model repository."
        )
    return {*arguments} & {*FLAGS}, sources


def run(settings: Settings, selector: PollSelector, log: Log, desks: Sequence[Desk], reload: bool) -> int:
    """Start and run everything. ``desks`` have what a person reads when the box is ready."""
    if reload and settings.multi_model:
        raise StartError("--reload is for clients in folders: in multi-model mode load the archive again.")
    if reload and not entry_points.load("sm.desk"):
        raise StartError(
            "--reload is for a developer's machine: pip install 'trireme-serving[tools]' has it."
        )
    check_client_folders(settings)
    for line in observers.describe(os.environ):
        log.log(*line)
    with contextlib.ExitStack() as stack:
        signals, processes = Signals(), start_processes(stack)
        requested, files = settings, descriptor_limit()
        settings = fit_to_descriptors(requested, files)
        listener, tls_listener = stack.enter_context(ports.listen(settings.port)), None
        if settings.tls:
            tls_listener = stack.enter_context(ports.listen(settings.tls_port, "TRIREME_TLS_PORT"))
        preparation = Preparation(listener, selector, signals, processes, log)
        found = find_models(settings, preparation, log)
        settings, machine = found.settings, Machine.find(settings)
        nginx = find_nginx(settings)
        repository = found.build_plans(machine, preparation, log)
        box, generation = stack.enter_context(prepare_box(settings, repository, nginx, reload))
        box = found.link(box, machine, nginx, reload, log)
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
            when_ready=lambda: announce(settings, box, log, desks),
        )
        code = loop.run()
        log.log("info", "stopped")
        return code


def announce(settings: Settings, box: Box, log: Log, desks: Sequence[Desk]) -> None:
    """Say that the box is ready: with the hints for a person, or in one line if there are none."""
    if desks:
        log.output.write("".join(desk.hint(settings, box) for desk in desks).encode())
        return
    names = ", ".join(sorted(client["name"] for client in box.serving_clients())) or "none"
    log.log("info", f"{settings.origin} serves the clients {names}; the page: {settings.origin}/")


def start_processes(stack: contextlib.ExitStack) -> Processes:
    """Return what starts the box's processes, so that none outlives it."""
    # When PID 1 ends, the kernel kills all processes of its container.
    watchdog = None
    if os.getpid() != 1:
        watchdog = Watchdog.start(shared_memory_cleanup.remove_dead_boxes)
        stack.callback(watchdog.dismiss)
    processes = Processes(watchdog)
    processes.adopt_orphans()
    raise_file_limit()
    return processes


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
        place_series(box_id, run_folder, settings.worker_count)
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


def place_series(box_id: str, run_folder: Path, workers: int) -> None:
    """Keep the workers' series in shared memory, which no slow disk delays, if they take little of it."""
    with contextlib.suppress(OSError):
        space = os.statvfs(SHARED_MEMORY)
        if space.f_bavail * space.f_frsize >= workers * SERIES_FREE_BYTES:
            folder = SHARED_MEMORY / f"trireme-{box_id}-metrics"
            folder.mkdir(0o700)
            (run_folder / "metrics").symlink_to(folder)


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
