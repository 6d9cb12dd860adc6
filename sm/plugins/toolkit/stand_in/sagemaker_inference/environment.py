"""Values of the environment variables, and the model's folder."""

from __future__ import annotations

import os

from . import content_types, parameters

DEFAULT_MODULE_NAME = "inference.py"
DEFAULT_MODEL_SERVER_TIMEOUT = "60"
DEFAULT_HTTP_PORT = "8080"
SAGEMAKER_BASE_PATH = os.path.join("/opt", "ml")  # noqa: PTH118  # scripts join texts to it

base_dir = os.environ.get(parameters.BASE_PATH_ENV, SAGEMAKER_BASE_PATH)
model_dir = os.path.join(  # noqa: PTH118
    base_dir, "models" if os.environ.get(parameters.MULTI_MODEL_ENV) == "true" else "model"
)
code_dir = os.path.join(model_dir, "code")  # noqa: PTH118


class Environment:
    """The environment variables, read when the object is created."""

    def __init__(self) -> None:
        getenv = os.environ.get
        self.module_name = getenv(parameters.USER_PROGRAM_ENV, DEFAULT_MODULE_NAME).removesuffix(".py")
        self.model_server_timeout = int(
            getenv(parameters.MODEL_SERVER_TIMEOUT_ENV, DEFAULT_MODEL_SERVER_TIMEOUT)
        )
        self.model_server_workers = getenv(parameters.MODEL_SERVER_WORKERS_ENV)
        self.default_accept = getenv(parameters.DEFAULT_INVOCATIONS_ACCEPT_ENV, content_types.JSON)
        self.inference_http_port = getenv(parameters.BIND_TO_PORT_ENV, DEFAULT_HTTP_PORT)
        self.management_http_port = self.inference_http_port
        self.safe_port_range = getenv(parameters.SAFE_PORT_RANGE_ENV)
