"""Triton's command line and environment, and its state over plain HTTP.

The supervisor and the control plane use it, which do not load gRPC. All time-outs of HTTP are short, because
the caller must go on whether or not Triton answers. ``keys`` are the HTTP headers for restricted APIs.
"""

from __future__ import annotations

import functools
import http.client
import json
import logging
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sm.errors import StartError
from sm.hardware import cores, memory_limit
from sm.repository import machine, models, overlay
from sm.repository.models import CODE
from sm.run_state import SHARED_MEMORY, Box, python_instances
from sm.settings import CACHE_OPTION, Settings, boolean, format_value, number, read_all, setting, verbosity
from sm.triton.model_paths import model_path

log = logging.getLogger(__name__)

LOOPBACK, ALL_ADDRESSES = "127.0.0.1", "0.0.0.0"  # noqa: S104
#: With glibc's defaults, the memory of each large tensor goes back to the kernel. Taking it again costs time.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20)}
#: Loads at the same time; and loads that never end, after which Triton is restarted.
MAX_LOADS, MAX_STUCK_LOADS = 32, 16
#: In multi-model mode each load occupies one of these threads until it ends.
LOAD_THREADS = MAX_LOADS + MAX_STUCK_LOADS
MODE = "--model-control-mode"
EXPLICIT_MODE = f"{MODE}=explicit"
#: The option of the Python backend for the bytes by which an instance's shared memory grows.
SHM_GROWTH = "shm-growth-byte-size"
#: A tensor takes at most this many times the bytes of its JSON: eight for an FP64 or INT64 that is ``0,``.
MAX_JSON_GROWTH = 4
#: Responses of a call that Triton (since 2.71) keeps for a caller of its own port who reads slowly. It has no
#: limit by default, and Triton's own tests pass with 1.
MAX_WAITING_RESPONSES = 16
#: An option in the server's help.
OPTION = re.compile(r"^\s*--([a-z][\w-]*)", re.MULTILINE)
#: The least shared memory of a Python model, in bytes: the python backend accepts no less.
MIN_POOL_BYTES = 2**20
#: Triton's own cache, below its folder of caches.
LOCAL_CACHE = "local/libtritoncache_local.so"
HTTP, GRPC = "--http-restricted-api", "--grpc-restricted-protocol"
#: Triton's API that lists, loads and unloads models.
REPOSITORY = "model-repository"
#: Triton's prefix for a key's name over gRPC.
GRPC_PREFIX = "triton-grpc-protocol-"
#: Seconds for a call of one of Triton's routes.
REQUEST_TIMEOUT_S = 2.0
NO_REASON = "Triton gives no reason"
LOADING = "it has not been loaded yet"
#: The headers if no API is restricted.
NO_KEYS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class PassedOn:
    """The official container's variables that mean an option to Triton, by its name, and nothing to the box.

    Only those that are set are passed on.
    """

    http_thread_count: int = setting("SAGEMAKER_TRITON_THREAD_COUNT", number(1, 1024), 0)
    buffer_manager_thread_count: int = setting(
        "SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT", number(0, 1024), 0
    )
    log_verbose: int = setting("SAGEMAKER_TRITON_LOG_VERBOSE", verbosity, 0)
    log_info: bool = setting("SAGEMAKER_TRITON_LOG_INFO", boolean, True)
    log_warning: bool = setting("SAGEMAKER_TRITON_LOG_WARNING", boolean, True)
    log_error: bool = setting("SAGEMAKER_TRITON_LOG_ERROR", boolean, True)
    #: Bytes by which the Python backend's shared memory grows, as :data:`SHM_GROWTH`.
    shm_growth_byte_size: int = setting("SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE", number(2**16, 2**40), 2**20)


