"""A proxy in front of moto that records the calls and injects faults.

It also supplies what moto lacks: ``UpdateEndpoint``, and endpoints that take time to start or fail.
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

#: The model of a variant that has none: see ``Proxy._name_missing_models``.
NO_MODEL = "no-model"
#: The dimensions of autoscaling: a component's copies, and an endpoint's instances.
COPIES, INSTANCES = (
    b"sagemaker:inference-component:DesiredCopyCount",
    b"sagemaker:variant:DesiredInstanceCount",
)
#: Operations that begin so change nothing in the account; all others do.
READING_PREFIXES = ("Describe", "List", "Get", "Head", "Filter", "Invoke")


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
        kind = "Object" if path.strip("/").count("/") else "Bucket"
        return f"{self.method.title()}{kind}"

    @property
    def is_change(self) -> bool:
        return not self.operation.startswith(READING_PREFIXES)


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes


def json_error(status: int, code: str, message: str) -> Response:
    """Return an error in the form of AWS's JSON services, such as SageMaker."""
    body = json.dumps({"__type": code, "message": message}).encode()
    return Response(status, {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": code}, body)


def json_response(body: Any) -> Response:
    return Response(200, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(body).encode())


def xml_error(status: int, code: str, message: str) -> Response:
    """Return an error in S3's form."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Response(status, {"Content-Type": "application/xml"}, body)


@dataclass
class Proxy:
    """The proxy's state, its records and its faults.

    Attributes:
        moto: moto's ``host:port``.
        address: The proxy's own ``host:port``.
        changes: The operations so far that changed the account.
        bodies: The last JSON body of each operation that changed the account.
        fixed_responses: Responses in moto's place, by operation.
        disconnect_after: Operations after which the proxy closes the connection without a response.
        endpoint_states: What ``DescribeEndpoint`` adds, one state per call, once an endpoint was created or
            updated. A state ``Failed`` stays.
        after_change: Called once for each operation that changes the account, before the caller gets a response.
        rolls_back: ``UpdateEndpoint`` succeeds and changes nothing.
        shadows: The shadow variants of the endpoint configurations, by name.
        components: The inference components by name, as they are described: moto has none.
    """

    moto: str
    address: str = ""
    changes: list[str] = field(default_factory=list)
    bodies: dict[str, Any] = field(default_factory=dict)
    fixed_responses: dict[str, Response] = field(default_factory=dict)
    disconnect_after: set[str] = field(default_factory=set)
    endpoint_states: list[dict[str, str] | Response] = field(default_factory=list)
    after_change: Callable[[], None] | None = None
    interrupted_operations: set[str] = field(default_factory=set)
    rolls_back: bool = False
    shadows: dict[str, Any] = field(default_factory=dict)
    components: dict[str, dict[str, Any]] = field(default_factory=dict)

    def reset(self) -> None:
        vars(self).update(vars(Proxy(self.moto, self.address, shadows=self.shadows)))

    def respond(self, request: Request) -> Response | None:
        """Return the response; ``None``: close the connection without one."""
        operation = request.operation
        if operation in self.fixed_responses:
            return self.fixed_responses[operation]
        if request.path.endswith("/async-invocations"):
            # moto tells requests apart by this header only, which one with its body in the call does not have.
            request.headers.setdefault("x-amzn-sagemaker-inputlocation", uuid.uuid4().hex)
        # moto scales no components; their names are no endpoints', so nothing is mistaken.
        if request.headers.get("x-amz-target", "").startswith("AnyScaleFrontendService."):
            body = request.body.replace(COPIES, INSTANCES)
            request.body = re.sub(rb"inference-component/([\w-]+)", rb"endpoint/\1/variant/copies", body)
            request.headers["content-length"] = str(len(request.body))
        if "InferenceComponent" in operation or self._component_arn(request):
            response = self._change_component(request)
        elif operation == "UpdateEndpoint":
            response = Response(200, {}, b"{}") if self.rolls_back else self._update(request)
        else:
            self._name_missing_models(request)
            response = self._forward(request)
            self._forget_missing_models(request, response)
        self._keep_shadows(request, response)
        begun = {"CreateEndpoint", "UpdateEndpoint"} & {*self.changes}
        if operation == "DescribeEndpoint" and response.status == 200 and begun and self.endpoint_states:
            state = self._state()
            if isinstance(state, Response):
                return state
            response.body = json.dumps({**json.loads(response.body), **state}).encode()
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

    def _name_missing_models(self, request: Request) -> None:
        """Give a variant for inference components a model, which moto insists on."""
        if request.operation != "CreateEndpointConfig":
            return
        parameters = json.loads(request.body)
        if all("ModelName" in variant for variant in parameters["ProductionVariants"]):
            return
        role = {"ModelName": NO_MODEL, "ExecutionRoleArn": parameters["ExecutionRoleArn"]}
        self._sagemaker(request, "CreateModel", {**role, "PrimaryContainer": {"Image": "none"}})
        for variant in parameters["ProductionVariants"]:
            variant["ModelName"] = NO_MODEL
        request.body = json.dumps(parameters).encode()
        request.headers["content-length"] = str(len(request.body))

    def _forget_missing_models(self, request: Request, response: Response) -> None:
        if request.operation == "DescribeEndpointConfig" and NO_MODEL.encode() in response.body:
            described = json.loads(response.body)
            for variant in described["ProductionVariants"]:
                variant.pop("ModelName")
            response.body = json.dumps(described).encode()

    def _component_arn(self, request: Request) -> bool:
        """True for ListTags of a component."""
        return request.operation == "ListTags" and b":inference-component/" in request.body

    def _change_component(self, request: Request) -> Response:
        operation, body = request.operation, json.loads(request.body)
        if operation == "ListTags":
            name = body["ResourceArn"].rpartition("/")[2]
            return json_response({"Tags": self.components[name]["Tags"]})
        if operation == "ListInferenceComponents":
            rows = [
                row for row in self.components.values() if row["EndpointName"] == body["EndpointNameEquals"]
            ]
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

    def _keep_shadows(self, request: Request, response: Response) -> None:
        """Remember an endpoint configuration's shadow variants, which moto forgets."""
        operation = request.operation
        if response.status != 200 or operation not in ("CreateEndpointConfig", "DescribeEndpointConfig"):
            return
        parameters = json.loads(request.body)
        name = parameters["EndpointConfigName"]
        if operation == "CreateEndpointConfig":
            self.shadows[name] = parameters.get("ShadowProductionVariants")
        elif self.shadows.get(name):
            added = {"ShadowProductionVariants": self.shadows[name]}
            response.body = json.dumps({**json.loads(response.body), **added}).encode()

    def _state(self) -> dict[str, str] | Response:
        state = self.endpoint_states[0]
        has_failed = isinstance(state, dict) and state["EndpointStatus"] == "Failed"
        return state if has_failed else self.endpoint_states.pop(0)

    def _forward(self, request: Request, address: str = "") -> Response:
        upstream = http.client.HTTPConnection(address or self.moto, timeout=60)
        try:
            upstream.request(request.method, request.path, request.body, request.headers)
            response = upstream.getresponse()
            hop_by_hop_headers = {"connection", "transfer-encoding", "content-length", "server", "date"}
            headers = {
                name: value for name, value in response.getheaders() if name.lower() not in hop_by_hop_headers
            }
            if request.method == "HEAD":
                headers["Content-Length"] = response.getheader("Content-Length") or "0"
            return Response(response.status, headers, response.read())
        finally:
            upstream.close()

    def _update(self, request: Request) -> Response:
        """Delete the endpoint and create it again with the new configuration and its old tags."""
        parameters = json.loads(request.body)
        name = parameters["EndpointName"]
        current = self._sagemaker(request, "DescribeEndpoint", {"EndpointName": name})
        tags = self._sagemaker(request, "ListTags", {"ResourceArn": current["EndpointArn"]})["Tags"]
        self._sagemaker(request, "DeleteEndpoint", {"EndpointName": name})
        new_endpoint = {
            "EndpointName": name,
            "EndpointConfigName": parameters["EndpointConfigName"],
            "Tags": tags,
        }
        body = json.dumps(self._sagemaker(request, "CreateEndpoint", new_endpoint)).encode()
        return Response(200, {"Content-Type": "application/x-amz-json-1.1"}, body)

    def _sagemaker(self, request: Request, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(parameters).encode()
        headers = {
            **request.headers,
            "x-amz-target": f"SageMaker.{operation}",
            "content-length": str(len(body)),
        }
        answer = self._forward(Request("POST", "/", headers, body))
        return dict(json.loads(answer.body)) if answer.body else {}


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
