"""The front: nginx, found, configured and tried before the box starts."""

from __future__ import annotations

import grp
import os
import pwd
import re
import resource
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sm.box import Box
from sm.errors import StartError
from sm.settings import HERE, Settings, cores

TEMPLATE = HERE / "nginx.conf"
#: nginx is often where only root's PATH looks.
PLACES = "/usr/sbin:/usr/local/sbin:/usr/local/nginx/sbin"
#: Seconds by which nginx waits longer than what is behind it.
MARGIN = 5
#: Bytes of a body that nginx keeps in memory, as large as the platform's largest outside of batch transform:
#: spooling a 400 KB picture to a file costs 0.9 ms.
BODY_BUFFER = 25 * 2**20
MODELS_NEED_NGINX = (
    "multi-model mode (SAGEMAKER_MULTI_MODEL=true) needs nginx, which has one process load all the models"
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
        return None
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:{PLACES}")
    if found is None and settings.nginx == "on":
        raise StartError("TRIREME_NGINX=on, but there is no nginx on PATH: install it, or set it to auto.")
    if found is None and settings.multi_model:
        raise StartError(f"There is no nginx on PATH: {MODELS_NEED_NGINX}.")
    return Path(found) if found else None


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
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A caller has two connections here: its own and the one behind.
    connections = max(64, min(4096, files // 3))
    patience = int(settings.timeout) + MARGIN
    return {
        "user": _user(),
        "processes": max(1, min(4, cores() // 4)),
        "connections": connections,
        "run": box.run / "nginx",
        "draining": box.draining_file,
        "port": settings.port,
        "data_socket": box.data_socket,
        "control_socket": box.control_socket,
        "in_flight": min(65535, settings.worker_count * settings.threads + settings.queue),
        "max_body": settings.max_body,
        "body_buffer": max(1024, min(BODY_BUFFER, settings.max_body)),
        "timeout": patience,
        "stream_timeout": int(settings.longest_stream) + MARGIN,
        "all_streamed": int(_all_streamed(settings)),
        # Loading a model may take the platform's 360 s.
        "control_timeout": max(patience, 360 + MARGIN),
    }


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
