"""The entry point of the reference design: Triton, gunicorn and nginx, started and stopped together."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from string import Template

from bench import repositories
from bench.contestant import PROCESSES
from bench.reference import THREADS
from bench.serving import triton
from sm.errors import CommandError
from sm.triton import server


def main(port: int, folder: Path, repository: Path) -> None:
    command, box = triton(folder, repository, {})
    started = [subprocess.Popen(command.arguments, env=command.environment)]
    try:
        while not server.is_healthy(box.http_port):
            time.sleep(0.1)
        environment = {**os.environ, "BENCH_TRITON": f"127.0.0.1:{box.grpc_port}"}
        started.append(subprocess.Popen(gunicorn(folder), env=environment))
        started.append(subprocess.Popen(nginx(port, folder)))
        while all(process.poll() is None for process in started):
            time.sleep(0.5)
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def gunicorn(folder: Path) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "gunicorn", "bench.reference.service:app"),
        *("--bind", f"unix:{folder / 'gunicorn.sock'}", "--worker-class", "gthread"),
        *("--workers", str(PROCESSES), "--threads", str(THREADS), "--timeout", "120"),
    )


def nginx(port: int, folder: Path) -> tuple[str, ...]:
    """Write nginx's configuration into ``folder`` and return its command line."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise CommandError("there is no nginx; on Debian and Ubuntu: apt-get install nginx-light")
    text = Path(__file__).with_name("nginx.conf").read_text()
    configuration = folder / "nginx.conf"
    # The folder is the user's alone; nginx's workers would else be nobody.
    user = "user root;" if os.geteuid() == 0 else ""
    configuration.write_text(Template(text).safe_substitute(port=port, folder=folder, user=user))
    return (program, "-p", str(folder), "-c", str(configuration), "-e", "stderr")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    environment = os.environ
    folder, files = Path(environment["BENCH_FOLDER"]), Path(environment["BENCH_FILES"])
    repository = Path(environment.get("BENCH_REPOSITORY") or folder / "repository")
    if "BENCH_REPOSITORY" not in environment:
        instant = environment["BENCH_REGIME"] == "instant"
        (repositories.plain_instant if instant else repositories.plain)(repository, files)
    main(int(environment["BENCH_PORT"]), folder, repository)
