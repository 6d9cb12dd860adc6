"""nginx: find it, compute its limits, write its configuration, and test that before the box starts."""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sm.errors import StartError
from sm.hardware import cores, memory_limit
from sm.http.control_paths import (
    MAX_BODY_BYTES,
    MAX_NEEDLESS_BODY_BYTES,
    MAX_SCRAPES,
    ControlPath,
    all_paths,
)
from sm.http.messages import INFERENCE_ID, REQUEST_ID, TRACE_ID
from sm.repository import models
from sm.run_state import Box
from sm.server.access.certificates import CERTIFICATE, KEY
from sm.server.supervisor.ports import ANY_IPV6, public_address
from sm.settings import HERE, Settings, names_of

#: Bytes of a body that nginx keeps in memory: the platform's limit outside of batch transform. Writing a 400
#: KB picture to a file costs 0.9 ms.
BODY_BUFFER_BYTES = 25 * 2**20
#: Connections of one nginx process. More would only enlarge its tables.
MAX_CONNECTIONS = 8192
#: Descriptors below which the box does not start.
MIN_FILES = 96
#: Descriptors that an idle worker and an idle Triton have open, with some to spare.
WORKER_FILES, TRITON_FILES = 48, 80
#: Descriptors that each request adds: its caller's connection; and, while it is served, Triton's HTTP and
#: gRPC, on both sides.
REQUEST_FILES, TRITON_REQUEST_FILES = 1, 2
#: Requests that the workers have not read yet. A worker rejects or queues each within milliseconds, so a
#: flood of requests for one model does not shut out the others.
MAX_UNREAD_REQUESTS = 512
#: Bytes from which nginx counts a body as large, not medium; see ``nginx.conf``.
LARGE_BODY_BYTES = 1_000_000
#: The share of memory for bodies that are being received, half of it for each of the two sizes.
BODY_MEMORY_SHARE = 1 / 8
#: The lowest and the highest number of bodies of each size that are received at once.
MEDIUM_BODIES, LARGE_BODIES = (64, 4096), (16, 512)


@dataclass(frozen=True)
class Capacity:
    """The limits for nginx. A body counts as medium or large until its request is answered."""

    connections: int
    in_flight: int
    medium_bodies: int
    large_bodies: int


