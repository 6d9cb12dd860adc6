"""The host that plays SageMaker for the container: what the API of a fake AWS lists, it runs.

Everything has one address, :attr:`Host.url`, for boto3's ``AWS_ENDPOINT_URL``: the runtime is played here,
all else is moto's. moto calls every endpoint ``InService`` at once and cannot update one: both are put right here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError
from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.support.platform import front, runtime
from tests.support.platform.archives import Archives
from tests.support.platform.asynchronous import Worker
from tests.support.platform.endpoint import Endpoint
from tests.support.platform.failures import invalid
from tests.support.platform.instance import Instance, NotStarted
from tests.support.platform.machines import Machines
from tests.support.platform.plan import Plan, plan_of

REGION = "eu-west-1"
#: Seconds between two looks at the list of endpoints.
CHECK_INTERVAL_S = 0.3
NO_ROOM = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)


class Host:
    """``moto`` is its server's URL; ``capacity`` how many instances there may be, all endpoints together."""

    def __init__(self, moto: str, machines: Machines, folder: Path, capacity: int = 8) -> None:
        self._moto, self._machines, self._folder, self._capacity = moto, machines, folder, capacity
        self.sagemaker, self._s3, self._logs = (client(moto, name) for name in ("sagemaker", "s3", "logs"))
        self._archives, self._worker = Archives(self._s3, folder / "archives"), Worker(self._s3)
        self.endpoints: dict[str, Endpoint] = {}
        self._updates: dict[str, dict[str, Any]] = {}
        # Held while an endpoint's record is written anew, so that nobody sees it missing.
        self._records = threading.RLock()
        self._over, self._news = threading.Event(), threading.Event()
        self._server = make_server("127.0.0.1", 0, self._app(), threaded=True, request_handler=Quiet)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def follow(self) -> Iterator[Host]:
        """Serve, and run what the API lists, until the block ends."""
        threads = [threading.Thread(target=target) for target in (self._server.serve_forever, self._watch)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            self._news.set()
            self._worker.close()
            threads[1].join()
            self._server.shutdown()
            threads[0].join()
            self._server.server_close()

    def endpoint(self, name: str) -> Endpoint:
        """One that takes requests; else what the runtime says of it."""
        found = self.endpoints.get(name)
        if found is None or found.status in ("Creating", "Failed"):
            raise invalid(f"Endpoint {name} of account 123456789012 not found.")
        return found

    def _app(self) -> Flask:
        app = Flask("platform")
        app.register_blueprint(runtime.blueprint(self.endpoint, self._worker))
        amended = {
            "DescribeEndpoint": self._described,
            "ListEndpoints": self._listed,
            "CreateEndpoint": self._changed,
            "DeleteEndpoint": self._changed,
            "UpdateEndpointWeightsAndCapacities": self._changed,
        }
        actions: dict[str, front.Action] = {"UpdateEndpoint": self._update}
        app.register_blueprint(front.blueprint(self._moto, actions, amended, self._records))
        return app

    def _watch(self) -> None:
        while not self._over.is_set():
            with suppress(ClientError, BotoCoreError):
                self._look()
            self._news.wait(CHECK_INTERVAL_S)
            self._news.clear()
        closing = [threading.Thread(target=endpoint.close) for endpoint in self.endpoints.values()]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _look(self) -> None:
        """Start what is new, change what is other, stop what is gone."""
        with self._records:
            pages = self.sagemaker.get_paginator("list_endpoints").paginate()
            names = [row["EndpointName"] for page in pages for row in page["Endpoints"]]
            plans = {name: self._plan(name) for name in names}
            for name, plan in plans.items():
                if name in self.endpoints:
                    self.endpoints[name].become(plan)
                else:
                    self.endpoints[name] = Endpoint(plan, self._start, self._went_back)
        for name in self.endpoints.keys() - plans.keys():
            self.endpoints.pop(name).close()

    def _plan(self, name: str) -> Plan:
        return plan_of(self.sagemaker, name)

    def _start(self, plan: Plan) -> Instance:
        others = [one for name, one in self.endpoints.items() if name != plan.endpoint]
        if plan.count + sum(len(endpoint.instances) for endpoint in others) > self._capacity:
            raise NotStarted(NO_ROOM)
        return Instance(plan, self._machines, self._archives, self._logs, self._folder)

    def _went_back(self, plan: Plan) -> None:
        self._write_anew(plan.endpoint, plan.config, plan.count)

    def _update(self, asked: dict[str, Any]) -> dict[str, Any]:
        """``UpdateEndpoint``: another configuration, by blue/green in one step whatever was asked for."""
        name, config = asked["EndpointName"], asked["EndpointConfigName"]
        with self._records:
            try:
                record = self.sagemaker.describe_endpoint(EndpointName=name)
                self.sagemaker.describe_endpoint_config(EndpointConfigName=config)
            except ClientError as error:
                raise front.Invalid(error.response["Error"]["Message"]) from None
            running = self.endpoints.get(name)
            if running is None or running.status != "InService":
                raise front.Invalid(f"Cannot update in-progress endpoint {record['EndpointArn']!r}.")
            count = running.plan.count if asked.get("RetainAllVariantProperties") else None
            self._write_anew(name, config, count)
            self._updates[name] = asked.get("DeploymentConfig", {})
        self._news.set()
        return {"EndpointArn": record["EndpointArn"]}

    def _write_anew(self, name: str, config: str, count: int | None) -> None:
        """The record as it would be after an update: moto knows none."""
        with self._records:
            arn = self.sagemaker.describe_endpoint(EndpointName=name)["EndpointArn"]
            tags = self.sagemaker.list_tags(ResourceArn=arn)["Tags"]
            self.sagemaker.delete_endpoint(EndpointName=name)
            self.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=config, Tags=tags)
            if count is not None:
                variant = self._plan(name).variant
                wanted = [{"VariantName": variant, "DesiredInstanceCount": count}]
                self.sagemaker.update_endpoint_weights_and_capacities(
                    EndpointName=name, DesiredWeightsAndCapacities=wanted
                )

    def _changed(self, _told: dict[str, Any]) -> None:
        self._news.set()

    def _listed(self, told: dict[str, Any]) -> None:
        for row in told["Endpoints"]:
            row["EndpointStatus"] = self._status(row["EndpointName"])[0]

    def _described(self, told: dict[str, Any]) -> None:
        name = told["EndpointName"]
        told["EndpointStatus"], reason = self._status(name, told["EndpointConfigName"])
        if reason:
            told["FailureReason"] = reason
        if self._updates.get(name):
            told["LastDeploymentConfig"] = self._updates[name]
        endpoint = self.endpoints.get(name)
        for variant in told["ProductionVariants"]:
            variant["CurrentInstanceCount"] = len(endpoint.instances) if endpoint else 0

    def _status(self, name: str, config: str = "") -> tuple[str, str]:
        """How far it is, and why not further. What nobody has looked at yet is on its way."""
        endpoint = self.endpoints.get(name)
        if endpoint is None:
            return "Creating", ""
        if endpoint.status == "InService" and config not in ("", endpoint.plan.config):
            return "Updating", ""
        return endpoint.status, endpoint.reason


class Quiet(WSGIRequestHandler):
    """Answers in chunks where their size is not known, and writes no line for each."""

    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        """Nothing: pytest's output is no log."""


def client(url: str, service: str) -> Any:
    """boto3's client of a fake AWS."""
    return boto3.client(
        service,
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
