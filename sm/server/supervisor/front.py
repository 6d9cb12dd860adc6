"""Find nginx, write its configuration, and test it before the box starts."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sm.errors import StartError
from sm.request_ids import INFERENCE_ID, TRACE_ID
from sm.run_state import MAX_CONTROL_BODY_BYTES, Box
from sm.server.access.certificates import CERTIFICATE, KEY
from sm.server.supervisor.capacity import body_buffer, capacity, descriptor_limit, memory_limit
from sm.settings import HERE, Settings, cores, names_of

TEMPLATE = HERE / "nginx.conf"
#: nginx is often where only root's PATH looks.
NGINX_PATHS = "/usr/sbin:/usr/local/sbin:/usr/local/nginx/sbin"
#: Seconds by which nginx waits longer than what is behind it.
TIMEOUT_MARGIN_S = 5
MODELS_NEED_NGINX = (
    "multi-model mode (SAGEMAKER_MULTI_MODEL=true) needs nginx, which has one process load all the models"
)
#: Settings that protect the port, and so may not be passed over in silence.
NGINX_SETTINGS = ("tls_certificate", "api_keys_file", "cors_origins")
#: Headers of answers that a page of another origin may read.
EXPOSED_HEADERS = (
    "Retry-After",
    "WWW-Authenticate",
    "X-Amzn-SageMaker-Session-Id",
    "X-Amzn-SageMaker-New-Session-Id",
    "X-Amzn-SageMaker-Closed-Session-Id",
    "X-Amzn-SageMaker-Custom-Attributes",
    "X-Amzn-SageMaker-Content-Type",
    "x-Amzn-Invoked-Production-Variant",
)
WITHOUT_NGINX = (
    "there is no nginx, so gunicorn takes the port itself: /ping shares the workers with the invocations and "
    "can be late when all are busy, and a caller too many waits instead of getting 429"
)


def choose(settings: Settings) -> Path | None:
    """The nginx to use; None where gunicorn is the front."""
    if settings.nginx == "off":
        if settings.multi_model:
            raise StartError(f"TRIREME_NGINX=off: {MODELS_NEED_NGINX}.")
        _check_nginx_settings(settings, "TRIREME_NGINX=off")
        return None
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:{NGINX_PATHS}")
    if found is None and settings.nginx == "on":
        raise StartError("TRIREME_NGINX=on, but there is no nginx on PATH: install it, or set it to auto.")
    if found is None and settings.multi_model:
        raise StartError(f"There is no nginx on PATH: {MODELS_NEED_NGINX}.")
    if found is None:
        _check_nginx_settings(settings, "There is no nginx on PATH")
    return Path(found) if found else None


def _check_nginx_settings(settings: Settings, why: str) -> None:
    for name in NGINX_SETTINGS:
        if getattr(settings, name):
            raise StartError(f"{why}, and {names_of(name)[0]} works with nginx alone.")


def prepare(nginx: Path, settings: Settings, box: Box) -> tuple[str, ...]:
    """Write nginx's configuration into the run folder, have nginx check it, and give its command line."""
    folder = box.run / "nginx"
    for name in ("body", "proxy", "fastcgi", "uwsgi", "scgi"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    file = folder / "nginx.conf"
    file.write_text(render(settings, box))
    command = (str(nginx), "-p", str(folder), "-c", str(file), *_error_log(nginx))
    checked = subprocess.run([*command, "-t", "-q"], capture_output=True, text=True, check=False, timeout=30)
    if checked.returncode:
        raise StartError(f"nginx refuses its configuration: {_first_complaint(checked.stderr)}")
    return command


def render(settings: Settings, box: Box) -> str:
    """The configuration for this box. Only ``${name}`` is ours: ``$name`` is nginx's own."""
    filled = values(settings, box)
    return re.sub(r"\$\{([a-z_]+)\}", lambda found: str(filled[found[1]]), TEMPLATE.read_text())


def values(settings: Settings, box: Box) -> Mapping[str, object]:
    """What the template leaves open. Sizes in bytes, times in seconds."""
    patience = int(settings.timeout) + TIMEOUT_MARGIN_S
    processes = max(1, min(4, cores() // 4))
    limits = capacity(settings, memory_limit(), descriptor_limit())
    return {
        "user": _user(),
        "processes": processes,
        # One process needs no shared count, which would be wrong for ever once a process is killed.
        "shared_count": "zone data_plane 64k;" if processes > 1 else "",
        "connections": limits.connections,
        "run": box.run / "nginx",
        "draining": box.draining_file,
        "inference_id": INFERENCE_ID,
        "trace_id": TRACE_ID,
        "port": settings.port,
        "data_socket": box.data_socket,
        "control_socket": box.control_socket,
        "in_flight": limits.in_flight,
        "medium_bodies": limits.medium_bodies,
        "large_bodies": limits.large_bodies,
        "max_body": settings.max_body,
        "max_control_body": min(MAX_CONTROL_BODY_BYTES, settings.max_body),
        "body_buffer": body_buffer(settings),
        "receive_timeout": max(1, round(settings.receive_timeout)),
        "timeout": patience,
        "stream_timeout": int(settings.longest_stream) + TIMEOUT_MARGIN_S,
        "all_streamed": int(_all_streamed(settings)),
        # Unloading a model may take the platform's 360 s, loading one what is set.
        "control_timeout": max(
            patience, 360 + TIMEOUT_MARGIN_S, int(settings.load_timeout) + TIMEOUT_MARGIN_S
        ),
        "with_tls": _enabled(settings.tls),
        "tls_port": settings.tls_port,
        "http_two": " http2" if settings.http2 else "",
        "certificate": box.tls_folder / CERTIFICATE,
        "certificate_key": box.tls_folder / KEY,
        "with_keys": _enabled(settings.api_keys_file is not None),
        "keys_socket": box.keys_socket,
        "with_cors": _enabled(bool(settings.cors_origins)),
        "origins": " ".join(f'"{origin}" $http_origin;' for origin in settings.cors_origins),
        "exposed_headers": ", ".join(EXPOSED_HEADERS),
    }


def _enabled(on: bool) -> str:
    """What stands before a line of the template that is for one setting."""
    return "" if on else "# "


def _all_streamed(settings: Settings) -> bool:
    """Whether a request need not ask for a stream to get one."""
    return settings.inference_type == "generate_stream" or settings.default_accept == "text/event-stream"


def _user() -> str:
    """nginx's workers stay who the supervisor is.

    They need its sockets; and the router beside them, which decodes what strangers send, has the same rights.
    """
    if os.geteuid() != 0:
        return ""
    return f"user {pwd.getpwuid(0).pw_name} {grp.getgrgid(0).gr_name};"


def _error_log(nginx: Path) -> tuple[str, ...]:
    """Keeps nginx from the log file it was built with, where it knows how (1.19.5)."""
    shown = subprocess.run([nginx, "-v"], capture_output=True, text=True, check=False, timeout=30).stderr
    found = re.search(r"nginx/(\d+)\.(\d+)\.(\d+)", shown)
    known = found is not None and tuple(map(int, found.groups())) >= (1, 19, 5)
    return ("-e", "stderr") if known else ()


def _first_complaint(output: str) -> str:
    lines = (
        [line for line in output.splitlines() if "[emerg]" in line] or output.splitlines() or ["no reason"]
    )
    return lines[0].partition("[emerg] ")[2] or lines[0]
