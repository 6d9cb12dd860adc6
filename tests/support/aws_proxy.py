"""An AWS in this process: moto behind a server that records the calls, injects faults, and supplies what moto lacks.

moto has no ``UpdateEndpoint``, no inference components, no shadows, and no endpoint that takes time or fails. Its state
belongs to the process, so only one such account is in use at a time.
"""

from __future__ import annotations

import io
import json
import re
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qs

from moto.moto_api._internal.models import moto_api_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.sagemaker.models import sagemaker_backends
from werkzeug import Request, Response

from tests.support.aws import REGION, aws_client
from tests.support.http_server import serving
from tests.support.played_codebuild import TARGET, PlayedCodeBuild

ACCOUNT = "123456789012"
MOTO = DomainDispatcherApplication(create_backend_app)
#: In the User-Agent of calls that get moto's response and are not recorded.
DIRECT = "direct-to-moto"
#: Operations that begin so change nothing in the account; all others do.
READING_PREFIXES = ("Describe", "List", "Get", "Head", "Filter", "Invoke", "BatchGet")


class Call(Request):
    """A request to AWS, whose body may be replaced."""

    def __init__(self, environ: dict[str, Any]) -> None:
        super().__init__(environ)
        self.body = self.get_data()

    @property
    def operation(self) -> str:
        """The operation's name in boto3's API; for S3 the method and ``Bucket`` or ``Object``."""
        if target := self.headers.get("X-Amz-Target"):
            return target.partition(".")[2]
        if "/operation/" in self.path:
            return self.path.rpartition("/")[2]
        if "form-urlencoded" in self.headers.get("Content-Type", ""):
            return parse_qs(self.body.decode())["Action"][0]
        if self.path.startswith("/endpoints/"):
            return "InvokeEndpoint"
        return f"{self.method.title()}{'Object' if self.path.strip('/').count('/') else 'Bucket'}"

    @property
    def is_change(self) -> bool:
        return not self.operation.startswith(READING_PREFIXES)

    @property
    def parameters(self) -> Any:
        """The members of a JSON body."""
        return json.loads(self.body)

    def ask_moto(self) -> Response:
        length = {"wsgi.input": io.BytesIO(self.body), "CONTENT_LENGTH": str(len(self.body))}
        return Response.from_app(MOTO, {**self.environ, **length})


def json_response(body: Any, status: int = 200, **headers: str) -> Response:
    return Response(json.dumps(body), status, headers, content_type="application/x-amz-json-1.1")


def json_error(status: int, code: str, message: str) -> Response:
    """Return an error in the form of AWS's JSON services, such as SageMaker."""
    return json_response({"__type": code, "message": message}, status, **{"x-amzn-ErrorType": code})


def xml_error(status: int, code: str, message: str) -> Response:
    """Return an error in S3's form."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Response(body, status, content_type="application/xml")


def add(response: Response, members: dict[str, Any]) -> None:
    """Add members to a JSON body."""
    response.set_data(json.dumps({**json.loads(response.get_data()), **members}))


def quota_page(quotas: dict[str, int], parameters: Any) -> Response:
    """Return a page of SageMaker's quotas, of which moto has none: for each instance type one of training, too."""
    usages = ("training job usage", "endpoint usage")
    rows = [
        {
            "ServiceCode": "sagemaker",
            "ServiceName": "Amazon SageMaker",
            "QuotaCode": f"L-{zlib.crc32(f'{kind} {usage}'.encode()):08X}",
            "QuotaName": f"{kind} for {usage}",
            "Value": float(count if usage == "endpoint usage" else 0),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }
        for kind, count in quotas.items()
        for usage in usages
    ]
    first = int(parameters.get("NextToken", 0))
    more = {"NextToken": str(first + 1)} if first + 1 < len(rows) else {}
    return json_response({"Quotas": rows[first : first + 1], **more})


