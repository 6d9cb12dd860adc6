"""A proxy in front of moto that records the calls, injects faults, and supplies what moto lacks.

moto has no ``UpdateEndpoint``, no inference components, no shadows, and no endpoint that takes time or fails.
"""

from __future__ import annotations

import http.client
import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import werkzeug

from tests.support.http_server import serving

#: The model of a variant that has none, as moto insists on one.
NO_MODEL = "no-model"
#: Operations that begin so change nothing in the account; all others do.
READING_PREFIXES = ("Describe", "List", "Get", "Head", "Filter", "Invoke")
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "server", "date"}


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def operation(self) -> str:
        """The operation's name in boto3's API; for S3 the method and ``Bucket`` or ``Object``."""
        if target := self.headers.get("x-amz-target"):
            return target.partition(".")[2]
        path = urlsplit(self.path).path
        if "/operation/" in path:
            return path.rpartition("/")[2]
        if "form-urlencoded" in self.headers.get("content-type", ""):
            return parse_qs(self.body.decode())["Action"][0]
        if path.startswith("/endpoints/"):
            return "InvokeEndpoint"
        return f"{self.method.title()}{'Object' if path.strip('/').count('/') else 'Bucket'}"

    @property
    def is_change(self) -> bool:
        return not self.operation.startswith(READING_PREFIXES)

    def replace_body(self, body: bytes) -> None:
        self.body = body
        self.headers["content-length"] = str(len(body))


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    def add(self, members: dict[str, Any]) -> None:
        """Add members to a JSON body."""
        self.body = json.dumps({**json.loads(self.body), **members}).encode()


def json_response(body: Any, status: int = 200, **headers: str) -> Response:
    return Response(
        status, {"Content-Type": "application/x-amz-json-1.1", **headers}, json.dumps(body).encode()
    )


def json_error(status: int, code: str, message: str) -> Response:
    """Return an error in the form of AWS's JSON services, such as SageMaker."""
    return json_response({"__type": code, "message": message}, status, **{"x-amzn-ErrorType": code})


