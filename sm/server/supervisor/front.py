"""Find nginx, write its configuration, and test it before the box starts."""

from __future__ import annotations

import grp
import math
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sm.errors import StartError
from sm.hardware import memory_limit
from sm.messages import INFERENCE_ID, REQUEST_ID, TRACE_ID
from sm.run_state import MAX_CONTROL_BODY_BYTES, Box
from sm.server.access.certificates import CERTIFICATE, KEY
from sm.server.supervisor.capacity import body_buffer, capacity, descriptor_limit
from sm.settings import HERE, Settings, cores, names_of

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


def choose(settings: Settings) -> Path | None:
    """Find the nginx to use; None if gunicorn is the front."""
    if settings.nginx == "off":
        if settings.multi_model:
            raise StartError(f"TRIREME_NGINX=off: {MODELS_NEED_NGINX}.")
        _check_nginx_settings(settings, "TRIREME_NGINX=off")
        return None
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:{NGINX_PATHS}")
    if nginx is None and settings.nginx == "on":
        raise StartError("TRIREME_NGINX=on, but there is no nginx on PATH: install it, or set it to auto.")
    if nginx is None and settings.multi_model:
        raise StartError(f"There is no nginx on PATH: {MODELS_NEED_NGINX}.")
    if nginx is None:
        _check_nginx_settings(settings, "There is no nginx on PATH")
    return Path(nginx) if nginx else None


def _check_nginx_settings(settings: Settings, reason: str) -> None:
    for name in NGINX_SETTINGS:
        if getattr(settings, name):
            raise StartError(f"{reason}, and {names_of(name)[0]} works only with nginx.")


def prepare(nginx: Path, settings: Settings, box: Box) -> tuple[str, ...]:
    """Write nginx's configuration into the run folder, test it with nginx, and return its command line."""
    folder = box.run / "nginx"
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
        "user": _user(),
        "processes": processes,
        # A single process needs no shared count, which would stay wrong after a process was killed.
        "shared_count": "zone data_plane 64k;" if processes > 1 else "",
        "connections": limits.connections,
        "run": box.run / "nginx",
        "draining": box.draining_file,
        "inference_id": INFERENCE_ID,
        "trace_id": TRACE_ID,
        "named_id": REQUEST_ID,
        "port": settings.port,
        "data_socket": box.data_socket,
        "control_socket": box.control_socket,
        "in_flight": limits.in_flight - limits.in_flight // 2,
        "in_flight_again": max(1, limits.in_flight // 2),  # 0 would mean no limit
        "with_repeats": _line_prefix(not _has_sequences(box)),
        "medium_bodies": limits.medium_bodies,
        "large_bodies": limits.large_bodies,
        "max_body": settings.max_body,
        "max_control_body": min(MAX_CONTROL_BODY_BYTES, settings.max_body),
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
        "http_two": " http2" if settings.http2 else "",
        "certificate": box.tls_folder / CERTIFICATE,
        "certificate_key": box.tls_folder / KEY,
        "with_keys": _line_prefix(settings.api_keys_file is not None),
        "keys_socket": box.keys_socket,
        "with_sessions": _line_prefix(settings.sessions),
        "with_cors": _line_prefix(bool(settings.cors_origins)),
        "origins": " ".join(f'"{origin}" $http_origin;' for origin in settings.cors_origins),
        "exposed_headers": ", ".join(EXPOSED_HEADERS),
    }


def _has_sequences(box: Box) -> bool:
    """True if a model may keep state between requests. What multi-model mode will load is not known."""
    configurations = box.repository.glob("*/config.pbtxt")
    return box.multi_model or any("sequence_batching" in file.read_text() for file in configurations)


def _line_prefix(on: bool) -> str:
    """Return the prefix that enables or disables the template's lines for a setting."""
    return "" if on else "# "


def _all_streamed(settings: Settings) -> bool:
    """True if answers are streamed although the caller does not ask for it."""
    return settings.inference_type == "generate_stream" or settings.default_accept == "text/event-stream"


def _user() -> str:
    """Return the user of nginx's workers: the supervisor's.

    They need its sockets. The router, which decodes data from strangers, has the same rights.
    """
    if os.geteuid() != 0:
        return ""
    return f"user {pwd.getpwuid(0).pw_name} {grp.getgrgid(0).gr_name};"


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
