"""The reference design in front of the torch target's models, otherwise as in :mod:`bench.reference`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.reference.__main__ import gunicorn, nginx
from bench.serving import triton
from sm.triton import server


def main(port: int, folder: Path, repository: Path) -> None:
    command, box = triton(folder, repository, {})
    processes = [subprocess.Popen(command.arguments, env=command.environment)]
    try:
        while not server.ready(box.http_port):
            time.sleep(0.1)
        environment = {**os.environ, "BENCH_TRITON": f"127.0.0.1:{box.grpc_port}"}
        processes.append(subprocess.Popen(gunicorn(folder), env=environment))
        processes.append(subprocess.Popen(nginx(port, folder)))
        while all(process.poll() is None for process in processes):
            time.sleep(0.5)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    main(int(os.environ["BENCH_PORT"]), Path(os.environ["BENCH_FOLDER"]), Path(os.environ["GPU_PLAIN"]))
