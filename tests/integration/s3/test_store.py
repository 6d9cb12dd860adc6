"""``Store`` against a fake S3, one that refuses connections, and one that never responds."""

from __future__ import annotations

import gc
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor
from typing import Any

import pytest

from sm.deadline import Deadline, running
from sm.errors import (
    BadInput,
    DeadlinePassed,
    Forbidden,
    NotFound,
    NotReady,
    StartError,
    StorageFailed,
    TooLarge,
)
from sm.http.s3 import S3Uri
from sm.router.s3 import Store, Transfer, open_store
from sm.settings import Settings
from tests.support.boxes import free_port, wait_until
from tests.support.dripping_proxy import running_dripping_proxy
from tests.support.s3 import client

OBJECT = S3Uri("inputs", "a/b.txt")


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


#: The clients of the running test, closed at its end.
OPEN_CLIENTS: list[Any] = []


def connect(url: str, timeout_s: float = 10) -> Any:
    """A client that is closed after the test: Python warns of a socket that is collected while open."""
    s3_client = client(url, timeout_s)
    OPEN_CLIENTS.append(s3_client)
    return s3_client


@pytest.fixture(autouse=True)
def closed_clients() -> Iterator[None]:
    yield
    while OPEN_CLIENTS:
        OPEN_CLIENTS.pop().close()
    # An abandoned response keeps its socket until it is collected. Collect it now, not in a later test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def open_store_at(url: str, executor: Executor, timeout_s: float = 10) -> Store:
    return Store(("inputs",), 1000, executor, connect(url, timeout_s))


def test_an_object_that_was_written_can_be_read(aws: str, executor: Executor) -> None:
    store = open_store_at(aws, executor)
    store.write(OBJECT, b"{}", "application/json")
    assert store.read(OBJECT) == b"{}"
    assert connect(aws).head_object(Bucket="inputs", Key="a/b.txt")["ContentType"] == "application/json"


def test_an_object_or_a_bucket_that_is_missing_is_a_404(aws: str, executor: Executor) -> None:
    with pytest.raises(NotFound, match="s3://inputs/none does not exist"):
        open_store_at(aws, executor).read(S3Uri("inputs", "none"))
    with pytest.raises(NotFound, match="NoSuchBucket"):
        open_store_at(aws, executor).write(S3Uri("nowhere", "a"), b"", "text/plain")


def test_an_object_over_the_limit_is_a_413_and_not_read(aws: str, executor: Executor) -> None:
    connect(aws).put_object(Bucket="inputs", Key="large", Body=b"x" * 1001)
    with pytest.raises(TooLarge, match=r"1,001 bytes, this box takes 1,000"):
        open_store_at(aws, executor).read(S3Uri("inputs", "large"))


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [("AccessDenied", 403, Forbidden), ("SlowDown", 503, NotReady), ("InvalidObjectState", 400, BadInput)],
)
def test_an_error_of_s3_is_passed_on_with_its_code(
    aws: str, executor: Executor, code: str, status: int, error: type[Exception]
) -> None:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    head = f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as server_pool:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(head + body)

        refusal = server_pool.submit(refuse)
        with pytest.raises(error, match=code):
            open_store_at(f"http://127.0.0.1:{server.getsockname()[1]}", executor).read(OBJECT)
        refusal.result()


def test_an_unreachable_s3_is_a_503(executor: Executor) -> None:
    with pytest.raises(NotReady, match="cannot be reached"):
        open_store_at(f"http://127.0.0.1:{free_port()}", executor).read(OBJECT)


def test_a_silent_s3_is_given_up_at_the_invocations_deadline(executor: Executor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        store = open_store_at(f"http://127.0.0.1:{server.getsockname()[1]}", executor, timeout_s=2)
        with running(Deadline(time.monotonic() + 0.3)), pytest.raises(DeadlinePassed):
            store.read(OBJECT)
        # Without a deadline the client's own time-out ends the read.
        with pytest.raises(NotReady, match="ReadTimeoutError"):
            store.read(OBJECT)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_thread_is_free_again_once_its_caller_gave_up(executor: Executor, scheme: str) -> None:
    """Also during the TLS handshake."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as single_thread:
        store = open_store_at(f"{scheme}://127.0.0.1:{server.getsockname()[1]}", single_thread, timeout_s=60)
        with running(Deadline(time.monotonic() + 0.3)), pytest.raises(DeadlinePassed):
            store.read(OBJECT)
        single_thread.submit(lambda: None).result(60)


def test_a_response_that_never_ends_is_given_up_without_a_deadline_too(aws: str) -> None:
    connect(aws).put_object(Bucket="inputs", Key="a/b.txt", Body=b"x" * 900)
    with running_dripping_proxy(aws) as proxy, ThreadPoolExecutor(1) as single_thread:
        proxy.slow_from_byte = 500
        store = Store(("inputs",), 1000, single_thread, connect(proxy.url), timeout_s=0.5)
        with pytest.raises(NotReady, match=r"longer than 0\.5 s"):
            store.read(OBJECT)
        single_thread.submit(lambda: None).result(60)
        wait_until(lambda: not proxy.connections, description="the connection to be closed")


def test_a_content_length_that_is_not_a_number_is_a_502(executor: Executor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as server_pool:

        def send_bad_length() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n0123456789")

        reply = server_pool.submit(send_bad_length)
        with pytest.raises(StorageFailed, match="cannot be read"):
            open_store_at(f"http://127.0.0.1:{server.getsockname()[1]}", executor).read(OBJECT)
        reply.result()


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


def test_without_buckets_no_store_is_opened() -> None:
    assert open_store(Settings.read({})) is None


def test_buckets_without_boto3_fail_the_start_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(StartError, match="TRIREME_S3_BUCKETS needs boto3, .* pip install"):
        open_store(Settings.read({"TRIREME_S3_BUCKETS": "inputs"}))
