"""Remote Triton servers: how their addresses are read, which calls are retried, and TLS to a real server."""

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
from chalicelib.remote_servers import RemoteServers, Tls
from tritonclient.grpc import service_pb2 as pb

from sm.errors import NotReady, StartError
from sm.settings import Settings
from sm.triton.call_failures import Failed
from sm.triton.channel import Channel
from tests.support.tritons import TritonProcess, prepare_triton

CERTIFICATE_NAME = "triton.test"


def test_several_addresses_become_one_target_that_grpc_balances() -> None:
    assert (
        RemoteServers.parse(["10.0.0.1:8001", "10.0.0.2:8001"]).target == "ipv4:10.0.0.1:8001,10.0.0.2:8001"
    )
    assert RemoteServers.parse(["[::1]:8001"]).target == "ipv6:[::1]:8001"
    assert RemoteServers.parse(["triton.internal:8001"]).target == "dns:///triton.internal:8001"


def test_a_host_name_is_resolved_to_its_servers() -> None:
    assert "127.0.0.1:8001" in [
        server.addresses[0] for server in RemoteServers.parse(["localhost:8001"]).resolve()
    ]
    with pytest.raises(NotReady, match="no machine has the name"):
        RemoteServers.parse(["unknown.invalid:8001"]).resolve()


def test_several_servers_with_tls_need_a_common_name() -> None:
    with pytest.raises(StartError, match="in common"):
        RemoteServers.parse(["10.0.0.1:8001", "10.0.0.2:8001"], Tls())


@pytest.fixture
def unavailable_server() -> Iterator[tuple[int, Counter[str]]]:
    """The port of a server that counts calls and answers each with UNAVAILABLE, and the counts."""
    calls: Counter[str] = Counter()

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, call: Any) -> Any:
            if "Health" in call.method:
                # Like Triton, it has no health service to subscribe to.
                return None
            calls[call.method.rpartition("/")[2]] += 1
            return grpc.unary_unary_rpc_method_handler(
                lambda _, context: context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            )

    with ThreadPoolExecutor(2) as executor:
        server = grpc.server(executor, handlers=[Handler()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield port, calls
        server.stop(0).wait()


def test_a_read_only_call_is_retried_and_an_inference_is_not(
    unavailable_server: tuple[int, Counter[str]],
) -> None:
    port, calls = unavailable_server
    channel = Channel(RemoteServers.parse([f"127.0.0.1:{port}"]).connect(), 10)
    for method, request in (
        ("ModelMetadata", pb.ModelMetadataRequest(name="m")),
        ("ModelInfer", pb.ModelInferRequest(model_name="m")),
        ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="m")),
    ):
        with pytest.raises(Failed):
            channel.call(method, request)
    channel.close()
    assert calls == {"ModelMetadata": 3, "ModelInfer": 1, "RepositoryModelLoad": 1}


def run_openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate authority (``ca``) and certificates for a server and a caller."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here: apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")
    new_authority = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    run_openssl(*new_authority, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem", folder=folder)
    (folder / "names").write_text(f"subjectAltName=DNS:{CERTIFICATE_NAME}\n")
    for holder in ("server", "caller"):
        request = ("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={CERTIFICATE_NAME}")
        run_openssl(*request, "-keyout", f"{holder}.key", "-out", f"{holder}.csr", folder=folder)
        sign = ("x509", "-req", "-in", f"{holder}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2")
        run_openssl(*sign, "-CAcreateserial", "-extfile", "names", "-out", f"{holder}.pem", folder=folder)
    return folder


@pytest.fixture(scope="module")
def tls_triton(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A Triton that requires TLS with a certificate of the caller."""
    serving = prepare_triton(tmp_path_factory.mktemp("secured"), [])
    serving.box.repository.mkdir()
    arguments = (
        f"--grpc-use-ssl-mutual=true --grpc-server-cert={certificates}/server.pem "
        f"--grpc-server-key={certificates}/server.key --grpc-root-cert={certificates}/ca.pem"
    )
    serving.settings = Settings.read({"SAGEMAKER_TRITON_ADDITIONAL_ARGS": arguments})
    serving.start()
    yield serving
    serving.kill()


def server_is_ready(serving: TritonProcess, tls: Tls | None) -> bool:
    channel = Channel(RemoteServers.parse([f"127.0.0.1:{serving.box.grpc_port}"], tls).connect(), 10)
    try:
        return bool(channel.call("ServerReady", pb.ServerReadyRequest()).ready)
    finally:
        channel.close()


def test_triton_is_reached_only_with_its_authority_and_the_callers_certificate(
    tls_triton: TritonProcess, certificates: Path
) -> None:
    authority, certificate, key = (
        (certificates / name).read_bytes() for name in ("ca.pem", "caller.pem", "caller.key")
    )
    assert server_is_ready(tls_triton, Tls(authority, certificate, key, CERTIFICATE_NAME))
    for too_little in (
        None,
        Tls(authority, None, None, CERTIFICATE_NAME),
        Tls(None, certificate, key, CERTIFICATE_NAME),
    ):
        with pytest.raises(Failed) as excinfo:
            server_is_ready(tls_triton, too_little)
        assert issubclass(excinfo.value.kind, NotReady)


def test_a_server_certificate_for_another_name_is_refused(
    tls_triton: TritonProcess, certificates: Path
) -> None:
    authority, certificate, key = (
        (certificates / name).read_bytes() for name in ("ca.pem", "caller.pem", "caller.key")
    )
    with pytest.raises(Failed):
        server_is_ready(tls_triton, Tls(authority, certificate, key, "another.name"))
