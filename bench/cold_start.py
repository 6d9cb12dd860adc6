"""Compare the cold and the second start of two commits: ``python -m bench.cold_start e4f35a2f HEAD``.

Each turn makes a fresh clone with an empty cache for each commit: ``make serve`` until the third right
answer, then once more in what is there by then. The medians go to standard output as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import requests

from bench.running import free_port
from sm.settings import HERE

#: A body and a word of its right answer, for each model.
CALLS = (
    ("resnet", "clients/resnet/sample/cat.png", "Egyptian cat"),
    ("yolov5", "clients/yolov5/sample/chelsea.jpg", "[15,"),
    ("bert_base", "The world has [MASK] people.", "no people"),
)
TIMEOUT_S = 900.0


def main() -> None:
    """Run the turns and print the times."""
    parser = argparse.ArgumentParser(prog="bench.cold_start", description=__doc__)
    parser.add_argument("commits", nargs="+")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    times: dict[str, dict[str, list[float]]] = {
        commit: {"cold": [], "second": []} for commit in options.commits
    }
    for turn in range(options.turns):
        for commit in options.commits:
            with tempfile.TemporaryDirectory() as folder:
                clone = Path(folder) / "clone"
                subprocess.run(["git", "clone", "-q", HERE, clone], check=True)
                subprocess.run(["git", "-C", clone, "checkout", "-q", commit], check=True)
                for kind in ("cold", "second"):
                    times[commit][kind].append(seconds_to_third_answer(clone, Path(folder)))
                    print(f"turn {turn + 1}, {commit}, {kind}: {times[commit][kind][-1]:.1f} s", flush=True)
    medians = {
        commit: {kind: round(statistics.median(values), 1) for kind, values in kinds.items()}
        for commit, kinds in times.items()
    }
    print(json.dumps({"times": times, "medians": medians}, indent=1))


def seconds_to_third_answer(clone: Path, home: Path) -> float:
    """Run ``make serve`` until each model has answered rightly, and stop it."""
    port = free_port()
    environment = {**os.environ, "HOME": str(home), "SAGEMAKER_BIND_TO_PORT": str(port)}
    for name in ("TRIREME_CACHE", "XDG_CACHE_HOME", "PIP_CACHE_DIR", "UV_CACHE_DIR", "npm_config_cache"):
        environment.pop(name, None)
    began = time.monotonic()
    with (home / "log").open("wb") as log:
        box = subprocess.Popen(
            ["make", "serve"], cwd=clone, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            for model, sent, word in CALLS:
                while word not in ask(port, model, clone, sent):
                    if box.poll() is not None or time.monotonic() > began + TIMEOUT_S:
                        raise SystemExit((home / "log").read_text(errors="replace")[-2000:])
                    time.sleep(0.02)
            return time.monotonic() - began
        finally:
            if box.poll() is None:
                os.killpg(box.pid, signal.SIGINT)
            box.wait()


def ask(port: int, model: str, clone: Path, sent: str) -> str:
    """Return the answer's text; empty while there is none."""
    is_picture = "/" in sent
    body = (clone / sent).read_bytes() if is_picture else sent.encode()
    kind = "application/octet-stream" if is_picture else "text/plain"
    try:
        address = f"http://127.0.0.1:{port}/invocations?modelname={model}"
        answer = requests.post(address, body, headers={"Content-Type": kind}, timeout=60)
    except requests.RequestException:
        return ""
    return answer.text if answer.ok else ""


if __name__ == "__main__":
    main()
