"""The public port is held and Triton's are free, distinct and where they may be."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from sm.errors import StartError
from sm.server.supervisor import ports
from sm.settings import Settings


def test_a_port_in_use_is_named_in_one_sentence() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"^Port {port} is already in use: .*SAGEMAKER_BIND_TO_PORT"):
            ports.listen(port)


def test_a_connection_waits_at_the_held_port_for_whoever_accepts() -> None:
    with ports.listen(0) as listener, socket.create_connection(listener.getsockname(), timeout=5) as caller:
        caller.sendall(b"x")
        guest, _ = listener.accept()
        with guest:
            assert guest.recv(1) == b"x"


def test_the_kernels_ports_are_three_different_free_ones() -> None:
    drawn = ports.choose_ports(Settings())
    assert len({8080, *drawn}) == 4
    for port in drawn:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_what_is_set_is_kept() -> None:
    settings = replace(Settings(), triton_http_port=18001, triton_metrics_port=18003)
    http, grpc, metrics = ports.choose_ports(settings)
    assert (http, metrics) == (18001, 18003)
    assert grpc not in (0, http, metrics)


def test_the_safe_range_is_kept_to_and_its_taken_ports_are_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        low = min(taken.getsockname()[1], 65000)
        settings = replace(Settings(), safe_ports=(low, low + 50), port=low + 1)
        drawn = ports.choose_ports(settings)
    assert all(low <= port <= low + 50 for port in drawn)
    assert not {low + 1, taken_port(low)} & set(drawn)
    assert len(set(drawn)) == 3


def taken_port(low: int) -> int:
    return low if low < 65000 else 0


def test_a_range_with_too_few_ports_is_named() -> None:
    settings = replace(Settings(), safe_ports=(8080, 8081))
    with pytest.raises(StartError, match="SAGEMAKER_SAFE_PORT_RANGE=8080-8081 has too few free ports"):
        ports.choose_ports(settings)


def test_open_ports_are_where_callers_look_for_them() -> None:
    assert ports.requested_ports(Settings(allow_grpc=True, allow_metrics=True)) == (0, 8001, 8002)
    assert ports.requested_ports(Settings(allow_grpc=True, triton_grpc_port=9001)) == (0, 9001, 0)
    assert ports.requested_ports(Settings()) == (0, 0, 0)


def test_open_ports_are_drawn_from_the_safe_range_where_there_is_one() -> None:
    settings = Settings(allow_grpc=True, allow_metrics=True, safe_ports=(21000, 21100))
    assert all(21000 <= port <= 21100 for port in ports.choose_ports(settings))


def test_a_port_that_is_set_and_taken_names_its_variable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"^Port {port} .*SAGEMAKER_TRITON_GRPC_PORT"):
            ports.choose_ports(Settings(triton_grpc_port=port))