@dataclass(frozen=True)
class TritonCommand:
    """A command line with its whole environment."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def command(settings: Settings, box: Box, environment: Mapping[str, str]) -> TritonCommand:
    """Build the command that starts this box's Triton.

    For a Triton from the wheel it also creates links in ``box.triton_folder``. A model that cannot load does
    not end Triton: :func:`failures` returns its name and the reason.

    Raises:
        StartError: A part of Triton is missing.
    """
    server = machine.find_server(settings)
    backends, path_variables = _backends(server, box.triton_folder)
    passed_on = {name.replace("_", "-"): value for name, value in read_all(PassedOn, environment).items()}
    arguments = (
        str(server),
        f"--model-repository={_repository(box)}",
        "--exit-on-error=false",
        *_addresses(settings, box),
        *([f"--backend-directory={backends}"] if backends else []),
        *_python_backend(settings, box, passed_on),
        *_plans(box),
        *_response_cache(settings, server),
        *_model_control(settings, box),
        *_tuned(settings, box, passed_on, _options(server)),
        *settings.triton_arguments,
    )
    variables = _environment(environment, path_variables)
    # For extensions/trireme_extensions/convert/onnx_cpu/model.py.
    variables |= {"TRIREME_ENGINES": str(box.engines_folder), "TRIREME_PRECISION": settings.precision}
    variables["TRIREME_CORES"] = str(cores())
    # For sm/triton/borrowed_packages.py.
    variables["TRIREME_PACKAGES"] = sysconfig.get_path("purelib")
    return TritonCommand(arguments, {**environment, **variables, "TRIREME_CACHE": str(settings.cache)})


def _repository(box: Box) -> Path:
    """Return the model repository; an empty one if it has no model: Triton would try to load ``code``."""
    if box.multi_model or models.names(box.repository):
        return box.served
    empty = box.no_models_folder
    empty.mkdir(exist_ok=True)
    return empty


def _backends(server: Path, folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Return the backend directory, if it is not Triton's default, and the variables that it needs."""
    if server == machine.IMAGE:
        return None, {}
    # The stub's Python uses the packages of the first python3 on PATH.
    path = {"PATH": str(Path(sys.executable).parent)}
    if machine.is_wheel(server):
        backends, variables = machine.assemble(server, folder)
        return backends, {**variables, **path}
    backends = server.parent.parent / "backends"
    # A stub for another version of Python finds its packages elsewhere.
    is_same = machine.stub_version(backends / "python" / machine.STUB) == machine.VERSION
    return (backends if backends.is_dir() else None), path if is_same else {}


def _model_control(settings: Settings, box: Box) -> tuple[str, ...]:
    """Return the options that let the box load a model again.

    Whoever reaches Triton's own ports could then unload models, so not if others than the box may.
    """
    if box.multi_model:
        return (EXPLICIT_MODE,)
    is_chosen = any(argument.startswith(MODE) for argument in settings.triton_arguments)
    if is_chosen or settings.triton_is_open or settings.allow_grpc:
        return ()
    return (EXPLICIT_MODE,) if box.has_versions else (EXPLICIT_MODE, "--load-model=*")


def loads_models(settings: Settings, box: Box) -> bool:
    """True if this box's Triton can load a model while it runs."""
    return EXPLICIT_MODE in (*_model_control(settings, box), *settings.triton_arguments)


def _tuned(
    settings: Settings, box: Box, passed_on: Mapping[str, object], known: Collection[str]
) -> tuple[str, ...]:
    """Return the options that a server gets if it is known to have them."""
    options = {
        "exit-timeout-secs": max(1, round(settings.drain)),
        # Not in 2.51. In 2.71 they are off and 64 MiB, and whatever the front lets in must go through.
        "allow-client-shm": "true",
        "http-max-input-size": settings.max_body * MAX_JSON_GROWTH,
        **({"model-load-thread-count": LOAD_THREADS} if box.multi_model else {}),
        **({"grpc-max-response-pool-size": MAX_WAITING_RESPONSES} if settings.grpc_is_open else {}),
        **passed_on,
    }
    return tuple(f"--{name}={format_value(value)}" for name, value in options.items() if name in known)


def _addresses(settings: Settings, box: Box) -> tuple[str, ...]:
    """Return the options for addresses and ports. A port is on loopback unless the settings open it."""
    open_all = settings.triton_is_open
    return (
        f"--http-address={ALL_ADDRESSES if open_all else LOOPBACK}",
        f"--http-port={box.http_port}",
        f"--grpc-address={ALL_ADDRESSES if open_all or settings.allow_grpc else LOOPBACK}",
        f"--grpc-port={box.grpc_port}",
        f"--metrics-address={ALL_ADDRESSES if open_all or settings.allow_metrics else LOOPBACK}",
        f"--metrics-port={box.metrics_port}",
    )


def _python_backend(settings: Settings, box: Box, passed_on: Mapping[str, object]) -> tuple[str, ...]:
    count = python_instances(None if box.multi_model else box.repository)
    values = {
        "shm-region-prefix-name": f"trireme-{box.id}-py",
        "shm-default-byte-size": _pool(settings.triton_shm_default, count),
        **{name: value for name, value in passed_on.items() if name == SHM_GROWTH},
    }
    return tuple(f"--backend-config=python,{name}={value}" for name, value in values.items())


