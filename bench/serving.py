"""Triton alone, with the box's command line, for contestants without the box's router."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sm.model_processes.generations import SharedGeneration
from sm.run_state import Box, shared_bytes
from sm.server.supervisor import ports
from sm.settings import Settings
from sm.triton import server


def triton(
    folder: Path, repository: Path, environment: Mapping[str, str]
) -> tuple[server.TritonCommand, Box]:
    """Return Triton's command and its box with the ports; its files are written into ``folder``."""
    settings = Settings()
    run = folder / "run"
    run.mkdir()
    http, grpc, metrics = ports.choose_ports(settings)
    box = Box(
        f"bench{os.getpid()}",
        run,
        repository,
        http,
        grpc,
        metrics,
        "nginx",
        shared_bytes(settings, repository),
        # A worker's checks of each answer are part of what a request costs.
        generation_file=SharedGeneration.create(run / "generation").path,
    )
    variables = {**os.environ, "SAGEMAKER_TRITON_LOG_INFO": "false", **environment}
    return server.command(settings, box, variables), box
