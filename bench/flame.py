"""Draw a flame graph of one of the box's workers under load. Needs py-spy: the extra ``bench``.

Of threads that hold the interpreter's lock: that is what bounds a worker, and py-spy takes threads that wait
for work to be busy. What lets go of the lock, as resizing does, is not in it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import files, tree
from bench.contestants.trireme import Trireme
from bench.running import free_port, running
from sm.errors import CommandError

#: Callers, seconds of the recording, samples a second.
CALLERS, SECONDS, RATE = 8, 10, 250
COMMAND = re.compile(r">[^<>]*py-spy record [^<>]*<")


def record(path: Path, model: str) -> None:
    """Load the box with JSON bodies for the instant ``model``, and write the SVG."""
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        raise CommandError("there is no py-spy; pip install -e '.[bench]'")
    with files.prepared() as shared, tempfile.TemporaryDirectory(prefix="trireme-bench-") as folder:
        contestant = Trireme(free_port(), "instant", Path(folder), shared)
        with running(contestant) as root:
            load = contestant.driver(model, "json", CALLERS, SECONDS + 2)
            assert root is not None
            assert load is not None
            with subprocess.Popen(load, stdout=subprocess.DEVNULL):
                spied = subprocess.run(
                    [
                        *(spy, "record", "--pid", str(worker(root)), "--output", str(path)),
                        *("--duration", str(SECONDS), "--rate", str(RATE), "--gil", "--nonblocking"),
                    ],
                    capture_output=True,
                    text=True,
                    check=False,
                )
    if spied.returncode:
        raise CommandError(f"py-spy failed: {spied.stderr.strip()[-500:]}")
    # py-spy's title is its command line, with the paths of this machine.
    title = f"One worker of the router, {model}, {CALLERS} callers: who holds the interpreter's lock"
    path.write_text(COMMAND.sub(f">{title}<", path.read_text(), count=1))


def worker(root: int) -> int:
    """Return the data plane's gunicorn worker with the lowest process id."""
    for pid in sorted(tree.pids(root)):
        words = (tree.PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        if b"sm.server.worker" in words:
            workers = sorted(tree.descendants(pid))
            if workers:
                return workers[0]
    raise CommandError("the box has no worker to look at")
