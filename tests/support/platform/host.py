"""A fake SageMaker that runs the endpoints which moto's API lists.

All of AWS has one address, :attr:`Host.url`, for boto3's ``AWS_ENDPOINT_URL``: this module serves SageMaker's
runtime, and moto the rest. moto reports every endpoint as ``InService`` at once and cannot update one, so this
module also corrects an endpoint's status and adds ``UpdateEndpoint``.
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

from tests.support.platform import moto_proxy, runtime
from tests.support.platform.archives import ArchiveStore
from tests.support.platform.asynchronous import AsyncWorker
from tests.support.platform.endpoint import Endpoint
from tests.support.platform.failures import validation_error
from tests.support.platform.instance import Instance, StartFailed
from tests.support.platform.machines import Launcher
from tests.support.platform.plan import EndpointPlan, read_plan

REGION = "eu-west-1"
CHECK_INTERVAL_S = 0.3  # between two readings of the list of endpoints
NO_CAPACITY = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)


class Host:
    """Serves the fake AWS and runs its endpoints.

    Args:
        moto: The URL of moto's server.
        launcher: Starts the instances, as processes or as containers.
        folder: Where archives and logs lie.
        capacity: The most instances that all endpoints together may have.
    """

    def __init__(self, moto: str, launcher: Launcher, folder: Path, capacity: int = 8) -> None:
        self._moto, self._launcher, self._folder, self._capacity = moto, launcher, folder, capacity
        self.sagemaker, self._s3, self._logs = (
            aws_client(moto, name) for name in ("sagemaker", "s3", "logs")
        )
        self._archives, self._worker = ArchiveStore(self._s3, folder / "archives"), AsyncWorker(self._s3)
        self.endpoints: dict[str, Endpoint] = {}
        self._updates: dict[str, dict[str, Any]] = {}
        # Held while an endpoint's record is deleted and created again, so that nobody sees it missing.
        self._records_lock = threading.RLock()
        self._stopped, self._wake_event = threading.Event(), threading.Event()
        self._server = make_server(
            "127.0.0.1", 0, self._app(), threaded=True, request_handler=QuietRequestHandler
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def run(self) -> Iterator[Host]:
        """Serve the API and run the endpoints that it lists, until the block ends."""
        threads = [
            threading.Thread(target=target) for target in (self._server.serve_forever, self._follow_endpoints)
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._wake_event.set()
            self._worker.close()
            threads[1].join()
            self._server.shutdown()
            threads[0].join()
            self._server.server_close()

    def find_endpoint(self, name: str) -> Endpoint:
        """Return an endpoint that takes requests.

        Raises:
            InvocationFailed: There is none of this name, or it is not ready.
        """
        endpoint = self.endpoints.get(name)
        if endpoint is None or endpoint.status in ("Creating", "Failed"):
            raise validation_error(f"Endpoint {name} of account 123456789012 not found.")
        return endpoint

    def _app(self) -> Flask:
        app = Flask("platform")
        app.register_blueprint(runtime.blueprint(self.find_endpoint, self._worker))
        amendments = {
            "DescribeEndpoint": self._amend_description,
            "ListEndpoints": self._amend_list,
            "CreateEndpoint": self._wake,
            "DeleteEndpoint": self._wake,
            "UpdateEndpointWeightsAndCapacities": self._wake,
        }
        actions: dict[str, moto_proxy.Action] = {
            "CreateEndpointConfig": self._create_config,
            "UpdateEndpoint": self._update,
        }
        app.register_blueprint(moto_proxy.blueprint(self._moto, actions, amendments, self._records_lock))
        return app

    def _follow_endpoints(self) -> None:
        while not self._stopped.is_set():
            with suppress(ClientError, BotoCoreError):
                self._reconcile()
            self._wake_event.wait(CHECK_INTERVAL_S)
            self._wake_event.clear()
        closing = [threading.Thread(target=endpoint.close) for endpoint in self.endpoints.values()]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _reconcile(self) -> None:
        """Start new endpoints, update changed ones and stop deleted ones."""
        with self._records_lock:
            pages = self.sagemaker.get_paginator("list_endpoints").paginate()
            names = [row["EndpointName"] for page in pages for row in page["Endpoints"]]
            plans = {name: read_plan(self.sagemaker, name) for name in names}
            for name, plan in plans.items():
                if name in self.endpoints:
                    self.endpoints[name].apply(plan)
                else:
                    self.endpoints[name] = Endpoint(plan, self._start_instance, self._record_rollback)
        for name in self.endpoints.keys() - plans.keys():
            self.endpoints.pop(name).close()

    def _create_config(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Answer ``CreateEndpointConfig`` with moto's refusals as SageMaker words them."""
        try:
            response = self.sagemaker.create_endpoint_config(**parameters)
        except ClientError as error:
            raise moto_proxy.ValidationFailed(error.response["Error"]["Message"]) from None
        return {"EndpointConfigArn": response["EndpointConfigArn"]}

    def _start_instance(self, plan: EndpointPlan) -> Instance:
        others = [endpoint for name, endpoint in self.endpoints.items() if name != plan.endpoint_name]
        if plan.instance_count + sum(len(endpoint.instances) for endpoint in others) > self._capacity:
            raise StartFailed(NO_CAPACITY)
        return Instance(plan, self._launcher, self._archives, self._logs, self._folder)

    def _record_rollback(self, plan: EndpointPlan) -> None:
        self._recreate_record(plan.endpoint_name, plan.config_name, plan.instance_count)

    def _update(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Answer ``UpdateEndpoint``: replace all instances at once, whatever deployment policy was requested."""
        name, config_name = parameters["EndpointName"], parameters["EndpointConfigName"]
        with self._records_lock:
            try:
                record = self.sagemaker.describe_endpoint(EndpointName=name)
                self.sagemaker.describe_endpoint_config(EndpointConfigName=config_name)
            except ClientError as error:
                raise moto_proxy.ValidationFailed(error.response["Error"]["Message"]) from None
            running = self.endpoints.get(name)
            if running is None or running.status != "InService":
                raise moto_proxy.ValidationFailed(
                    f"Cannot update in-progress endpoint {record['EndpointArn']!r}."
                )
            instance_count = (
                running.plan.instance_count if parameters.get("RetainAllVariantProperties") else None
            )
            self._recreate_record(name, config_name, instance_count)
            self._updates[name] = parameters.get("DeploymentConfig", {})
        self._wake_event.set()
        return {"EndpointArn": record["EndpointArn"]}

    def _recreate_record(self, name: str, config_name: str, instance_count: int | None) -> None:
        """Delete and create the endpoint's record with another configuration, as moto cannot update one."""
        with self._records_lock:
            arn = self.sagemaker.describe_endpoint(EndpointName=name)["EndpointArn"]
            tags = self.sagemaker.list_tags(ResourceArn=arn)["Tags"]
            self.sagemaker.delete_endpoint(EndpointName=name)
            self.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=config_name, Tags=tags)
            if instance_count is not None:
                variant = read_plan(self.sagemaker, name).variant
                capacities = [{"VariantName": variant, "DesiredInstanceCount": instance_count}]
                self.sagemaker.update_endpoint_weights_and_capacities(
                    EndpointName=name, DesiredWeightsAndCapacities=capacities
                )

    def _wake(self, _response: dict[str, Any]) -> None:
        self._wake_event.set()

    def _amend_list(self, response: dict[str, Any]) -> None:
        for row in response["Endpoints"]:
            row["EndpointStatus"] = self._status(row["EndpointName"])[0]

    def _amend_description(self, response: dict[str, Any]) -> None:
        name = response["EndpointName"]
        response["EndpointStatus"], reason = self._status(name, response["EndpointConfigName"])
        if reason:
            response["FailureReason"] = reason
        if self._updates.get(name):
            response["LastDeploymentConfig"] = self._updates[name]
        endpoint = self.endpoints.get(name)
        for variant in response["ProductionVariants"]:
            variant["CurrentInstanceCount"] = len(endpoint.instances) if endpoint else 0

    def _status(self, name: str, config_name: str = "") -> tuple[str, str]:
        """Return the status and the failure reason. A new endpoint that is not started yet is ``Creating``."""
        endpoint = self.endpoints.get(name)
        if endpoint is None:
            return "Creating", ""
        if endpoint.status == "InService" and config_name not in ("", endpoint.plan.config_name):
            return "Updating", ""
        return endpoint.status, endpoint.reason


class QuietRequestHandler(WSGIRequestHandler):
    """Speaks HTTP/1.1, so that responses without a length are chunked, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log(self, *_: object) -> None:
        """Keep pytest's output free of request logs."""


def aws_client(url: str, service: str) -> Any:
    """Return a boto3 client for the fake AWS at ``url``."""
    return boto3.client(
        service,
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
