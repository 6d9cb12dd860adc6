"""``sm test``: each client's own sample, sent to a box and compared with its golden answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from sm.errors import StartError
from sm.plugins.loading import ClientSource, discover
from sm.plugins.name_conflicts import select_sources
from sm.run_state import CODE, choose_repository, find_repository
from sm.settings import HERE, Settings, names_of
from sm.tools.golden import differences, short

#: Seconds for one answer, and for a box of our own to stop: it drains for 25.
REQUEST_TIMEOUT_S = 60.0
#: Settings that keep callers out; a box of our own needs none of them.
LOCKS = (
    "tls_certificate",
    "tls_key",
    "http2",
    "api_keys_file",
    "rate_limit",
    "rate_burst",
    "cors_origins",
    "triton_ports",
)


@dataclass(frozen=True)
class Outcome:
    """One client's: ``differences`` is None where its model is not served."""

    client: str
    differences: tuple[str, ...] | None
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.differences is None:
            return "-  its model is not served"
        said = f"DIFFERS: {'; '.join(self.differences)}" if self.differences else "equal"
        return f"{said} ({self.seconds * 1000:.0f} ms)"


def run(settings: Settings, url: str | None) -> int:
    """Print a line for each client; 1 if one differs, or if there was nothing to compare."""
    if url:
        outcomes = tuple(examine(url.rstrip("/"), settings))
    else:
        with own_box(settings) as address:
            outcomes = tuple(examine(address, settings))
    differs = print_outcomes(outcomes)
    if not any(outcome.differences is not None for outcome in outcomes):
        raise StartError(
            "no client that is served has a sample: sample/payload.json and golden.json beside it."
        )
    return differs


def print_outcomes(outcomes: Sequence[Outcome]) -> int:
    """Print a line for each client; 1 if one differs."""
    width = max((len(outcome.client) for outcome in outcomes), default=0)
    for outcome in outcomes:
        sys.stdout.write(f"{outcome.client:<{width}}  {outcome}\n")
    return int(any(outcome.differences for outcome in outcomes))


def examine(url: str, settings: Settings) -> Iterator[Outcome]:
    """Ask the box at ``url`` once for each client that has a sample."""
    served = {row["modelName"] for row in _ask(f"{url}/models").get("models", ())}
    repository = choose_repository(settings)
    for name, sample in samples(select_sources(discover((*settings.clients, repository / CODE)))):
        if name not in served:
            yield Outcome(name, None)
            continue
        yield compare(name, sample, lambda body: _ask(f"{url}/invocations", body))


def compare(name: str, sample: Path, ask: Callable[[dict[str, Any]], dict[str, Any]]) -> Outcome:
    """Send a client's sample; ``ask`` takes the body of an invocation and gives the answer, or the error."""
    payload, golden = (json.loads((sample / f"{part}.json").read_bytes()) for part in ("payload", "golden"))
    began = time.monotonic()
    answer = ask({"modelname": name, "payload": payload})
    seconds = time.monotonic() - began
    found = differences(answer["result"], golden) if "result" in answer else (str(answer.get("error")),)
    return Outcome(name, tuple(islice(found, 3)), seconds)


def samples(clients: Iterable[ClientSource]) -> Iterator[tuple[str, Path]]:
    """The clients that have a sample, and its folder."""
    for client in clients:
        folder = client.file.parent / "sample"
        if client.file.name == "client.py" and (folder / "golden.json").is_file():
            yield client.name, folder


def _ask(url: str, body: Any = None) -> dict[str, Any]:
    """The answer's JSON, an error's too; :class:`StartError` where nobody answers in JSON."""
    if not url.startswith(("http://", "https://")):
        raise StartError(f"{url} is no address of a box: it begins with http:// or https://.")
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:  # noqa: S310
            return dict(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        text = error.read()
    except (OSError, ValueError) as error:
        raise StartError(f"no box answers at {url}: {error}.") from None
    try:
        return dict(json.loads(text))
    except ValueError:
        raise StartError(
            f"what answers at {url} is no box: {short(text.decode(errors='replace'))}."
        ) from None


@contextmanager
def own_box(settings: Settings) -> Iterator[str]:
    """A box on a free port for as long as this lasts; :class:`StartError` says why it does not start."""
    find_repository(settings)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    locks = {name for field in LOCKS for name in names_of(field)}
    unlocked = {name: value for name, value in os.environ.items() if name not in locks}
    environment = {**unlocked, "SAGEMAKER_BIND_TO_PORT": str(port), "TRIREME_LOG_FORMAT": "json"}
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, str(HERE / "serve")]
        box = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the box is stopped too
        try:
            _wait_ready(box, port, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            box.terminate()
            box.wait(REQUEST_TIMEOUT_S)
            signal.signal(signal.SIGTERM, before)


def _wait_ready(box: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    """The box itself gives up when it has taken too long."""
    while box.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    log.seek(0)
    lines = [json.loads(line) for line in log.read().splitlines() if line.startswith(b"{")]
    said = [line["message"] for line in lines if line.get("process") == "serve" and line["level"] == "error"]
    raise StartError(said[-1] if said else f"the box ended with exit code {box.returncode}.")