def _plans(box: Box) -> tuple[str, ...]:
    """Return the option for plans that bring a runtime of their own, which is native code.

    The box's own models are trusted. In multi-model mode archives are others' work, so only
    ``SAGEMAKER_TRITON_ADDITIONAL_ARGS`` may say so.
    """
    is_wanted = not box.multi_model and overlay.has_version_compatible_plan(box.repository)
    return ("--backend-config=tensorrt,version-compatible=true",) if is_wanted else ()


def _response_cache(settings: Settings, server: Path) -> tuple[str, ...]:
    """Return the options for Triton's response cache.

    Raises:
        StartError: This Triton has none, or there is not so much memory.
    """
    if not settings.caches_responses:
        return ()
    folder = server.parent.parent / "caches"
    directory = (f"--cache-directory={folder}",) if folder.is_dir() and server != machine.IMAGE else ()
    if not settings.response_cache_mb:
        return directory
    setting = f"TRIREME_RESPONSE_CACHE_MB={settings.response_cache_mb}"
    if not (folder / LOCAL_CACHE).is_file():
        raise StartError(
            f"{setting} needs Triton's local cache, and {server} has none: {folder / LOCAL_CACHE} is not "
            "there. Leave the setting out, or use a Triton that was built with --cache=local."
        )
    size, memory = settings.response_cache_mb * 2**20, memory_limit()
    if size >= memory:
        raise StartError(
            f"{setting} is more than the memory that the box may use, {memory // 2**20} MiB: set less."
        )
    return (*directory, f"{CACHE_OPTION}=local,size={size}")


