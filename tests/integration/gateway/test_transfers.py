"""A call to S3 ends with its request, and its thread is free then."""

from __future__ import annotations

import gc
import socket
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from chalicelib.transfers import Transfer, Transfers, watch_connections

from sm.errors import DeadlinePassed, NotReady
from sm.invocation import Invocation, running
from tests.support.boxes import wait_until
from tests.support.gateways import BUCKET, FakeBucket
from tests.support.s3 import client
from tests.support.tcp_proxy import tcp_proxy


@contextmanager
def watched_client(url: str) -> Iterator[Any]:
    s3_client = client(url, 60)
    watch_connections(s3_client)
    yield s3_client
    s3_client.close()
    # An abandoned response keeps its socket until it is collected, of which Python warns. Do it now.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("scheme", ["http", "https"])  # also during the TLS handshake
def test_a_thread_is_free_again_once_its_caller_gave_up(scheme: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        ThreadPoolExecutor(1) as single_thread,
        watched_client(f"{scheme}://127.0.0.1:{server.getsockname()[1]}") as silent,
    ):
        with running(Invocation(time.monotonic() + 0.3)), pytest.raises(DeadlinePassed):
            Transfers(single_thread, 60).run(lambda: silent.get_object(Bucket="inputs", Key="a"))
        single_thread.submit(lambda: None).result(60)


def test_a_response_that_never_ends_is_given_up_without_a_deadline_too(cloud: FakeBucket) -> None:
    cloud.put("images/endless", b"x" * 900)
    with tcp_proxy(f"http://{cloud.address}") as proxy, ThreadPoolExecutor(1) as single_thread:
        proxy.slow_from_byte = 500
        with watched_client(proxy.url) as slow:
            with pytest.raises(NotReady):
                Transfers(single_thread, 0.5).run(
                    lambda: slow.get_object(Bucket=BUCKET, Key="images/endless")["Body"].read()
                )
            single_thread.submit(lambda: None).result(60)
            wait_until(lambda: not proxy.connections, description="the connection to be closed")


def test_aborting_a_transfer_does_not_close_a_connection_used_by_another() -> None:
    class Connection:
        transfer: object = None

    connection, first, second = Connection(), Transfer(), Transfer()
    client_end, server_end = socket.socketpair()
    with client_end, server_end:
        first.watch(connection, client_end)
        second.watch(connection, client_end)
        first.abort()
        server_end.sendall(b"answer")
        assert client_end.recv(10) == b"answer"
        second.abort()
        assert client_end.recv(10) == b""
        with pytest.raises(CancelledError):
            second.watch(connection, client_end)
        for transfer in (first, second):
            transfer.run(lambda: None)
