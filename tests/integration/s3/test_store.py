"""Objects against a fake S3, one that is not there, and one that says nothing."""

from __future__ import annotations

import gc
import socket
import subprocess
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
from sm.router.s3.store import Store, open_store
from sm.router.s3.transfers import Transfer
from sm.s3_uri import S3Uri
from sm.settings import Settings
from tests.support.boxes import free_port, wait_until
from tests.support.dripping_proxy import dripping
from tests.support.s3 import client

PLACE = S3Uri("inputs", "a/b.txt")


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


#: The clients of the running test.
OPEN: list[Any] = []


def connect(url: str, patience: float = 10) -> Any:
    """A client that is closed after the test: a socket that is collected unclosed is a warning."""
    made = client(url, patience)
    OPEN.append(made)
    return made


@pytest.fixture(autouse=True)
def closed_clients() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()
    # An answer that was given up in the middle keeps its socket until it is collected: now, in no later test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def store(url: str, executor: Executor, patience: float = 10) -> Store:
    return Store(("inputs",), 1000, executor, connect(url, patience))


def test_what_is_written_is_read(aws: str, executor: Executor) -> None:
    there = store(aws, executor)
    there.write(PLACE, b"{}", "application/json")
    assert there.read(PLACE) == b"{}"
    assert connect(aws).head_object(Bucket="inputs", Key="a/b.txt")["ContentType"] == "application/json"


def test_an_object_or_a_bucket_that_is_missing_is_a_404(aws: str, executor: Executor) -> None:
    with pytest.raises(NotFound, match="s3://inputs/none does not exist"):
        store(aws, executor).read(S3Uri("inputs", "none"))
    with pytest.raises(NotFound, match="NoSuchBucket"):
        store(aws, executor).write(S3Uri("nowhere", "a"), b"", "text/plain")


def test_an_object_over_the_limit_is_a_413_and_not_read(aws: str, executor: Executor) -> None:
    connect(aws).put_object(Bucket="inputs", Key="large", Body=b"x" * 1001)
    with pytest.raises(TooLarge, match=r"1,001 bytes, this box takes 1,000"):
        store(aws, executor).read(S3Uri("inputs", "large"))


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [("AccessDenied", 403, Forbidden), ("SlowDown", 503, NotReady), ("InvalidObjectState", 400, BadInput)],
)
def test_what_s3_refuses_is_told_with_its_code(
    aws: str, executor: Executor, code: str, status: int, kind: type[Exception]
) -> None:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    head = f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as other:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(head + body)

        told = other.submit(refuse)
        with pytest.raises(kind, match=code):
            store(f"http://127.0.0.1:{server.getsockname()[1]}", executor).read(PLACE)
        told.result()


def test_an_s3_that_is_away_is_a_503(executor: Executor) -> None:
    with pytest.raises(NotReady, match="cannot be reached"):
        store(f"http://127.0.0.1:{free_port()}", executor).read(PLACE)


def test_an_s3_that_says_nothing_costs_no_more_than_the_invocation_has(executor: Executor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = store(f"http://127.0.0.1:{server.getsockname()[1]}", executor, patience=2)
        with running(Deadline(time.monotonic() + 0.3)), pytest.raises(DeadlinePassed):
            there.read(PLACE)
        # Without a deadline S3 itself is given up.
        with pytest.raises(NotReady, match="ReadTimeoutError"):
            there.read(PLACE)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_thread_is_free_again_once_nobody_waits(executor: Executor, scheme: str) -> None:
    """Also while TLS is still being agreed on."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as one:
        there = store(f"{scheme}://127.0.0.1:{server.getsockname()[1]}", one, patience=60)
        with running(Deadline(time.monotonic() + 0.3)), pytest.raises(DeadlinePassed):
            there.read(PLACE)
        one.submit(lambda: None).result(60)


def test_an_s3_that_never_ends_an_answer_is_given_up_without_a_deadline_too(aws: str) -> None:
    connect(aws).put_object(Bucket="inputs", Key="a/b.txt", Body=b"x" * 900)
    with dripping(aws) as proxy, ThreadPoolExecutor(1) as one:
        proxy.slow_from = 500
        there = Store(("inputs",), 1000, one, connect(proxy.url), timeout_s=0.5)
        with pytest.raises(NotReady, match=r"longer than 0\.5 s"):
            there.read(PLACE)
        one.submit(lambda: None).result(60)
        wait_until(lambda: not proxy.open, description="the connection to be closed")


def test_a_length_that_is_no_number_is_a_502(executor: Executor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as other:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n0123456789")

        told = other.submit(answer)
        with pytest.raises(StorageFailed, match="cannot be read"):
            store(f"http://127.0.0.1:{server.getsockname()[1]}", executor).read(PLACE)
        told.result()


def test_an_aborted_transfer_leaves_a_connection_alone_that_serves_another() -> None:
    class Connection:
        transfer: object = None

    connection, first, second = Connection(), Transfer(), Transfer()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        first.watch(connection, ours)
        second.watch(connection, ours)
        first.abort()
        theirs.sendall(b"answer")
        assert ours.recv(10) == b"answer"
        second.abort()
        assert ours.recv(10) == b""
        with pytest.raises(CancelledError):
            second.watch(connection, ours)
        for transfer in (first, second):
            transfer.run(lambda: None)


def test_without_a_bucket_there_is_no_store() -> None:
    assert open_store(Settings.read({})) is None


def test_a_box_without_boto3_does_not_start_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(StartError, match=r"TRIREME_S3_BUCKETS is set, but .* pip install"):
        open_store(Settings.read({"TRIREME_S3_BUCKETS": "inputs"}))


def test_a_router_that_reads_no_s3_does_not_load_boto3() -> None:
    code = "import sys, sm.server.worker; sys.exit('boto3' in sys.modules or 'botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
