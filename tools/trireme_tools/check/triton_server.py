"""Run a Triton with the models of one client."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from sm.client.base import Client, Triton
from sm.commands.client_loading import NoTriton
from sm.errors import CommandError
from sm.plugins.checks import ModelMissing, check
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource
from sm.repository import overlay
from sm.repository.machine import Machine
from sm.run_state import Box, shared_bytes
from sm.server.supervisor import ports
from sm.settings import Settings
from sm.triton import server, shared_memory_cleanup
from sm.triton.transport import Transport
from trireme_tools.check.discovery import choose_models

#: Reasons in Triton's index for a model that it has not loaded yet.
UNLOADED = ("unloaded", "Triton gives no reason")


@contextmanager
def served(file: Path) -> Iterator[Client]:
    """Yield the client of ``file``, set up, with its models in a Triton of its own; for a client's own
    tests.
    """
    source = ClientSource(file.parent.name if file.name == "client.py" else file.stem, file)
    settings = Settings.read(os.environ)
    client = load(source, cast("Triton", NoTriton()), file.parent)
    repository = choose_models(source, client, settings)
    with triton(client.required_models(), repository, settings) as transport:
        yield ready(source, transport, repository)


def ready(source: ClientSource, transport: Triton, repository: Path) -> Client:
    """Load a client, compare it with its models, and set it up. Raises :class:`CommandError`."""
    client = load(source, transport, repository)
    try:
        check(client, source, transport)
    except ModelMissing as missing:
        raise CommandError(f"{source.display_path}: {missing}.") from None
    return client


@contextmanager
def triton(models: tuple[str, ...], repository: Path, settings: Settings) -> Iterator[Transport]:
    """Run a Triton on free ports with ``models`` and, for an ensemble, its steps."""
    settings = replace(
        settings,
        triton_ports="off",
        triton_http_port=0,
        triton_grpc_port=0,
        triton_metrics_port=0,
        triton_arguments=(*settings.triton_arguments, *_load_arguments(models)),
    )
    with tempfile.TemporaryDirectory(prefix="trireme-check-") as folder:
        chosen_ports = ports.choose_ports(settings)
        box = Box(
            f"check{os.urandom(4).hex()}",
            Path(folder),
            repository,
            *chosen_ports,
            "nginx",
            shared_bytes(settings, repository),
        )
        machine = Machine.find(settings)
        links = overlay.for_triton(repository, box.run / "repository", machine)
        box = replace(box, overlay=links)
        instance_lock = shared_memory_cleanup.acquire_instance_lock(box.id)
        try:
            with _process(settings, box, models):
                transport = Transport(settings, box)
                try:
                    yield transport
                finally:
                    transport.close()
        finally:
            instance_lock.release()


def _load_arguments(models: tuple[str, ...]) -> Iterator[str]:
    yield "--model-control-mode=explicit"
    for model in models:
        yield f"--load-model={model}"


@contextmanager
def _process(settings: Settings, box: Box, models: tuple[str, ...]) -> Iterator[None]:
    command = server.command(settings, box, os.environ)
    with (box.run / "triton.log").open("wb") as log:
        process = subprocess.Popen(command.arguments, env=command.environment, stdout=log, stderr=log)
    try:
        _wait(process, settings, box, models)
        yield
    finally:
        process.terminate()
        try:
            process.wait(settings.drain + 5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], settings: Settings, box: Box, models: tuple[str, ...]) -> None:
    """Wait until its models are ready. Raises :class:`CommandError` with Triton's reason."""
    end = time.monotonic() + settings.startup_timeout
    while not server.is_healthy(box.http_port):
        for model, reason in server.failures(box.http_port).items():
            if model in models and reason not in UNLOADED:
                raise CommandError(f"Triton cannot load {model!r}: {reason}.")
        if process.poll() is not None:
            last = (box.run / "triton.log").read_text(errors="replace").strip().splitlines()[-3:]
            raise CommandError(f"Triton ended with exit code {process.returncode}: {' '.join(last)}")
        if time.monotonic() > end:
            raise CommandError(f"Triton has not loaded {box.repository} in {settings.startup_timeout:g} s.")
        time.sleep(0.05)