def _pool(requested: int, instances: int, folder: Path = SHARED_MEMORY) -> int:
    """Return the initial bytes of shared memory of each instance of a Python model; it grows on demand.

    Together they take at most half of what is free: Docker gives a container 64 MB, and the tensors between
    router and Triton need some of it.
    """
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    share = free // 2 // max(1, instances)
    pool = min(requested, max(MIN_POOL_BYTES, share // MIN_POOL_BYTES * MIN_POOL_BYTES))
    if pool < requested:
        log.info(
            "shm-default-byte-size is %d instead of %d: %d instances of Python models share half of the %d "
            "MB that are free in %s. Each grows on demand; a larger /dev/shm leaves the setting as it is",
            *(pool, requested, instances, free // 10**6, folder),
        )
    return pool


def _environment(environment: Mapping[str, str], path_variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set: glibc's thresholds unless they are set, and paths before existing ones."""
    variables = {name: value for name, value in MALLOC.items() if name not in environment}
    for name, value in path_variables.items():
        variables[name] = f"{value}:{environment[name]}" if environment.get(name) else value
    return variables


@functools.lru_cache
def _options(server: Path) -> frozenset[str]:
    """Return the names of the options that this server has, by its help."""
    process = subprocess.run([server, "--help"], capture_output=True, text=True, check=False, timeout=60)
    return frozenset(OPTION.findall(process.stdout + process.stderr))


def http_keys(arguments: Sequence[str]) -> dict[str, str]:
    """Return the HTTP headers for the APIs that ``arguments`` restrict."""
    return {key: value for _, key, value in _groups(arguments, HTTP)}


def grpc_keys(arguments: Sequence[str]) -> dict[str, str]:
    """Return the gRPC metadata for the APIs that ``arguments`` restrict, with names in lower case."""
    return {f"{GRPC_PREFIX}{key}".lower(): value for _, key, value in _groups(arguments, GRPC)}


def repository_keys(arguments: Sequence[str]) -> dict[str, str]:
    """Return the HTTP headers for Triton's list of models, which ``/models`` also requires."""
    return {key: value for apis, key, value in _groups(arguments, HTTP) if REPOSITORY in apis}


def _groups(arguments: Sequence[str], option: str) -> Iterator[tuple[list[str], str, str]]:
    """Yield the APIs, the key's name and its value of each ``--option=api,api:name=value``.

    The option may be one argument or two. Triton reports malformed ones.
    """
    for index, argument in enumerate(arguments):
        name, equals, text = argument.partition("=")
        if name != option:
            continue
        if not equals:
            text = next(iter(arguments[index + 1 :]), "")
        apis, _, pair = text.partition(":")
        key, equals, value = pair.partition("=")
        if equals:
            yield apis.split(","), key, value


def is_healthy(http_port: int, keys: Mapping[str, str] = NO_KEYS, state: str = "ready") -> bool:
    """True if Triton answers and all of its models are loaded; with ``live``, whatever state they are in."""
    return request(http_port, keys, "GET", f"/v2/health/{state}")[0] == 200


def unready(
    http_port: int, keys: Mapping[str, str] = NO_KEYS, seconds: float = REQUEST_TIMEOUT_S
) -> list[dict[str, Any]] | None:
    """Return the versions of Triton's index that are not ready, each with the reason; None for no answer.

    What was unloaded on purpose is none of them.
    """
    _, rows = _query(http_port, keys, "POST", "/v2/repository/index", seconds)
    if rows is None:
        return None
    found: list[dict[str, Any]] = []
    for row in rows:
        is_unloaded = row.get("state") != "READY" and row.get("reason") == "unloaded"
        reason = "" if is_unloaded or row["name"] == CODE else _why_unready(http_port, keys, row, seconds)
        if reason is None:
            # A model may answer nothing. The next one would cost as many seconds.
            return [*found, {**row, "reason": "Triton does not say in time whether it is"}]
        if reason:
            found.append({**row, "reason": reason})
    return found


def failures(http_port: int, keys: Mapping[str, str] = NO_KEYS) -> dict[str, str]:
    """Return the reasons why models cannot be loaded, by model; empty if Triton does not answer."""
    rows = unready(http_port, keys) or []
    return {row["name"]: row["reason"] for row in rows if row.get("state") not in ("READY", "LOADING")}


def _why_unready(
    http_port: int, keys: Mapping[str, str], row: Mapping[str, Any], seconds: float
) -> str | None:
    """Return Triton's reason why a version in its index is not ready; empty if it is.

    Triton 2.71 also asks the model itself, and the index does not show its answer. None means that Triton
    does not answer.
    """
    if row.get("state") != "READY":
        return LOADING if row.get("state") == "LOADING" else _plain(row.get("reason", ""))
    version = f"/versions/{row['version']}" if row.get("version") else ""
    path = model_path(row["name"], f"{version}/ready")
    status, body = request(http_port, keys, "GET", path, seconds)
    if status in (0, 200):
        return "" if status else None
    try:
        return _plain(str(json.loads(body)["error"]))
    except (ValueError, KeyError, TypeError):
        return NO_REASON


def _plain(text: str) -> str:
    """Return Triton's text in one line. A traceback in it is in Triton's log."""
    return " ".join(text.partition("\n\nAt:")[0].split()) or NO_REASON


def states(
    http_port: int, keys: Mapping[str, str] = NO_KEYS, seconds: float = REQUEST_TIMEOUT_S
) -> dict[str, set[str]] | None:
    """Return the states of each model's versions, by model; None if Triton does not answer."""
    status, rows = _query(http_port, keys, "POST", "/v2/repository/index", seconds)
    if status != 200:
        return None
    found: dict[str, set[str]] = {}
    for row in rows or []:
        found.setdefault(row["name"], set()).add(row.get("state", ""))
    return found


def regions(http_port: int, keys: Mapping[str, str] = NO_KEYS) -> list[str]:
    """Return the names of the shared-memory regions that Triton has mapped."""
    _, rows = _query(http_port, keys, "GET", "/v2/systemsharedmemory/status")
    return [row["name"] for row in rows or []]


def unregister(http_port: int, region: str, keys: Mapping[str, str] = NO_KEYS) -> None:
    """Make Triton unmap a region, unless a request still uses it."""
    request(http_port, keys, "POST", f"/v2/systemsharedmemory/region/{region}/unregister")


def last_end(http_port: int, model: str, keys: Mapping[str, str] = NO_KEYS) -> float | None:
    """Return when a model last ended an execution, whatever came of it, as time of day.

    It is 0 if it never did, or is not served any more; None if Triton does not answer.
    """
    status, answer = _query(http_port, keys, "GET", model_path(model, "/stats"))
    rows = answer["model_stats"] if answer else []
    return max((row["last_inference"] / 1000 for row in rows), default=0.0) if status else None


def request(
    http_port: int, keys: Mapping[str, str], method: str, path: str, seconds: float = REQUEST_TIMEOUT_S
) -> tuple[int, bytes]:
    """Call one of Triton's routes; return status and body. Status 0 means no readable answer in time.

    Each call has a connection of its own, so that no bytes of an answer can reach another call.
    """
    connection = http.client.HTTPConnection(LOOPBACK, http_port, timeout=seconds)
    try:
        connection.request(method, path, headers=dict(keys))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _query(
    http_port: int, keys: Mapping[str, str], method: str, path: str, seconds: float = REQUEST_TIMEOUT_S
) -> tuple[int, Any]:
    """Call one of Triton's routes; return status and parsed body. The body is None if it is not JSON."""
    status, body = request(http_port, keys, method, path, seconds)
    try:
        return status, json.loads(body) if status == 200 and body else None
    except ValueError:
        return status, None
