"""The public port is bound early; Triton's ports are free, distinct and within the safe range."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from sm.errors import StartError
from sm.server.supervisor import ports
from sm.settings import Settings
from tests.support.boxes import free_port


def test_a_port_in_use_is_named_in_one_sentence() -> None:
    with socket.create_server(("0.0.0.0", 0)) as occupied:
        port = occupied.getsockname()[1]
        with pytest.raises(StartError, match="SAGEMAKER_BIND_TO_PORT"):
            ports.listen(port)


def test_a_host_without_ipv6_is_served_over_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server

    def refuse_ipv6(address: tuple[str, int], **options: Any) -> socket.socket:
        if options.get("family") == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return create(address, **options)

    monkeypatch.setattr(socket, "create_server", refuse_ipv6)
    ports.public_address.cache_clear()
    try:
        with ports.listen(0) as listener:
            assert listener.family == socket.AF_INET
    finally:
        ports.public_address.cache_clear()


def test_ports_come_from_the_safe_range_without_its_occupied_ones() -> None:
    first = free_port()
    with socket.create_server(("127.0.0.1", first)):
        chosen = ports.choose_ports(Settings(safe_ports=(first, first + 50), port=first + 1))
    assert set(chosen) <= set(range(first + 2, first + 51))
    assert len(set(chosen)) == 3


def test_a_range_with_too_few_ports_and_a_port_in_use_stop_the_start() -> None:
    with pytest.raises(StartError, match="SAGEMAKER_SAFE_PORT_RANGE=8080-8081"):
        ports.choose_ports(Settings(safe_ports=(8080, 8081)))
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        with pytest.raises(StartError, match=f"{port} .*SAGEMAKER_TRITON_GRPC_PORT"):
            ports.choose_ports(Settings(triton_grpc_port=port))
