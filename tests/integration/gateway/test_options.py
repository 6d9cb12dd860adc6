"""The gateway's variables: mistakes are named at start, keys never appear in messages, and Tritons are addressed."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import grpc
import pytest
from app import app
from chalice.app import Request
from chalicelib.front import Front
from chalicelib.options import Options
from chalicelib.remote_channel import RemoteChannel
from chalicelib.remote_servers import RemoteServers, Tls
from tritonclient.grpc import service_pb2 as pb

from sm.errors import NotReady, StartError
from sm.settings import HERE, format_value, help_texts
from sm.triton.triton_errors import Failed
from tests.support.gateways import api_gateway_event, short_name

GOOD = {
    "TRIREME_GATEWAY_BUCKET": "b",
    "TRIREME_GATEWAY_TRITON": "triton.internal:8001",
    "TRIREME_GATEWAY_KEYS": f"me:{'0' * 64}",
}
NAMES = "TRIREME_GATEWAY_SHORT_NAMES"


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"TRIREME_GATEWAY_BUCKET": "", "TRIREME_GATEWAY_REPOSITORY": "/models"}, "TRIREME_GATEWAY_BUCKET"),
        ({"TRIREME_GATEWAY_KEYS": ""}, ""),
        ({"TRIREME_GATEWAY_INPUTS": "images"}, ""),
        ({"TRIREME_GATEWAY_INPUTS": "results/mine/"}, "TRIREME_GATEWAY_RESULTS"),
        ({"TRIREME_GATEWAY_TIMEOUT": "901"}, ""),
        ({"TRIREME_GATEWAY_TLS_KEY": "/k"}, ""),
        ({NAMES: "/nowhere"}, "'/nowhere'"),
        ({NAMES: "{"}, "JSON"),
        ({NAMES: "{}"}, ""),
        ({NAMES: '{"a": {"name": "../b"}}'}, "a.name"),
        ({NAMES: '{"a/b": {}}'}, "a/b"),
        ({NAMES: json.dumps({"a": {**short_name("b"), "input_shape": [1, 4, 8, 8]}})}, "a.input_shape.1"),
        ({NAMES: json.dumps({"a": {**short_name("b"), "inputs": "x"}})}, "a.inputs"),
    ],
)
def test_an_invalid_variable_is_an_error_with_its_name(variables: dict[str, str], place: str) -> None:
    with pytest.raises(StartError) as error:
        Options.read({**GOOD, **variables})
    assert [*variables][-1] in str(error.value)
    assert place in str(error.value)


def test_short_names_may_be_in_a_file_and_keep_their_order(tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    file.write_text(json.dumps({name: short_name(name) for name in ("z", "a", "m")}))
    assert list(Options.read({**GOOD, NAMES: str(file)}).short_names or ()) == ["z", "a", "m"]


def test_a_key_instead_of_its_hash_is_not_shown_and_behind_api_gateway_none_need_be_set() -> None:
    with pytest.raises(StartError, match="TRIREME_GATEWAY_KEYS") as error:
        Options.read({**GOOD, "TRIREME_GATEWAY_KEYS": "me:secret"})
    assert "secret" not in str(error.value)
    in_lambda = {"TRIREME_GATEWAY_KEYS": "", "AWS_LAMBDA_FUNCTION_NAME": "gateway"}
    assert Options.read({**GOOD, **in_lambda}).keys is None


def test_a_missing_variable_is_not_named_in_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"TRIREME_GATEWAY_BUCKET": "private-name"})
    monkeypatch.setattr("sm.server.logs.configure", lambda level: None)  # keeps pytest's own log handlers
    response = Front().answer(Request(api_gateway_event("GET", "/models")), lambda api: api.models())
    assert response.status_code == 500
    assert "TRIREME_GATEWAY_KEYS" not in response.body


def test_every_route_and_every_variable_with_its_default_is_documented() -> None:
    page, reference = (
        (HERE / "docs/deploy" / name).read_text() for name in ("gateway.md", "gateway-reference.md")
    )
    for path, verbs in app.routes.items():
        assert all(f"| `{verb} {path}` |" in page for verb in verbs), path
    helps = help_texts(Options)
    for row in fields(Options):
        default = format_value(row.default).replace(f"{HERE}/", "")
        cell = f"`{default}`" if default else ""
        assert f"| `{row.metadata['names'][0]}` | {cell} | {helps[row.name]} |" in reference


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


@pytest.mark.parametrize("triton", ["", "triton", "triton:99999", "a.internal:8001,b.internal:8001"])
def test_an_invalid_triton_address_is_an_error(triton: str) -> None:
    with pytest.raises(StartError):
        Options.read({**GOOD, "TRIREME_GATEWAY_TRITON": triton}).peers  # noqa: B018


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
        channel = RemoteChannel(RemoteServers.parse([f"127.0.0.1:{port}"]).connect(), 10)
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