@dataclass
class Proxy:
    """The proxy's state, its records and its faults."""

    url: str = ""
    #: The operations so far that changed the account, and the last JSON body of each.
    changes: list[str] = field(default_factory=list)
    bodies: dict[str, Any] = field(default_factory=dict)
    #: Responses in moto's place, by operation.
    fixed_responses: dict[str, Response] = field(default_factory=dict)
    #: What ``DescribeEndpoint`` adds, one state per call, once an endpoint was changed. ``Failed`` stays.
    endpoint_states: list[dict[str, str] | Response] = field(default_factory=list)
    #: Called once for each operation that changes the account; its caller gets no response.
    after_change: Callable[[], None] | None = None
    interrupted_operations: set[str] = field(default_factory=set)
    #: ``UpdateEndpoint`` succeeds and changes nothing.
    rolls_back: bool = False
    #: The account's quotas of instances for endpoints, by instance type, and AWS's defaults of those that it has not.
    quotas: dict[str, int] = field(default_factory=lambda: {"ml.g4dn.xlarge": 20})
    default_quotas: dict[str, int] = field(default_factory=lambda: {"ml.c5.xlarge": 20, "ml.g5.xlarge": 0})
    #: What plays builds; None if moto is enough.
    codebuild: PlayedCodeBuild | None = None
    #: The inference components as they are described.
    components: dict[str, dict[str, Any]] = field(default_factory=dict)

    def reset(self) -> None:
        vars(self).update(vars(Proxy(self.url)))

    def client(self, service: str) -> Any:
        """Return a client that calls moto without faults and records."""
        return aws_client(service, self.url, user_agent_extra=DIRECT)

    def fail_updates(self, configuration: str, reason: str) -> None:
        """Roll the next updates of an endpoint back to its configuration."""
        state = {"EndpointConfigName": configuration, "FailureReason": reason}
        self.changes, self.rolls_back = [], True
        self.endpoint_states = [
            {"EndpointStatus": "RollingBack"},
            *[{"EndpointStatus": "InService", **state}] * 9,
        ]

    def respond(self, call: Call) -> Response:
        """Return the response. ConnectionError: close the connection without one."""
        operation = call.operation
        if operation in self.fixed_responses:
            return self.fixed_responses[operation]
        response = self._answer(call)
        begun = {"CreateEndpoint", "UpdateEndpoint"} & {*self.changes}
        if operation == "DescribeEndpoint" and response.status_code == 200 and begun and self.endpoint_states:
            state = self.endpoint_states[0]
            if isinstance(state, Response) or state["EndpointStatus"] != "Failed":
                self.endpoint_states.pop(0)
            if isinstance(state, Response):
                return state
            add(response, state)
        if operation == "DeleteEndpoint":
            self.endpoint_states = []
        if call.is_change:
            self.changes.append(operation)
            if call.body.startswith(b"{"):
                self.bodies[operation] = call.parameters
            if self.after_change and operation not in self.interrupted_operations:
                self.interrupted_operations.add(operation)
                self.after_change()
                raise ConnectionAbortedError
        return response

    def _answer(self, call: Call) -> Response:
        """Return moto's response, or what moto lacks."""
        if call.path.endswith("/async-invocations"):
            # moto tells requests apart by this header only, which one with its body in the call does not have.
            call.environ.setdefault("HTTP_X_AMZN_SAGEMAKER_INPUTLOCATION", uuid.uuid4().hex)
        if call.headers.get("X-Amz-Target", "").startswith("AnyScaleFrontendService."):
            # moto scales no components; their names are no endpoints', so nothing is mistaken.
            body = call.body.replace(b"inference-component:DesiredCopy", b"variant:DesiredInstance")
            call.body = re.sub(rb"inference-component/([\w-]+)", rb"endpoint/\1/variant/copies", body)
        component_tags = call.operation == "ListTags" and b":inference-component/" in call.body
        if "InferenceComponent" in call.operation or component_tags:
            return self._change_component(call)
        if call.headers.get("X-Amz-Target", "").startswith("ServiceQuotas"):
            is_default = "Default" in call.operation
            return quota_page(self.default_quotas if is_default else self.quotas, call.parameters)
        if self.codebuild and call.headers.get("X-Amz-Target", "").startswith(TARGET):
            made = self.codebuild.answer(call.operation, call.parameters)
            if made is not None:
                return json_response(made)
        if call.operation == "UpdateEndpoint":
            return self._update(call)
        if call.operation == "CreateEndpointConfig":
            return self._create_configuration(call)
        return call.ask_moto()

    def _create_configuration(self, call: Call) -> Response:
        """Create an endpoint configuration, whose shadows moto forgets, and whose variants it wants to have models."""
        sent, parameters = call.body, call.parameters
        variants = parameters["ProductionVariants"]
        if any("ModelName" not in variant for variant in variants):
            call.body = json.dumps({**parameters, "ProductionVariants": []}).encode()
        response = call.ask_moto()
        call.body = sent
        if response.status_code == 200:
            made = sagemaker_backends[ACCOUNT][REGION].endpoint_configs[parameters["EndpointConfigName"]]
            shadows = parameters.get("ShadowProductionVariants")
            vars(made).update(production_variants=variants, shadow_production_variants=shadows)
        return response

    def _update(self, call: Call) -> Response:
        endpoint = sagemaker_backends[ACCOUNT][REGION].endpoints[call.parameters["EndpointName"]]
        if not self.rolls_back:
            endpoint.endpoint_config_name = call.parameters["EndpointConfigName"]
        return json_response({"EndpointArn": endpoint.arn})

    def _change_component(self, call: Call) -> Response:
        operation, body = call.operation, call.parameters
        if operation == "ListTags":
            return json_response({"Tags": self.components[body["ResourceArn"].rpartition("/")[2]]["Tags"]})
        if operation == "ListInferenceComponents":
            on_endpoint = body["EndpointNameEquals"]
            rows = [row for row in self.components.values() if row["EndpointName"] == on_endpoint]
            return json_response({"InferenceComponents": rows})
        name = body["InferenceComponentName"]
        arn = {"InferenceComponentArn": f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:inference-component/{name}"}
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


P = TypeVar("P", bound="Proxy")


@contextmanager
def running_proxy(proxy: P) -> Iterator[P]:
    """Run a proxy in front of an empty account."""

    def respond(sent: Request) -> Response:
        call = Call(sent.environ)
        is_direct = DIRECT in call.headers.get("User-Agent", "")
        return call.ask_moto() if is_direct else proxy.respond(call)

    moto_api_backend.reset()
    with serving(respond) as proxy.url:
        yield proxy
