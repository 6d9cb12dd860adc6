"""Tritons on other machines: their addresses, and TLS on a real one."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from sm.errors import NotReady, StartError
from sm.settings import Settings
from sm.triton.call_failures import Failed
from sm.triton.channel import Channel
from sm.triton.remote_servers import RemoteServers, Tls
from tests.support.tritons import TritonProcess, prepare_triton

NAME = "triton.test"


def test_addresses_become_one_target_that_grpc_balances() -> None:
    assert (
        RemoteServers.parse(["10.0.0.1:8001", "10.0.0.2:8001"]).target == "ipv4:10.0.0.1:8001,10.0.0.2:8001"
    )
    assert RemoteServers.parse(["[::1]:8001"]).target == "ipv6:[::1]:8001"
    assert RemoteServers.parse(["triton.internal:8001"]).target == "dns:///triton.internal:8001"


def test_a_name_is_looked_up_for_what_each_server_must_hear() -> None:
    assert "127.0.0.1:8001" in [one.addresses[0] for one in RemoteServers.parse(["localhost:8001"]).resolve()]
    with pytest.raises(NotReady, match="no machine has the name"):
        RemoteServers.parse(["nobody.invalid:8001"]).resolve()


def test_several_servers_with_tls_have_a_name_in_common() -> None:
    with pytest.raises(StartError, match="in common"):
        RemoteServers.parse(["10.0.0.1:8001", "10.0.0.2:8001"], Tls())


@pytest.fixture
def refusing() -> Iterator[tuple[int, Counter[str]]]:
    """A server that counts calls and says of each that it is not available, as a broken connection does."""
    asked: Counter[str] = Counter()

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, call: Any) -> Any:
            if "Health" in call.method:
                # As Triton: it has nothing to subscribe to, which is no sign of illness.
                return None
            asked[call.method.rpartition("/")[2]] += 1
            return grpc.unary_unary_rpc_method_handler(
                lambda _, context: context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            )

    with ThreadPoolExecutor(2) as executor:
        server = grpc.server(executor, handlers=[Handler()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield port, asked
        server.stop(0).wait()


def test_what_only_asks_is_sent_again_and_an_inference_is_not(refusing: tuple[int, Counter[str]]) -> None:
    port, asked = refusing
    channel = Channel(RemoteServers.parse([f"127.0.0.1:{port}"]), 10)
    for method, request in (
        ("ModelMetadata", pb.ModelMetadataRequest(name="m")),
        ("ModelInfer", pb.ModelInferRequest(model_name="m")),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="m")),
    ):
        with pytest.raises(Failed):
            channel.call(method, request)
    channel.close()
    assert asked == {"ModelMetadata": 3, "ModelInfer": 1, "RepositoryModelLoad": 1}


def openssl(*words: str, folder: Path) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority (``ca``), and a certificate for server and caller each."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here: apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")
    new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl(*new, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem", folder=folder)
    (folder / "names").write_text(f"subjectAltName=DNS:{NAME}\n")
    for who in ("server", "caller"):
        request = ("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={NAME}")
        openssl(*request, "-keyout", f"{who}.key", "-out", f"{who}.csr", folder=folder)
        signed = ("x509", "-req", "-in", f"{who}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2")
        openssl(*signed, "-CAcreateserial", "-extfile", "names", "-out", f"{who}.pem", folder=folder)
    return folder


@pytest.fixture(scope="module")
def secured(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A Triton that speaks TLS and wants its callers' certificates."""
    serving = prepare_triton(tmp_path_factory.mktemp("secured"), [])
    serving.box.repository.mkdir()
    words = (
        f"--grpc-use-ssl-mutual=true --grpc-server-cert={certificates}/server.pem "
        f"--grpc-server-key={certificates}/server.key --grpc-root-cert={certificates}/ca.pem"
    )
    serving.settings = Settings.read({"SAGEMAKER_TRITON_ADDITIONAL_ARGS": words})
    serving.start()
    yield serving
    serving.kill()


def ready(serving: TritonProcess, tls: Tls | None) -> bool:
    channel = Channel(RemoteServers.parse([f"127.0.0.1:{serving.box.grpc_port}"], tls), 10)
    try:
        return bool(channel.call("ServerReady", pb.ServerReadyRequest()).ready)
    finally:
        channel.close()


def test_triton_is_reached_by_tls_and_by_nothing_less(secured: TritonProcess, certificates: Path) -> None:
    authority, certificate, key = (
        (certificates / name).read_bytes() for name in ("ca.pem", "caller.pem", "caller.key")
    )
    assert ready(secured, Tls(authority, certificate, key, NAME))
    for less in (None, Tls(authority, None, None, NAME), Tls(None, certificate, key, NAME)):
        with pytest.raises(Failed) as excinfo:
            ready(secured, less)
        assert excinfo.value.kind is NotReady


def test_a_certificate_of_another_name_is_refused(secured: TritonProcess, certificates: Path) -> None:
    authority, certificate, key = (
        (certificates / name).read_bytes() for name in ("ca.pem", "caller.pem", "caller.key")
    )
    with pytest.raises(Failed):
        ready(secured, Tls(authority, certificate, key, "somebody.else"))