def xml_error(status: int, code: str, message: str) -> Response:
    """Return an error in S3's form."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Response(status, {"Content-Type": "application/xml"}, body)


@dataclass
class Proxy:
    """The proxy's state, its records and its faults."""

    moto: str
    address: str = ""
    #: The operations so far that changed the account, and the last JSON body of each.
    changes: list[str] = field(default_factory=list)
    bodies: dict[str, Any] = field(default_factory=dict)
    #: Responses in moto's place, by operation.
    fixed_responses: dict[str, Response] = field(default_factory=dict)
    #: Operations after which the proxy closes the connection without a response.
    disconnect_after: set[str] = field(default_factory=set)
    #: What ``DescribeEndpoint`` adds, one state per call, once an endpoint was changed. ``Failed`` stays.
    endpoint_states: list[dict[str, str] | Response] = field(default_factory=list)
    #: Called once for each operation that changes the account; its caller gets no response.
    after_change: Callable[[], None] | None = None
    interrupted_operations: set[str] = field(default_factory=set)
    #: ``UpdateEndpoint`` succeeds and changes nothing.
    rolls_back: bool = False
    #: The shadow variants of the endpoint configurations, and the inference components as they are described.
    shadows: dict[str, Any] = field(default_factory=dict)
    components: dict[str, dict[str, Any]] = field(default_factory=dict)

    def reset(self) -> None:
        vars(self).update(vars(Proxy(self.moto, self.address, shadows=self.shadows)))

    def fail_updates(self, configuration: str, reason: str) -> None:
        """Roll the next updates of an endpoint back to its configuration."""
        state = {"EndpointConfigName": configuration, "FailureReason": reason}
        self.changes, self.rolls_back = [], True
        self.endpoint_states = [
            {"EndpointStatus": "RollingBack"},
            *[{"EndpointStatus": "InService", **state}] * 9,
        ]

    def respond(self, request: Request) -> Response | None:
        """Return the response; ``None``: close the connection without one."""
        operation = request.operation
        if operation in self.fixed_responses:
            return self.fixed_responses[operation]
        response = self._answer(request)
        begun = {"CreateEndpoint", "UpdateEndpoint"} & {*self.changes}
        if operation == "DescribeEndpoint" and response.status == 200 and begun and self.endpoint_states:
            state = self.endpoint_states[0]
            if isinstance(state, Response) or state["EndpointStatus"] != "Failed":
                self.endpoint_states.pop(0)
            if isinstance(state, Response):
                return state
            response.add(state)
        if operation == "DeleteEndpoint":
            self.endpoint_states = []
        if request.is_change:
            self.changes.append(operation)
            if request.body.startswith(b"{"):
                self.bodies[operation] = json.loads(request.body)
            if self.after_change and operation not in self.interrupted_operations:
                self.interrupted_operations.add(operation)
                self.after_change()
                return None
        return None if operation in self.disconnect_after else response

    def _answer(self, request: Request) -> Response:
        """Return moto's response, or what moto lacks."""
        if request.path.endswith("/async-invocations"):
            # moto tells requests apart by this header only, which one with its body in the call does not have.
            request.headers.setdefault("x-amzn-sagemaker-inputlocation", uuid.uuid4().hex)
        if request.headers.get("x-amz-target", "").startswith("AnyScaleFrontendService."):
            # moto scales no components; their names are no endpoints', so nothing is mistaken.
            body = request.body.replace(b"inference-component:DesiredCopy", b"variant:DesiredInstance")
            request.replace_body(
                re.sub(rb"inference-component/([\w-]+)", rb"endpoint/\1/variant/copies", body)
            )
        component_tags = request.operation == "ListTags" and b":inference-component/" in request.body
        if "InferenceComponent" in request.operation or component_tags:
            return self._change_component(request)
        if request.operation == "UpdateEndpoint":
            return json_response({}) if self.rolls_back else self._update(request)
        if request.operation in ("CreateEndpointConfig", "DescribeEndpointConfig"):
            return self._answer_config(request)
        return self._forward(request)

    def _answer_config(self, request: Request) -> Response:
        """Remember an endpoint configuration's shadows, and give a variant for components a model."""
        parameters = json.loads(request.body)
        name, variants = parameters["EndpointConfigName"], parameters.get("ProductionVariants", ())
        if any("ModelName" not in variant for variant in variants):
            role = {"ModelName": NO_MODEL, "ExecutionRoleArn": parameters["ExecutionRoleArn"]}
            self._sagemaker(request, "CreateModel", {**role, "PrimaryContainer": {"Image": "none"}})
            for variant in variants:
                variant["ModelName"] = NO_MODEL
            request.replace_body(json.dumps(parameters).encode())
        response = self._forward(request)
        if response.status == 200 and variants:
            self.shadows[name] = parameters.get("ShadowProductionVariants")
        elif response.status == 200:
            described = json.loads(response.body)["ProductionVariants"]
            rows = [
                {key: value for key, value in row.items() if value != NO_MODEL or key != "ModelName"}
                for row in described
            ]
            shadows = {"ShadowProductionVariants": self.shadows[name]} if self.shadows.get(name) else {}
            response.add({"ProductionVariants": rows, **shadows})
        return response

    def _change_component(self, request: Request) -> Response:
        operation, body = request.operation, json.loads(request.body)
        if operation == "ListTags":
            return json_response({"Tags": self.components[body["ResourceArn"].rpartition("/")[2]]["Tags"]})
        if operation == "ListInferenceComponents":
            on_endpoint = body["EndpointNameEquals"]
            rows = [row for row in self.components.values() if row["EndpointName"] == on_endpoint]
            return json_response({"InferenceComponents": rows})
        name = body["InferenceComponentName"]
        arn = {
            "InferenceComponentArn": f"arn:aws:sagemaker:eu-west-1:123456789012:inference-component/{name}"
        }
        if operation == "CreateInferenceComponent":
            made = {"InferenceComponentStatus": "InService", "CreationTime": 0, "LastModifiedTime": 0}
            self.components[name] = {**body, **arn, **made}
        elif name not in self.components:
            return json_error(400, "ValidationException", f"Could not find inference component {name}.")
        component = self.components[name]
        component["Specification"] = body.get("Specification", component["Specification"])
        if config := body.get("RuntimeConfig", body.get("DesiredRuntimeConfig")):
            counts = ("DesiredCopyCount", "CurrentCopyCount")
            component["RuntimeConfig"] = dict.fromkeys(counts, config["CopyCount"])
        if operation == "DeleteInferenceComponent":
            del self.components[name]
        return json_response(component if operation == "DescribeInferenceComponent" else arn)

    def _update(self, request: Request) -> Response:
        """Delete the endpoint and create it again with the new configuration and its old tags."""
        parameters = json.loads(request.body)
        name = {"EndpointName": parameters["EndpointName"]}
        current = self._sagemaker(request, "DescribeEndpoint", name)
        tags = self._sagemaker(request, "ListTags", {"ResourceArn": current["EndpointArn"]})["Tags"]
        self._sagemaker(request, "DeleteEndpoint", name)
        config = {"EndpointConfigName": parameters["EndpointConfigName"]}
        return json_response(self._sagemaker(request, "CreateEndpoint", {**name, **config, "Tags": tags}))

    def _sagemaker(self, request: Request, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        own = Request("POST", "/", {**request.headers, "x-amz-target": f"SageMaker.{operation}"}, b"")
        own.replace_body(json.dumps(parameters).encode())
        return dict(json.loads(self._forward(own).body or b"{}"))

    def _forward(self, request: Request, address: str = "") -> Response:
        upstream = http.client.HTTPConnection(address or self.moto, timeout=60)
        try:
            upstream.request(request.method, request.path, request.body, request.headers)
            response = upstream.getresponse()
            headers = {name: value for name, value in response.getheaders() if name.lower() not in HOP_BY_HOP}
            if request.method == "HEAD":
                headers["Content-Length"] = response.getheader("Content-Length") or "0"
            return Response(response.status, headers, response.read())
        finally:
            upstream.close()


P = TypeVar("P", bound="Proxy")


@contextmanager
def running_proxy(proxy: P) -> Iterator[P]:
    """Run a proxy in front of moto on a free port."""

    def respond(sent: werkzeug.Request) -> werkzeug.Response:
        headers = {name.lower(): value for name, value in sent.headers.items() if name != "Expect"}
        answer = proxy.respond(Request(sent.method, sent.environ["REQUEST_URI"], headers, sent.get_data()))
        if answer is None:
            raise ConnectionAbortedError
        return werkzeug.Response([answer.body], answer.status, answer.headers)

    with serving(respond) as url:
        proxy.address = url.removeprefix("http://")
        yield proxy
