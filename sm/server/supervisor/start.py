"""``serve``: PID 1 of the box. Decides what runs, then starts, watches, restarts and drains it.

Here is the start and the clean end; the rules are in :mod:`process_manager`, the event loop in :mod:`loop`,
and the reasons in docs/inside/supervisor.md.
"""

from __future__ import annotations

import contextlib
import json
import os
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

from sm.errors import StartError
from sm.generation import SharedGeneration
from sm.inspection import overlay, problems
from sm.inspection.machine import Machine
from sm.logs import Formatter
from sm.repository import models
from sm.run_state import (
    BAKED_REPOSITORY,
    SHARED_MEMORY,
    Box,
    check_default_model,
    find_repository,
    shared_bytes,
)
from sm.server.access import setup
from sm.server.supervisor import demo, front, ports
from sm.server.supervisor.capacity import (
    capacity,
    describe_limits,
    descriptor_limit,
    fit_to_descriptors,
    memory_limit,
)
from sm.server.supervisor.commands import Commands
from sm.server.supervisor.engines import PlanBuilder
from sm.server.supervisor.log_writer import Log
from sm.server.supervisor.loop import Loop
from sm.server.supervisor.processes import Processes
from sm.server.supervisor.signals import Signals
from sm.server.supervisor.watchdog import Watchdog
from sm.settings import Settings, names_of
from sm.triton import restricted_apis, shared_memory_cleanup

#: Open files: callers, sockets behind them, models. Beyond, tables of this size only cost memory.
MAX_OPEN_FILES = 65536
#: Seconds that the last lines may take to be written, and the last processes to be buried.
FLUSH_TIMEOUT_S = 2.0
#: What ``serve`` takes beside the platform's word.
FLAGS = ("--demo", "--examples", "--reload")
RELOADING = (
    "reload is on: a client whose files change is made anew, and its callers read what is wrong with it; "
    "for development only"
)


def main(arguments: Sequence[str]) -> int:
    """Run the box; its exit code."""
    selector = PollSelector()  # unlike epoll it takes an output that is a plain file
    terminal = os.isatty(1)
    log = Log(Formatter("info", text=terminal, colour=False), selector)
    try:
        shown, examples = is_demo(arguments), "--examples" in arguments
        reload = "--reload" in arguments
        settings = Settings.read(os.environ)
        text = terminal or shown if settings.log_format == "auto" else settings.log_format == "text"
        log = Log(Formatter(settings.level, text, colour=terminal and "NO_COLOR" not in os.environ), selector)
        if shown and settings.repository is None:
            settings = replace(settings, repository=demo.repository(settings, examples))
        lines = demo.lines(settings, examples) if shown else ""
        return run(settings, selector, log, lines, reload)
    except StartError as error:
        log.log("error", str(error))
        return 1
    except Exception:
        log.fail("an error of the supervisor's own", traceback.format_exc())
        return 1
    finally:
        log.sink.flush(FLUSH_TIMEOUT_S)


def is_demo(arguments: Sequence[str]) -> bool:
    """Whether the demo is asked for. The platform starts the box with the one word ``serve``."""
    unknown = [word for word in arguments if word not in ("serve", *FLAGS)]
    if unknown:
        raise StartError(f"serve takes no {unknown[0]!r}: only the word serve, {', '.join(FLAGS)}.")
    return "--demo" in arguments or "--examples" in arguments


def run(settings: Settings, selector: PollSelector, log: Log, lines: str, reload: bool) -> int:
    """Everything between the first process and the last; ``lines`` are shown when the box is ready."""
    if reload and settings.multi_model:
        raise StartError("--reload is for clients in folders: in multi-model mode load the archive again.")
    with contextlib.ExitStack() as stack:
        # As PID 1 the end of this process is the end of all.
        guard = stack.enter_context(with_watchdog()) if os.getpid() != 1 else None
        signals = Signals()
        processes = Processes()
        processes.adopt_orphans()
        raise_file_limit()
        asked, files = settings, descriptor_limit()
        settings = fit_to_descriptors(asked, files)
        repository = None if settings.multi_model else find_repository(settings)
        if repository:
            check_default_model(settings, repository)
        machine = Machine.find(settings)
        if repository and settings.build_engines == "never":
            check(repository, machine, settings, log)
        nginx = front.choose(settings)
        listener = ports.listen(settings.port)
        stack.callback(listener.close)
        tls_listener = ports.listen(settings.tls_port, "TRIREME_TLS_PORT") if settings.tls else None
        if tls_listener:
            stack.callback(tls_listener.close)
        if repository and settings.build_engines == "missing":
            built = PlanBuilder(settings, listener, selector, signals, processes, guard, log).run(repository)
            if built is None:
                return 0
            check(repository := built, machine, settings, log)
        box, generation = stack.enter_context(prepare_box(settings, repository, nginx, guard, reload))
        if repository and (on_cpu := problems.on_cpu(models.read(repository), machine)):
            names = {model.name for model in on_cpu}
            box = replace(box, overlay=overlay.overlay_cpu(repository, box.run / "repository", names))
        box.save()
        stack.callback(reap_all, processes, log, guard)
        if nginx is None:
            log.log("warning", front.WITHOUT_NGINX)
        if reload:
            log.log("warning", RELOADING)
        for warning in setup.prepare(settings, box):
            log.log("warning", warning)
        lent = tuple(each.fileno() for each in (listener, tls_listener) if each)
        # The workers read the settings themselves.
        environment = {**os.environ, names_of("threads")[0]: str(settings.threads)}
        commands = Commands(settings, box, nginx, lent, environment)
        log.log("info", f"port {settings.port}: {log_startup(settings, repository)}")
        if settings.triton_ports != "off":
            log.log("info", opened_ports(settings, box))
        if nginx:
            log.log(*describe_limits(asked, settings, capacity(settings, memory_limit(), files), files))
        loop = Loop(
            settings,
            box,
            commands=commands,
            listener=listener,
            tls_listener=tls_listener,
            selector=selector,
            signals=signals,
            processes=processes,
            guard=guard,
            generation=generation,
            log=log,
            when_ready=lambda: log.sink.write(lines.encode()) if lines else None,
        )
        code = loop.run()
        log.log("info", "stopped")
        return code


