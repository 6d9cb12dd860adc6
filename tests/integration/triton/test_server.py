"""Triton's command line, its ports, and how the box learns that a model is ready or has failed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.repository import machine
from sm.run_state import Box
from sm.settings import Settings
from sm.triton import server
from tests.support.plans import plan_manifest


def command_line_of(program: Path, **environment: str) -> tuple[str, ...]:
    """Return the command line for this server and an empty repository."""
    repository = program.parent / "models"
    repository.mkdir(exist_ok=True)
    box = Box("id", program.parent, repository, 1, 2, 3, "nginx", 0)
    environment = {"TRIREME_TRITON_SERVER": str(program), **environment}
    return server.command(Settings.read(environment), box, {**os.environ, **environment}).arguments


def write_server(file: Path, help_text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\nprintf '{help_text}'\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize(
    ("option", "value"),
    [("allow-client-shm", "true"), ("http-max-input-size", str(4 * 7 * 2**20)), ("http-thread-count", "3")],
)
def test_an_option_is_passed_only_to_a_server_that_has_it(tmp_path: Path, option: str, value: str) -> None:
    settings = {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "7", "SAGEMAKER_TRITON_THREAD_COUNT": "3"}
    for is_known, name in ((True, option), (False, f"{option}s"), (False, f"no-{option}")):
        help_text = f"  --{name} <value>\\n\ttext about --{option}\\n"
        program = write_server(tmp_path / f"tritonserver-{name}", help_text)
        command_line = command_line_of(program, **settings)
        assert (f"--{option}={value}" in command_line) is is_known
        assert command_line[0] == str(program)


@pytest.mark.parametrize(
    ("opening", "expected"),
    [
        ({}, []),
        ({"SAGEMAKER_TRITON_ALLOW_METRICS": "true"}, []),
        ({"SAGEMAKER_TRITON_ALLOW_GRPC": "true"}, ["16"]),
        *(({"TRIREME_TRITON_PORTS": value}, ["16"]) for value in ("loopback", "all", "all-with-known-holes")),
        # The last one counts for Triton.
        (
            {
                "TRIREME_TRITON_PORTS": "all",
                "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--grpc-max-response-pool-size=2",
            },
            ["16", "2"],
        ),
    ],
)
def test_an_open_grpc_port_keeps_a_bounded_number_of_responses(
    tmp_path: Path, opening: dict[str, str], expected: list[str]
) -> None:
    option = "--grpc-max-response-pool-size"
    has_it = write_server(tmp_path / "new", f"  {option} <integer>\\n\tresponses\\n")
    values = [
        word.partition("=")[2] for word in command_line_of(has_it, **opening) if word.startswith(option)
    ]
    assert values == expected
    lacks_it = write_server(tmp_path / "old")
    if "SAGEMAKER_TRITON_ADDITIONAL_ARGS" not in opening:
        assert not any(word.startswith(option) for word in command_line_of(lacks_it, **opening))


def test_the_response_cache_is_started_where_the_server_has_one(tmp_path: Path) -> None:
    program = write_server(tmp_path / "triton" / "bin" / "tritonserver")
    caches = tmp_path / "triton" / "caches"
    with pytest.raises(StartError, match="TRIREME_RESPONSE_CACHE_MB=64"):
        command_line_of(program, TRIREME_RESPONSE_CACHE_MB="64")
    (caches / server.LOCAL_CACHE).parent.mkdir(parents=True)
    (caches / server.LOCAL_CACHE).touch()
    options = {f"--cache-config=local,size={64 * 2**20}", f"--cache-directory={caches}"}
    assert options <= {*command_line_of(program, TRIREME_RESPONSE_CACHE_MB="64")}
    with pytest.raises(StartError, match="TRIREME_RESPONSE_CACHE_MB=1000000"):
        command_line_of(program, TRIREME_RESPONSE_CACHE_MB="1000000")
    command_line = command_line_of(program, TRIREME_RESPONSE_CACHE_MB="0")
    assert not [argument for argument in command_line if argument.startswith("--cache")]
    # Another cache finds its library in the same folder.
    redis = "--cache-config=redis,host=cache,port=6379"
    command_line = command_line_of(program, SAGEMAKER_TRITON_ADDITIONAL_ARGS=redis)
    assert {redis, f"--cache-directory={caches}"} <= {*command_line}


def test_plans_that_bring_a_runtime_are_allowed_only_in_the_boxs_own_repository(tmp_path: Path) -> None:
    version = tmp_path / "models" / "planned" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('name: "planned" backend: "tensorrt"')
    (version / "model.plan").touch()
    box = Box("id", tmp_path, tmp_path / "models", 1, 2, 3, "nginx", 0)
    option = "--backend-config=tensorrt,version-compatible=true"
    for is_compatible in (False, True):
        plan_manifest(version_compatible=is_compatible).write(version)
        assert (option in server.command(Settings.read({}), box, os.environ).arguments) == is_compatible
    multi_model = replace(box, multi_model=True)
    assert option not in server.command(Settings.read({}), multi_model, os.environ).arguments


def test_the_images_server_comes_before_the_wheels_and_a_missing_libpython_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "IMAGE", tmp_path / "tritonserver")
    assert machine.is_wheel(machine.find_server(Settings()))
    (tmp_path / "tritonserver").touch()
    assert machine.find_server(Settings()) == tmp_path / "tritonserver"
    monkeypatch.setattr(machine, "LIBPYTHON", "libpython3.99.so.1.0")
    with pytest.raises(StartError, match=r"libpython3\.99\.so\.1\.0"):
        machine.libpython()