def capacity(settings: Settings, memory: int, files: int) -> Capacity:
    """Compute the limits for a machine with ``memory`` bytes and a process with ``files`` descriptors."""
    # Each request takes two descriptors, the caller's and the worker's. Half of all is left for callers that
    # get 429.
    in_flight = min(requests_in_workers(settings) + MAX_UNREAD_REQUESTS, files // 4)
    # nginx holds the bodies of the unread requests too; their number is bounded by their bytes.
    concurrent_requests = min(in_flight, settings.worker_count * settings.max_invocations)
    share = memory * BODY_MEMORY_SHARE / 2
    return Capacity(
        connections=min(MAX_CONNECTIONS, files),
        in_flight=in_flight,
        medium_bodies=concurrent_requests + clamp(share / LARGE_BODY_BYTES, *MEDIUM_BODIES),
        large_bodies=concurrent_requests + clamp(share / body_buffer(settings), *LARGE_BODIES),
    )


def fit_to_descriptors(settings: Settings, files: int) -> Settings:
    """Return the settings with the threads and the queue that ``files`` descriptors of a process allow.

    Raises:
        StartError: There are too few for the box to work at all.
    """
    if files < MIN_FILES:
        raise StartError(
            f"A process may open {files} files (ulimit -n), and the box needs {MIN_FILES}: allow more, as "
            "with docker run --ulimit nofile=1024."
        )
    worker_threads = (files - WORKER_FILES) // (4 * REQUEST_FILES + 2 * TRITON_REQUEST_FILES)
    triton_threads = (files - TRITON_FILES) // (2 * TRITON_REQUEST_FILES * settings.worker_count)
    threads = max(1, min(settings.threads, worker_threads, triton_threads))
    spare = files - WORKER_FILES - threads * (4 * REQUEST_FILES + 2 * TRITON_REQUEST_FILES)
    return replace(settings, threads=threads, queue=max(0, min(settings.queue, spare // REQUEST_FILES)))


def describe_limits(requested: Settings, fitted: Settings, limits: Capacity, files: int) -> tuple[str, str]:
    """Return level and text of the log line about the limits."""
    text = (
        f"at once: {limits.in_flight} requests, {fitted.threads} threads for a model and "
        f"{fitted.max_invocations} invocations in each of {fitted.worker_count} workers, "
        f"{limits.connections} connections of each nginx process, {limits.medium_bodies} bodies of "
        f"100 KB and {limits.large_bodies} of 1 MB and more; a process may open {files} files"
    )
    is_reduced = (fitted.threads, fitted.queue) < (requested.threads, requested.queue)
    if is_reduced or limits.in_flight < requests_in_workers(requested):
        return "warning", f"{text}, too few for the requests and threads that are set (ulimit -n)"
    return "info", text


def requests_in_workers(settings: Settings) -> int:
    """Return how many requests the workers hold at most, by the settings alone."""
    return min(65535, settings.worker_count * settings.max_threads)


def body_buffer(settings: Settings) -> int:
    """Return the bytes of a body that nginx keeps in memory; a larger one goes to a file."""
    return max(1024, min(BODY_BUFFER_BYTES, settings.max_body))


def descriptor_limit() -> int:
    """Return how many files a process of the box may open; children have the same limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def clamp(value: float, low: int, high: int) -> int:
    """Return the largest integer up to ``value`` within the bounds."""
    return max(low, min(high, int(value)))


TEMPLATE = HERE / "nginx.conf"
#: Folders of nginx that are often only on root's PATH.
NGINX_PATHS = "/usr/sbin:/usr/local/sbin:/usr/local/nginx/sbin"
#: Seconds that nginx waits longer than the router.
TIMEOUT_MARGIN_S = 5
MODELS_NEED_NGINX = (
    "multi-model mode (SAGEMAKER_MULTI_MODEL=true) needs nginx, which passes all loads to one process"
)
#: Settings that protect the port. If nginx is missing they stop the start.
NGINX_SETTINGS = ("tls_certificate", "api_keys_file", "cors_origins")
#: Response headers that pages of other origins may read.
EXPOSED_HEADERS = (
    "Retry-After",
    "WWW-Authenticate",
    "X-Request-Id",
    "traceresponse",
    "X-Trireme-Repeated",
    "X-Amzn-SageMaker-Session-Id",
    "X-Amzn-SageMaker-New-Session-Id",
    "X-Amzn-SageMaker-Closed-Session-Id",
    "X-Amzn-SageMaker-Custom-Attributes",
    "X-Amzn-SageMaker-Content-Type",
    "x-Amzn-Invoked-Production-Variant",
)
WITHOUT_NGINX = (
    "there is no nginx, so gunicorn serves the port itself: /ping shares the workers with the invocations "
    "and can be late when all are busy, and callers over the limit wait instead of getting 429"
)


def find_nginx(settings: Settings) -> Path | None:
    """Find the nginx to use; None if gunicorn is the front."""
    path = f"{os.environ.get('PATH', os.defpath)}:{NGINX_PATHS}"
    nginx = None if settings.nginx == "off" else shutil.which("nginx", path=path)
    if nginx is not None:
        return Path(nginx)
    if settings.nginx == "on":
        raise StartError("TRIREME_NGINX=on, but there is no nginx on PATH: install it, or set it to auto.")
    reason = "TRIREME_NGINX=off" if settings.nginx == "off" else "There is no nginx on PATH"
    if settings.multi_model:
        raise StartError(f"{reason}: {MODELS_NEED_NGINX}.")
    for name in NGINX_SETTINGS:
        if getattr(settings, name):
            raise StartError(f"{reason}, and {names_of(name)[0]} works only with nginx.")
    return None


def prepare_nginx(nginx: Path, settings: Settings, box: Box) -> tuple[str, ...]:
    """Write nginx's configuration into the run folder, test it with nginx, and return its command line."""
    folder = box.nginx_folder
    for name in ("body", "proxy", "fastcgi", "uwsgi", "scgi"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    file = folder / "nginx.conf"
    file.write_text(render(settings, box))
    command = (str(nginx), "-p", str(folder), "-c", str(file), *_error_log(nginx))
    result = subprocess.run([*command, "-t", "-q"], capture_output=True, text=True, check=False, timeout=30)
    if result.returncode:
        raise StartError(f"nginx refuses its configuration: {_first_error(result.stderr)}")
    return command


def render(settings: Settings, box: Box) -> str:
    """Fill in the template. ``${name}`` is a value of this module, ``$name`` one of nginx's own variables."""
    template_values = values(settings, box)
    return re.sub(r"\$\{([a-z_]+)\}", lambda match: str(template_values[match[1]]), TEMPLATE.read_text())


def values(settings: Settings, box: Box) -> Mapping[str, object]:
    """Return the values of the template. Sizes are in bytes, times in seconds."""
    timeout = int(settings.timeout) + TIMEOUT_MARGIN_S
    processes = max(1, min(4, cores() // 4))
    limits = capacity(settings, memory_limit(), descriptor_limit())
    return {
        # nginx's workers need the supervisor's sockets. The router, which decodes strangers' data, has its
        # rights too.
        "user": "user root root;" if os.geteuid() == 0 else "",
        "processes": processes,
        # A single process needs no shared count, which would stay wrong after a process was killed.
        "shared_count": "zone data_plane 64k;" if processes > 1 else "",
        "connections": limits.connections,
        "run": box.nginx_folder,
        "draining": box.draining_file,
        "inference_id": INFERENCE_ID,
        "trace_id": TRACE_ID,
        "named_id": REQUEST_ID,
        "port": settings.port,
        "address": "[::]" if public_address() == ANY_IPV6 else public_address(),
        "both_families": " ipv6only=off" if public_address() == ANY_IPV6 else "",
        "data_socket": box.data_socket,
        "control_socket": box.control_socket,
        "in_flight": limits.in_flight - limits.in_flight // 2,
        "in_flight_again": max(1, limits.in_flight // 2),  # 0 would mean no limit
        "with_repeats": _line_prefix(not _has_sequences(box)),
        "medium_bodies": limits.medium_bodies,
        "large_bodies": limits.large_bodies,
        "max_body": settings.max_body,
        "max_control_body": min(MAX_BODY_BYTES, settings.max_body),
        "max_needless_body": min(MAX_NEEDLESS_BODY_BYTES, settings.max_body),
        "body_buffer": body_buffer(settings),
        "receive_timeout": max(1, round(settings.receive_timeout)),
        "send_timeout": math.ceil(settings.stream_stall),
        "timeout": timeout,
        "stream_timeout": int(settings.longest_stream) + TIMEOUT_MARGIN_S,
        "all_streamed": int(_all_streamed(settings)),
        # Unloading a model may take the platform's 360 s, loading one as long as is set.
        "control_timeout": max(
            timeout, 360 + TIMEOUT_MARGIN_S, int(settings.load_timeout) + TIMEOUT_MARGIN_S
        ),
        "with_tls": _line_prefix(settings.tls),
        "tls_port": settings.tls_port,
        "certificate": box.tls_folder / CERTIFICATE,
        "certificate_key": box.tls_folder / KEY,
        "with_keys": _line_prefix(settings.api_keys_file is not None),
        "keys_socket": box.keys_socket,
        "with_sessions": _line_prefix(settings.sessions),
        "with_cors": _line_prefix(bool(settings.cors_origins)),
        "origins": " ".join(f'"{origin}" $http_origin;' for origin in settings.cors_origins),
        "exposed_headers": ", ".join(EXPOSED_HEADERS),
        **control_values(),
    }


#: Paths that the template has locations of their own for, with a time-out or an exact path.
SPECIAL = ("/ping", "/")


def pattern(paths: tuple[ControlPath, ...], name: str = "[^/]*") -> str:
    """Return a regular expression for the paths, without its anchors.

    A name in an open path has few characters: what needs no key must not be spelled in two ways. ``name`` is
    what any other may have: a decoded one may have a question mark, at which an encoded one ends.
    """
    return "|".join(
        re.sub(r"<\w+>", "[A-Za-z0-9._-]+" if path.is_open else name, path.rule.replace(".", r"\."))
        for path in paths
    )


def control_values() -> dict[str, str]:
    """Return the template's values for the paths of the control plane."""
    paths = all_paths()
    bodies = tuple(path for path in paths if path.takes_body)
    others = tuple(path for path in paths if path.rule not in SPECIAL and not path.takes_body)
    return {
        "max_scrapes": str(MAX_SCRAPES),
        "control_paths": pattern(paths, "[^/?]*"),
        "body_uris": pattern(bodies, "[^/?]*"),
        "body_paths": pattern(bodies),
        "open_paths": pattern(tuple(path for path in others if path.is_open)),
        "scraped_paths": pattern(tuple(path for path in others if path.is_scraped)),
        "keyed_paths": pattern(tuple(path for path in others if not path.is_open and not path.is_scraped)),
    }


def _has_sequences(box: Box) -> bool:
    """True if a model may keep state between requests. What multi-model mode will load is not known."""
    return box.multi_model or any(model.has_state for model in models.read(box.repository))


def _line_prefix(on: bool) -> str:
    """Return the prefix that enables or disables the template's lines for a setting."""
    return "" if on else "# "


def _all_streamed(settings: Settings) -> bool:
    """True if answers are streamed although the caller does not ask for it."""
    return settings.inference_type == "generate_stream" or settings.default_accept == "text/event-stream"


def _error_log(nginx: Path) -> tuple[str, ...]:
    """Return the option that replaces nginx's compiled-in log file; nginx has it since 1.19.5."""
    version = subprocess.run([nginx, "-v"], capture_output=True, text=True, check=False, timeout=30).stderr
    match = re.search(r"nginx/(\d+)\.(\d+)\.(\d+)", version)
    supported = match is not None and tuple(map(int, match.groups())) >= (1, 19, 5)
    return ("-e", "stderr") if supported else ()


def _first_error(output: str) -> str:
    lines = (
        [line for line in output.splitlines() if "[emerg]" in line] or output.splitlines() or ["no reason"]
    )
    return lines[0].partition("[emerg] ")[2] or lines[0]