def check(repository: Path, machine: Machine, settings: Settings, log: Log) -> None:
    """Say the problems that Triton would meet. :class:`StartError` is the last of those that stop the start.

    Where ``/ping`` asks for life alone, a model that cannot load stops nobody else.
    """
    refusals = []
    for problem in problems.find(repository, machine):
        if problem.is_certain and (settings.ping == "ready" or problem.hangs):
            refusals.append(problem.sentence)
        else:
            log.log("warning", problem.sentence)
    for sentence in refusals[:-1]:
        log.log("error", sentence)
    if refusals:
        raise StartError(refusals[-1])


def log_startup(settings: Settings, repository: Path | None) -> str:
    """What is about to be served, in words."""
    if repository is None:
        return f"multi-model mode: models come by POST /models from below {settings.archives}"
    baked = settings.repository is None and repository == BAKED_REPOSITORY
    whence = f"{repository}{' (baked into the image: there is nothing in /opt/ml/model)' if baked else ''}"
    return f"loading {', '.join(models.names(repository)) or 'the code'} from {whence}"


def opened_ports(settings: Settings, box: Box) -> str:
    """Where Triton itself answers callers."""
    address = ports.EVERYWHERE if settings.triton_ports == "all" else ports.LOOPBACK
    return (
        f"Triton's own ports, without TLS and keys: HTTP {box.http_port}, gRPC {box.grpc_port}, "
        f"metrics {box.metrics_port} on {address}"
    )


@contextlib.contextmanager
def with_watchdog() -> Iterator[Watchdog]:
    """A guard, dismissed when all is clean."""
    guard = Watchdog.start()
    try:
        yield guard
    finally:
        guard.dismiss()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(guard.pid, 0)


@contextlib.contextmanager
def prepare_box(
    settings: Settings, repository: Path | None, nginx: Path | None, guard: Watchdog | None, reload: bool
) -> Iterator[tuple[Box, SharedGeneration]]:
    """The box, written down; removed afterwards with its files in shared memory."""
    http, grpc, metrics = ports.choose_ports(settings)
    identity = secrets.token_hex(4)
    lock = acquire_instance_lock(identity)
    # Short: the path of a Unix socket may have 107 bytes. Only for us: mode 0700.
    run_folder = Path(tempfile.mkdtemp(prefix="trireme-"))
    if guard:
        for path in (
            run_folder,
            SHARED_MEMORY / f"trireme-{identity}-*",
            SHARED_MEMORY / f"trireme-{identity}.lock",
        ):
            guard.path(path)
    try:
        generation = create_generation(identity, run_folder)
        box = Box(
            id=identity,
            run=run_folder,
            repository=repository or run_folder / "models",
            http_port=http,
            grpc_port=grpc,
            metrics_port=metrics,
            front="nginx" if nginx else "gunicorn",
            shared_bytes=shared_bytes(settings, repository),
            multi_model=repository is None,
            ping=settings.ping,
            http_keys=restricted_apis.http_keys(settings.triton_arguments),
            grpc_keys=restricted_apis.grpc_keys(settings.triton_arguments),
            repository_keys=restricted_apis.repository_keys(settings.triton_arguments),
            reload=reload,
            generation_file=generation.path,
        )
        yield box, generation
    finally:
        shutil.rmtree(run_folder, ignore_errors=True)
        if lock:
            lock.release()


def create_generation(identity: str, run_folder: Path) -> SharedGeneration:
    """In shared memory, which no slow disk holds up; in the run folder where it has no room."""
    name = f"trireme-{identity}-generation"
    try:
        return SharedGeneration.create(SHARED_MEMORY / name)
    except OSError:
        return SharedGeneration.create(run_folder / name)


def acquire_instance_lock(identity: str) -> shared_memory_cleanup.InstanceLock | None:
    """Take the box's lock in shared memory, and clear away what dead boxes have left."""
    if not SHARED_MEMORY.is_dir():
        return None
    shared_memory_cleanup.sweep(SHARED_MEMORY)
    for file in Path(tempfile.gettempdir()).glob("trireme-*/box.json"):
        # Its id is all there is to know: a box of another version may say more, or less.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            if not (SHARED_MEMORY / f"trireme-{json.loads(file.read_text())['id']}.lock").exists():
                shutil.rmtree(file.parent, ignore_errors=True)
    return shared_memory_cleanup.acquire_instance_lock(identity, SHARED_MEMORY)


def reap_all(processes: Processes, log: Log, guard: Watchdog | None) -> None:
    """No process of the box may be left, whatever went wrong."""
    processes.kill_all()
    if not processes.empty(FLUSH_TIMEOUT_S, but=guard.pid if guard else None):
        log.log("error", "a process of the box does not end, not even killed")


def raise_file_limit() -> None:
    """As many open files as we may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
