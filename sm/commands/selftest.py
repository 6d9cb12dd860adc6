"""``sm test``: send each client's sample to a box and compare the answer with its golden one."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from sm.commands.golden import differences
from sm.commands.local_boxes import ask
from sm.errors import CommandError
from sm.plugins.discovery import select_sources
from sm.plugins.sources import ClientSource, discover, discover_in_models
from sm.repository.models import CODE
from sm.server.startup import check_client_folders, choose_repository, find_repository
from sm.settings import PACKAGE, Settings, names_of

#: Seconds for a started box to stop: it drains for 25.
STOP_TIMEOUT_S = 60.0
#: Why something that the box serves was not tested.
NO_SAMPLE = "not tested: it has no sample/payload.json with a golden.json beside it"
NO_CLIENT = "not tested: its client is not in TRIREME_CLIENTS, ./clients or code/ of the repository"
#: Settings that restrict callers; a box for this test has none of them.
ACCESS_SETTINGS = (
    "tls_certificate",
    "tls_key",
    "api_keys_file",
    "rate_limit",
    "cors_origins",
    "triton_ports",
)


@dataclass(frozen=True)
class Outcome:
    """The result for one client; ``differences`` is None if it was not tested, for the ``reason``."""

    client: str
    differences: tuple[str, ...] | None
    seconds: float = 0.0
    reason: str = "its model is not served"

    def __str__(self) -> str:
        if self.differences is None:
            return f"-  {self.reason}"
        verdict = f"DIFFERS: {'; '.join(self.differences)}" if self.differences else "equal"
        return f"{verdict} ({self.seconds * 1000:.0f} ms)"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", help="a running box; without it the command starts one and stops it")


def run(options: argparse.Namespace) -> int:
    """Print a line for each client; return 1 if one differs, or if there was nothing to compare."""
    settings = Settings.read(os.environ)
    if options.url:
        outcomes = tuple(compare_samples(options.url, settings))
    else:
        with own_box(settings) as address:
            outcomes = tuple(compare_samples(address, settings))
    differs = print_outcomes(outcomes)
    if not any(outcome.differences is not None for outcome in outcomes):
        raise CommandError(
            "no client that is served has a sample: sample/payload.json and golden.json beside it."
        )
    return differs


def print_outcomes(outcomes: Sequence[Outcome]) -> int:
    """Print a line for each client; return 1 if one differs."""
    width = max((len(outcome.client) for outcome in outcomes), default=0)
    for outcome in outcomes:
        sys.stdout.write(f"{outcome.client:<{width}}  {outcome}\n")
    return int(any(outcome.differences for outcome in outcomes))


def compare_samples(url: str, settings: Settings) -> Iterator[Outcome]:
    """Send a request to the box at ``url`` for each client that has a sample."""
    _, listed = ask(url, "/models")
    served = {row["modelName"] for row in listed.get("models", ())}
    sources = find_sources(settings)
    with_sample = dict(samples(sources))
    for name, sample in with_sample.items():
        if name not in served:
            yield Outcome(name, None)
            continue
        yield compare_sample(
            name, sample, lambda body: ask(url, "/invocations", json.dumps(body).encode())[1]
        )
    own_names = {source.name for source in sources}
    for name in sorted(served - with_sample.keys()):
        yield Outcome(name, None, reason=NO_SAMPLE if name in own_names else NO_CLIENT)


def find_sources(settings: Settings) -> tuple[ClientSource, ...]:
    """Return the clients of the box, of the repository, and of ``clients`` and ``model`` in this folder."""
    check_client_folders(settings)
    repository = choose_repository(settings).absolute()
    folders = (*settings.clients, repository / CODE, Path("clients"))
    sources = list(discover(tuple(reversed(dict.fromkeys(folder.absolute() for folder in folders)))))
    for models in dict.fromkeys((repository, Path("model").absolute())):
        sources += discover_in_models(models, sources)
    return select_sources(sources)


def compare_sample(name: str, sample: Path, ask: Callable[[dict[str, Any]], dict[str, Any]]) -> Outcome:
    """Send a client's sample; ``ask`` takes the body of an invocation and returns the answer or error."""
    payload, golden = (json.loads((sample / f"{part}.json").read_bytes()) for part in ("payload", "golden"))
    began = time.monotonic()
    answer = ask({"modelname": name, "payload": payload})
    seconds = time.monotonic() - began
    differing = differences(answer["result"], golden) if "result" in answer else (str(answer.get("error")),)
    return Outcome(name, tuple(islice(differing, 3)), seconds)


def samples(clients: Iterable[ClientSource]) -> Iterator[tuple[str, Path]]:
    """Yield the clients that have a sample, with its folder."""
    for client in clients:
        folder = client.file.parent / "sample"
        if client.has_folder and (folder / "golden.json").is_file():
            yield client.name, folder


@contextmanager
def own_box(settings: Settings, **variables: str) -> Iterator[str]:
    """Run a box on a free port. Raises :class:`CommandError` if it does not start.

    ``variables`` are added to its environment. Ctrl-C reaches this process alone, which then stops the box.
    """
    find_repository(settings)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    access_variables = {name for field in ACCESS_SETTINGS for name in names_of(field)}
    unlocked = {name: value for name, value in os.environ.items() if name not in access_variables}
    environment = {**unlocked, "SAGEMAKER_BIND_TO_PORT": str(port), "TRIREME_LOG_FORMAT": "json", **variables}
    paths = [str(PACKAGE.parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "sm.server.supervisor.start"]
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the box is stopped too
        box = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            _wait_ready(box, port, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            box.terminate()
            try:
                box.wait(STOP_TIMEOUT_S)
            except KeyboardInterrupt:  # Whoever waits for this command waits for its box.
                box.wait(STOP_TIMEOUT_S)
                raise
            signal.signal(signal.SIGTERM, before)


def _wait_ready(box: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    """Wait until the box is ready, or has given up by itself."""
    while box.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    log.seek(0)
    lines = [json.loads(line) for line in log.read().splitlines() if line.startswith(b"{")]
    errors = [
        line["message"] for line in lines if line.get("process") == "serve" and line["level"] == "error"
    ]
    raise CommandError(errors[-1] if errors else f"the box ended with exit code {box.returncode}.")
