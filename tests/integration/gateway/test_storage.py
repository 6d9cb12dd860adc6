"""The gateway's storage: errors of S3, the keys that a caller may name, copies of models, and calls that end in time."""

from __future__ import annotations

import errno
import gc
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from chalicelib.failures import NoSuchObject
from chalicelib.repository import ModelBucket, Repository, check_name
from chalicelib.storage import Storage, check_key, may_name_object
from chalicelib.transfers import Transfer, Transfers, watch_connections

from sm.errors import (
    BadInput,
    Conflict,
    DeadlinePassed,
    Forbidden,
    NotReady,
    OutOfMemory,
    StorageFailed,
    TooLarge,
)
from sm.invocation import Invocation, running
from tests.support.aws import aws_client, refusing_aws
from tests.support.boxes import wait_until
from tests.support.gateways import BUCKET, FakeBucket
from tests.support.s3 import client
from tests.support.tcp_proxy import tcp_proxy


def s3_client(address: str) -> Any:
    return aws_client("s3", f"http://{address}", connect_timeout=2)


def test_an_object_is_read_completely_or_refused(cloud: FakeBucket) -> None:
    cloud.put("images/ten", b"0123456789", ContentType="text/plain")
    stored = Storage(BUCKET, 10, cloud.s3).get("images/ten")
    assert (stored.body, stored.content_type) == (b"0123456789", "text/plain")
    for bucket, key, error in (
        (BUCKET, "images/ten", TooLarge),
        (BUCKET, "images/none", NoSuchObject),
        ("nobodys", "images/none", StorageFailed),
    ):
        with pytest.raises(error):
            Storage(bucket, 9, cloud.s3).get(key)


def test_a_missing_object_and_a_forbidden_one_are_distinguished_even_if_s3_refuses_both(
    cloud: FakeBucket,
) -> None:
    def refuse(**_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "GetObject")

    s3 = s3_client(cloud.address)
    s3.meta.events.register("before-call.s3.GetObject", refuse)
    cloud.put("images/there", b"x")
    with pytest.raises(NoSuchObject):
        Storage(BUCKET, 9, s3).get("images/the")
    with pytest.raises(StorageFailed):
        Storage(BUCKET, 9, s3).get("images/there")


def test_an_unreachable_busy_or_forbidding_s3_is_an_error_of_its_own() -> None:
    with pytest.raises(NotReady):
        Storage(BUCKET, 9, s3_client("127.0.0.1:1")).get("images/x")
    for code, error in (("SlowDown", NotReady), ("AccessDenied", StorageFailed)):
        with refusing_aws(code, "no") as address, pytest.raises(error):
            Storage(BUCKET, 9, s3_client(address)).put("results/x", b"{}")


#: Keys by the error that refuses them.
KEYS: dict[type[Exception] | None, tuple[Any, ...]] = {
    None: ("images/a.jpg", "images/deep/er/a b(1).jpg", "inputs/ü.png"),
    Forbidden: ("models/x", "imagesx", "results/x", "Images/x"),
    BadInput: (
        *("images/../models/x", "images/./x", "images//x", "/images/x", "images/", "images/a\nb"),
        *("images/a\\..\\b", "images/%2e%2e/x", "images/" + "a" * 1000, None, ["images/x"]),
    ),
}


@pytest.mark.parametrize(("error", "key"), [(error, key) for error, keys in KEYS.items() for key in keys])
def test_a_key_is_below_an_allowed_prefix_and_unambiguous(error: type[Exception] | None, key: Any) -> None:
    with pytest.raises(error) if error else nullcontext():
        assert check_key(key, ("images/", "inputs/")) == key


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a\0", "x" * 200])
def test_a_models_name_must_be_a_single_folder_name(name: str) -> None:
    with pytest.raises(BadInput):
        check_name(name)


@pytest.fixture
def repository(cloud: FakeBucket, tmp_path: Path) -> Repository:
    """A local repository of a bucket with one model, which has an old copy here."""
    (tmp_path / "m" / "2").mkdir(parents=True)
    (tmp_path / ".m@0123" / "1").mkdir(parents=True)  # left by a load that was killed half-way
    cloud.put("stored/m/config.pbtxt", b"new")
    cloud.put("stored/m/1/model.bin", b"x" * 1000)
    return Repository(tmp_path, ModelBucket(Storage(BUCKET, 10, cloud.s3), "stored/"))


def paths_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_new_copy_of_a_model_replaces_the_old_one_completely(
    repository: Repository, tmp_path: Path
) -> None:
    repository.claim_and_copy("m")
    assert paths_in(tmp_path) == [".m.lock", "m", "m/1", "m/1/model.bin", "m/config.pbtxt"]


def test_a_full_disk_is_a_507_and_the_old_model_stays(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Storage, "download", no_space)
    with pytest.raises(OutOfMemory):
        repository.claim_and_copy("m")
    assert paths_in(tmp_path) == [".m.lock", "m", "m/2"]


def test_a_second_load_of_a_model_during_the_first_is_a_409(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, release = threading.Event(), threading.Event()
    download: Callable[[Storage, str, Path], None] = Storage.download

    def wait_and_download(self: Storage, key: str, path: Path) -> None:
        started.set()
        release.wait(20)
        download(self, key, path)

    monkeypatch.setattr(Storage, "download", wait_and_download)
    first_load = threading.Thread(target=repository.claim_and_copy, args=("m",))
    first_load.start()
    try:
        assert started.wait(20)
        with pytest.raises(Conflict):
            repository.claim_and_copy("m")
    finally:
        release.set()
        first_load.join(20)
    assert (tmp_path / "m" / "1" / "model.bin").stat().st_size == 1000


def test_an_object_whose_key_leaves_the_models_folder_is_refused(cloud: FakeBucket, tmp_path: Path) -> None:
    cloud.put("evil/m/../../etc/passwd", b"x")
    with pytest.raises(BadInput):
        Repository(tmp_path, ModelBucket(Storage(BUCKET, 10, cloud.s3), "evil/")).claim_and_copy("m")


@pytest.mark.parametrize(
    ("body", "may"),
    [
        (b'{"s3_key": 1}', True),
        (rb'{"s\u0033_key": 1}', True),
        (rb'{"s3_\u006Be\u0079": 1}', True),
        (rb'"s3\u005Fkey"', True),
        (b"", False),
        (b'{"text": "s3 key"}', False),
        (rb'{"text": "gr\u00fcn \u003c"}', False),
        (rb'"\u0173"', False),
    ],
)
def test_a_body_that_may_name_an_object_is_recognised_with_any_escapes(body: bytes, may: bool) -> None:
    assert may_name_object(body) is may


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
