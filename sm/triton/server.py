"""Triton's command line and environment. The supervisor starts and watches it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sm.errors import StartError
from sm.repository import models
from sm.run_state import SHARED_MEMORY, Box, python_models
from sm.settings import Settings
from sm.triton import wheel
from sm.triton.health import failures, live, ready

__all__ = ["Command", "command", "failures", "find", "live", "ready"]

IMAGE = Path("/opt/tritonserver/bin/tritonserver")
LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"  # noqa: S104
#: By default glibc gives each large tensor back to the kernel and takes it again, page fault by page fault.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20)}
#: Loads that are under way at once, and loads that never end, before Triton is started again.
MAX_LOADS, MAX_STUCK_LOADS = 32, 16
#: Models come and go by request. A load takes one of these threads for as long as it lasts.
LOAD_THREADS = f"--model-load-thread-count={MAX_LOADS + MAX_STUCK_LOADS}"
EXPLICIT = ("--model-control-mode=explicit", LOAD_THREADS)
#: The python backend refuses less.
MIN_POOL_BYTES = 2**20


@dataclass(frozen=True)
class Command:
    """What to execute, and with which environment (all of it, not a difference)."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def command(settings: Settings, box: Box, environment: Mapping[str, str]) -> Command:
    """How to start this box's Triton; :class:`StartError` if a part of it is not on this machine.

    Fills ``box.run / "triton"`` with links where Triton comes from the wheel. A model that fails to load
    does not end Triton: ask :func:`failures` for its name and reason.
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
        *settings.triton_arguments,
    )
    return Command(arguments, {**environment, **_environment(environment, extra)})


def find(settings: Settings) -> Path:
    """The tritonserver to run: the one that is set, the image's, the wheel's."""
    if settings.triton_server:
        if not os.access(settings.triton_server, os.X_OK) or settings.triton_server.is_dir():
            raise StartError(f"TRIREME_TRITON_SERVER={str(settings.triton_server)!r} is no program.")
        return settings.triton_server
    if IMAGE.is_file():
        return IMAGE
    server = wheel.binary()
    if server is None:
        raise StartError(
            f"There is no tritonserver: neither {IMAGE} nor, in {sys.prefix}, the wheel that "
            "`pip install --no-deps nvidia-pytriton` brings."
        )
    return server


def _repository(box: Box) -> Path:
    """An empty one where there is only code to serve: Triton takes every folder for a model."""
    if box.multi_model or models.names(box.repository):
        return box.overlay or box.repository
    empty = box.run / "no-models"
    empty.mkdir(exist_ok=True)
    return empty


def _backends(server: Path, folder: Path) -> tuple[Path | None, dict[str, str]]:
    """The backend directory where it is not the one Triton knows, and its variables."""
    if not wheel.is_wheel(server):
        beside = server.parent.parent / "backends"
        return (beside if server != IMAGE and beside.is_dir() else None), {}
    backends, extra = wheel.assemble(server, folder)
    # The stub's Python takes the first python3 on PATH for its own, and with it that one's packages.
    return backends, {**extra, "PATH": str(Path(sys.executable).parent)}


def _addresses(settings: Settings, box: Box) -> tuple[str, ...]:
    """Loopback, unless the settings open a port: the one public port is the front's."""
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


def _python_backend(settings: Settings, box: Box) -> tuple[str, ...]:
    count = python_models(None if box.multi_model else box.repository)
    values = {
        "shm-region-prefix-name": f"trireme-{box.id}-py",
        "shm-default-byte-size": str(_pool(settings.triton_shm_default, count)),
        "shm-growth-byte-size": str(settings.triton_shm_growth),
    }
    return tuple(f"--backend-config=python,{name}={value}" for name, value in values.items())


def _pool(wanted: int, models: int) -> int:
    """What each python model's pool may start with, in bytes; it grows with demand.

    All of them together start with at most half of what is free: Docker gives a container 64 MB of
    shared memory, and the tensors between router and Triton want some of it as well.
    """
    space = os.statvfs(SHARED_MEMORY)
    share = space.f_bavail * space.f_frsize // 2 // max(1, models)
    return min(wanted, max(MIN_POOL_BYTES, share // MIN_POOL_BYTES * MIN_POOL_BYTES))


def _environment(environment: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """``extra`` in front of what each path variable already says, and glibc's thresholds if not set."""
    joined = {name: value for name, value in MALLOC.items() if name not in environment}
    for name, value in extra.items():
        joined[name] = f"{value}:{environment[name]}" if environment.get(name) else value
    return joined


@functools.lru_cache
def _help(server: Path) -> str:
    """What the binary says it knows: newer ones want to be told that clients may share memory."""
    shown = subprocess.run([server, "--help"], capture_output=True, text=True, check=False, timeout=60)
    return shown.stdout + shown.stderr
