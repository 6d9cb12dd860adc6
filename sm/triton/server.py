"""Triton's command line and environment. The supervisor starts and watches it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sm.cache import Cache
from sm.errors import StartError
from sm.repository import models
from sm.run_state import SHARED_MEMORY, Box, python_models
from sm.settings import Settings
from sm.tracing.variables import are_traces_on, triton_options
from sm.triton import wheel
from sm.triton.health import failures, live, ready

__all__ = ["Command", "command", "failures", "find", "live", "ready"]

IMAGE = Path("/opt/tritonserver/bin/tritonserver")
LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"  # noqa: S104
#: glibc's default returns each large tensor to the kernel and takes it again, page fault by page fault.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20)}
#: Loads that may be under way at once, and loads that never end, before Triton is started again.
MAX_LOADS, MAX_STUCK_LOADS = 32, 16
#: In multi-model mode a load occupies one of these threads for as long as it lasts.
LOAD_THREADS = f"--model-load-thread-count={MAX_LOADS + MAX_STUCK_LOADS}"
EXPLICIT = ("--model-control-mode=explicit", LOAD_THREADS)
#: The least that the python backend accepts.
MIN_POOL_BYTES = 2**20


@dataclass(frozen=True)
class Command:
    """What to execute, with its whole environment."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def command(settings: Settings, box: Box, environment: Mapping[str, str]) -> Command:
    """Build the command that starts this box's Triton. Raises :class:`StartError` if a part is missing.

    If Triton comes from the wheel, it fills ``box.run / "triton"`` with links. A model that cannot load does
    not end Triton: :func:`failures` gives its name and reason.
    """
    server = find(settings)
    backends, extra = _backends(server, box.run / "triton")
    arguments = (
        str(server),
        f"--model-repository={_repository(box)}",
        "--exit-on-error=false",
        f"--exit-timeout-secs={max(1, round(settings.drain))}",
        *_addresses(settings, box),
        f"--http-thread-count={settings.triton_threads}",
        f"--buffer-manager-thread-count={settings.triton_copy_threads}",
        *_logs(settings),
        *([f"--backend-directory={backends}"] if backends else []),
        *_python_backend(settings, box),
        *(EXPLICIT if box.multi_model else ()),
        *(["--allow-client-shm=true"] if "--allow-client-shm" in _help(server) else []),
        *_traces(settings, environment, server),
        *settings.triton_arguments,
    )
    return Command(arguments, {**environment, **_environment(environment, extra)})


def find(settings: Settings) -> Path:
    """Find the tritonserver to run: the one that is set, the image's, the installed wheel's, or that in the
    cache.
    """
    if settings.triton_server:
        if not os.access(settings.triton_server, os.X_OK) or settings.triton_server.is_dir():
            raise StartError(f"TRIREME_TRITON_SERVER={str(settings.triton_server)!r} is no program.")
        return settings.triton_server
    if IMAGE.is_file():
        return IMAGE
    server = wheel.binary() or wheel.unpacked(Cache(settings.cache).triton)
    if server is None:
        raise StartError(
            f"There is no tritonserver: neither {IMAGE} nor, in {sys.prefix}, the wheel that "
            "`pip install --no-deps nvidia-pytriton` brings. `sm prepare --triton` fetches it into the cache."
        )
    return server


def _repository(box: Box) -> Path:
    """Return the model repository; an empty one if there is only code, as Triton takes every folder for a
    model.
    """
    if box.multi_model or models.names(box.repository):
        return box.overlay or box.repository
    empty = box.run / "no-models"
    empty.mkdir(exist_ok=True)
    return empty


def _backends(server: Path, folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Return the backend directory, if it is not Triton's default, and the variables that it needs."""
    if not wheel.is_wheel(server):
        beside = server.parent.parent / "backends"
        return (beside if server != IMAGE and beside.is_dir() else None), {}
    backends, extra = wheel.assemble(server, folder)
    # The stub's Python takes the first python3 on PATH for its own, and uses the packages of that one.
    return backends, {**extra, "PATH": str(Path(sys.executable).parent)}


def _addresses(settings: Settings, box: Box) -> tuple[str, ...]:
    """Return the ports' options: loopback, unless the settings open a port to callers."""
    opened = settings.triton_ports == "all"
    return (
        f"--http-address={EVERYWHERE if opened else LOOPBACK}",
        f"--http-port={box.http_port}",
        f"--grpc-address={EVERYWHERE if opened or settings.allow_grpc else LOOPBACK}",
        f"--grpc-port={box.grpc_port}",
        f"--metrics-address={EVERYWHERE if opened or settings.allow_metrics else LOOPBACK}",
        f"--metrics-port={box.metrics_port}",
    )


def _logs(settings: Settings) -> tuple[str, ...]:
    return (
        f"--log-verbose={settings.triton_log_verbose}",
        f"--log-info={str(settings.triton_log_info).lower()}",
        f"--log-warning={str(settings.triton_log_warning).lower()}",
        f"--log-error={str(settings.triton_log_error).lower()}",
    )


def _traces(settings: Settings, environment: Mapping[str, str], server: Path) -> tuple[str, ...]:
    """Return the options for spans of Triton's own. Raises :class:`StartError` if this Triton has none."""
    if not settings.triton_traces or not are_traces_on(environment):
        return ()
    if '"opentelemetry" mode' not in _help(server):
        raise StartError(f"TRIREME_TRITON_TRACES=true: {server} cannot send traces; set it to false.")
    return triton_options(environment)


def _python_backend(settings: Settings, box: Box) -> tuple[str, ...]:
    count = python_models(None if box.multi_model else box.repository)
    values = {
        "shm-region-prefix-name": f"trireme-{box.id}-py",
        "shm-default-byte-size": str(_pool(settings.triton_shm_default, count)),
        "shm-growth-byte-size": str(settings.triton_shm_growth),
    }
    return tuple(f"--backend-config=python,{name}={value}" for name, value in values.items())


def _pool(requested: int, models: int) -> int:
    """Return the bytes with which each Python model's shared memory starts; it grows on demand.

    All of them start with at most half of what is free: Docker gives a container 64 MB, and the tensors
    between router and Triton need some of it.
    """
    space = os.statvfs(SHARED_MEMORY)
    share = space.f_bavail * space.f_frsize // 2 // max(1, models)
    return min(requested, max(MIN_POOL_BYTES, share // MIN_POOL_BYTES * MIN_POOL_BYTES))


def _environment(environment: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Put ``extra`` before the value of each path variable, and set glibc's thresholds if they are not
    set.
    """
    joined = {name: value for name, value in MALLOC.items() if name not in environment}
    for name, value in extra.items():
        joined[name] = f"{value}:{environment[name]}" if environment.get(name) else value
    return joined


@functools.lru_cache
def _help(server: Path) -> str:
    """Return the binary's help. Newer versions need an option to let clients share memory."""
    process = subprocess.run([server, "--help"], capture_output=True, text=True, check=False, timeout=60)
    return process.stdout + process.stderr
