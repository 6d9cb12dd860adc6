"""Remote Triton servers: how their addresses are read, and which calls are retried."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from chalicelib.remote_servers import RemoteServers, Tls
from tritonclient.grpc import service_pb2 as pb

from sm.errors import NotReady, StartError
from sm.triton.channel import Channel
from sm.triton.triton_errors import Failed


@pytest.mark.parametrize(
    ("addresses", "target"),
    [
        (["10.0.0.1:8001", "10.0.0.2:8001"], "ipv4:10.0.0.1:8001,10.0.0.2:8001"),
        (["[::1]:8001"], "ipv6:[::1]:8001"),
        (["triton.internal:8001"], "dns:///triton.internal:8001"),
    ],
)
def test_addresses_become_one_target_that_grpc_balances(addresses: list[str], target: str) -> None:
    assert RemoteServers.parse(addresses).target == target


def test_a_host_name_is_resolved_to_its_servers() -> None:
    servers = RemoteServers.parse(["localhost:8001"]).resolve()
    assert "127.0.0.1:8001" in [server.addresses[0] for server in servers]
    with pytest.raises(NotReady):
        RemoteServers.parse(["unknown.invalid:8001"]).resolve()


def test_several_servers_with_tls_need_a_common_name() -> None:
    with pytest.raises(StartError):
        RemoteServers.parse(["10.0.0.1:8001", "10.0.0.2:8001"], Tls())


def test_a_read_only_call_is_retried_and_an_inference_is_not() -> None:
    calls: Counter[str] = Counter()

    class Unavailable(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, call: Any) -> Any:
            if "Health" in call.method:  # like Triton, it has no health service to subscribe to
                return None
            calls[call.method.rpartition("/")[2]] += 1
            return grpc.unary_unary_rpc_method_handler(
                lambda _, context: context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            )

    with ThreadPoolExecutor(2) as executor:
        server = grpc.server(executor, handlers=[Unavailable()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        channel = Channel(RemoteServers.parse([f"127.0.0.1:{port}"]).connect(), 10)
        for method, request in (
            ("ModelMetadata", pb.ModelMetadataRequest(name="m")),
            ("ModelInfer", pb.ModelInferRequest(model_name="m")),
            ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="m")),
        ):
            with pytest.raises(Failed):
                channel.call(method, request)
        channel.close()
        server.stop(0).wait()
    assert calls == {"ModelMetadata": 3, "ModelInfer": 1, "RepositoryModelLoad": 1}
