"""A Triton of one's own, with the models of one client and no other, for as long as it is needed."""

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
from sm.errors import StartError
from sm.inspection import overlay as merging
from sm.inspection import problems
from sm.inspection.machine import Machine
from sm.plugins.loading import ClientSource, load
from sm.plugins.registry import ModelMissing, check
from sm.repository.models import read as models_of
from sm.run_state import Box, shared_bytes
from sm.server.supervisor import ports
from sm.settings import Settings
from sm.tools.check.discovery import choose_models
from sm.triton import server, shared_memory_cleanup
from sm.triton.transport import Transport

#: What Triton's index says of a model that it has not come to yet.
UNLOADED = ("unloaded", "Triton gives no reason")


@contextmanager
def served(file: Path) -> Iterator[Client]:
    """The client of ``file``, set up, with its models in a Triton of its own; for a client's own tests."""
    found = ClientSource(file.parent.name if file.name == "client.py" else file.stem, file)
    settings = Settings.read(os.environ)
    client = load(found, cast("Triton", NoTriton()), file.parent)
    repository = choose_models(found, client, settings)
    with triton(client.required_models(), repository, settings) as transport:
        yield ready(found, transport, repository)


def ready(found: ClientSource, transport: Triton, repository: Path) -> Client:
    """Load a client, compare it with its models, set it up; :class:`StartError` says what is wrong."""
    client = load(found, transport, repository)
    try:
        check(client, found, transport)
    except ModelMissing as missing:
        raise StartError(f"{found.shown}: {missing}.") from None
    return client


@contextmanager
def triton(models: tuple[str, ...], repository: Path, settings: Settings) -> Iterator[Transport]:
    """A Triton on free ports that has loaded ``models`` (of an ensemble, its steps too)."""
    settings = replace(
        settings,
        triton_ports="off",
        triton_http_port=0,
        triton_grpc_port=0,
        triton_metrics_port=0,
        triton_arguments=(*settings.triton_arguments, *_explicitly(models)),
    )
    with tempfile.TemporaryDirectory(prefix="trireme-check-") as folder:
        drawn = ports.choose_ports(settings)
        box = Box(
            f"check{os.urandom(4).hex()}",
            Path(folder),
            repository,
            *drawn,
            "nginx",
            shared_bytes(settings, repository),
        )
        machine = Machine.find(settings)
        wanting = {model.name for model in problems.on_cpu(models_of(repository), machine)}
        if wanting and machine.without_gpu == "cpu":
            overlay = merging.overlay_cpu(repository, box.run / "repository", wanting)
            box = replace(box, overlay=overlay)
        hold = shared_memory_cleanup.acquire_instance_lock(box.id)
        try:
            with _process(settings, box, models):
                transport = Transport(settings, box)
                try:
                    yield transport
                finally:
                    transport.close()
        finally:
            hold.release()


def _explicitly(models: tuple[str, ...]) -> Iterator[str]:
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
    """Until its models are ready; :class:`StartError` with Triton's own reason if one cannot be."""
    end = time.monotonic() + settings.startup_timeout
    while not server.ready(box.http_port):
        for model, reason in server.failures(box.http_port).items():
            if model in models and reason not in UNLOADED:
                raise StartError(f"Triton cannot load {model!r}: {reason}.")
        if process.poll() is not None:
            last = (box.run / "triton.log").read_text(errors="replace").strip().splitlines()[-3:]
            raise StartError(f"Triton ended with exit code {process.returncode}: {' '.join(last)}")
        if time.monotonic() > end:
            raise StartError(f"Triton has not loaded {box.repository} in {settings.startup_timeout:g} s.")
        time.sleep(0.05)


class NoTriton:
    """Where there is no Triton yet: a client asks it when it is set up, never when it is made."""

    def __getattr__(self, name: str) -> object:
        raise StartError(f"it asks Triton ({name}) while it is loaded; do so in setup().")
