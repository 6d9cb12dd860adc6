"""What Triton is started with: addresses, keys of restricted APIs in its arguments, shared memory that fits."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sm.run_state import Box
from sm.settings import Settings
from sm.triton.server import _addresses, _pool, grpc_keys, http_keys

MB = 2**20


def test_a_pool_that_is_cut_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A /dev/shm as Docker gives it: 64 MB.
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=64 * MB // 4096, f_frsize=4096))
    caplog.set_level(logging.INFO)
    assert _pool(16 * MB, 2, Path("/dev/shm")) == 16 * MB
    assert caplog.records == []
    assert _pool(16 * MB, 3, Path("/dev/shm")) == 10 * MB
    (record,) = caplog.records
    assert {3, 10 * MB, 16 * MB} <= set(record.args or ())


@pytest.mark.parametrize(
    ("ports", "address"),
    [("off", "127.0.0.1"), ("loopback", "127.0.0.1"), ("all-with-known-holes", "0.0.0.0")],
)
def test_the_ports_are_open_on_every_address_only_if_the_setting_says_all(ports: str, address: str) -> None:
    box = Box("id", Path(), Path(), 1, 2, 3, "nginx", 0)
    options = _addresses(Settings.read({"TRIREME_TRITON_PORTS": ports}), box)
    assert options[::2] == tuple(f"--{name}-address={address}" for name in ("http", "grpc", "metrics"))


@pytest.mark.parametrize(
    ("arguments", "http", "grpc"),
    [
        (("--http-restricted-api=metadata,health:key=value",), {"key": "value"}, {}),
        (("--log-info=false", "--http-restricted-api", "metadata:key=value", "--x"), {"key": "value"}, {}),
        (("--http-restricted-api=health:a=1", "--http-restricted-api=metadata:b=x=y:z"), {"a": "1", "b": "x=y:z"}, {}),
        *((("--http-restricted-api", text), {}, {}) for text in ("", "health", "health:key", "health=key")),
        (("--http-restricted-api",), {}, {}),
        # A key of gRPC has Triton's prefix and is lower case.
        (("--grpc-restricted-protocol=health:Admin=Yes",), {}, {"triton-grpc-protocol-admin": "Yes"}),
    ],
)  # fmt: skip
def test_keys_are_in_arguments_of_any_form(
    arguments: Any, http: dict[str, str], grpc: dict[str, str]
) -> None:
    assert (http_keys(arguments), grpc_keys(arguments)) == (http, grpc)
