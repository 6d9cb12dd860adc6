"""Remote Triton servers: how their addresses are read, and which calls are retried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from chalicelib.remote_servers import RemoteServers, Tls
from tritonclient.grpc import service_pb2 as pb

from sm.errors import NotReady, StartError
from sm.triton.channel import Channel
from sm.triton.triton_errors import Failed


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
    with pytest.raises(NotReady, match="unknown.invalid"):
        RemoteServers.parse(["unknown.invalid:8001"]).resolve()


def test_several_servers_with_tls_need_a_common_name() -> None:
    with pytest.raises(StartError):
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
