"""A model whose answers say which request they are for, around a team's own ``model.py``.

Linked into Triton's repository as ``model.py``, with ``request_token.py`` and the team's file beside it. The
team's tensors stay as they are. What this file does not define is the team's.
"""

from __future__ import annotations

import importlib
import inspect
import json
from typing import Any

import request_token
import triton_python_backend_utils as triton


def hide_token() -> None:
    """Leave the token out of what the team's code sees of a request; ``own_tokens`` still has it."""
    kind = triton.InferenceRequest
    outputs, parameters = kind.requested_output_names, kind.parameters
    kind.own_tokens = lambda request: request_token.tensors_of(outputs(request), parameters(request))
    kind.requested_output_names = lambda request: [
        name for name in outputs(request) if name != request_token.NAME
    ]
    kind.parameters = lambda request: without_token(parameters(request))


def without_token(text: str) -> str:
    """Return a request's parameters, JSON, without the token."""
    if request_token.NAME not in text:
        return text
    return json.dumps({name: value for name, value in json.loads(text).items() if name != request_token.NAME})


def without_output(text: str) -> str:
    """Return a model's configuration, JSON, without the output that the wrapper has added."""
    config = json.loads(text)
    config["output"] = [row for row in config.get("output", ()) if row.get("name") != request_token.NAME]
    return json.dumps(config)


def answered(request: Any, response: Any) -> Any:
    """Return a response with the token of its request."""
    tokens = request.own_tokens()
    if not tokens or response is None or response.has_error():
        return response
    return triton.InferenceResponse([*response.output_tensors(), *tokens])


class Sender:
    """A response sender that adds the token to each response."""

    def __init__(self, request: Any, sender: Any) -> None:
        self._request, self._sender = request, sender

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)

    def send(self, response: Any = None, flags: int = 0) -> None:
        if response is None:
            self._sender.send(flags=flags)
        else:
            self._sender.send(answered(self._request, response), flags=flags)


def wrap_senders() -> None:
    """Make each request's sender add its token."""
    original = triton.InferenceRequest.get_response_sender
    triton.InferenceRequest.get_response_sender = lambda request: Sender(request, original(request))


# Below the same package, so that relative imports work.
Inner: Any = importlib.import_module(f"{__package__}.trireme_inner_model").TritonPythonModel


class TritonPythonModel(Inner):  # type: ignore[misc]
    """The team's model with tokens."""

    def __init__(self) -> None:
        super().__init__()
        # The class is not there while Triton only asks for the configuration.
        wrap_senders()
        hide_token()

    def initialize(self, args: dict[str, str]) -> None:
        """Give the team's code the configuration that it knows."""
        if hasattr(super(), "initialize"):
            super().initialize({**args, "model_config": without_output(args["model_config"])})

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        completed = getattr(Inner, "auto_complete_config", lambda config: config)(config)
        return request_token.declare(completed or config)

    def execute(self, requests: list[Any]) -> Any:
        responses = super().execute(requests)
        if inspect.iscoroutine(responses):
            return self._execute_later(requests, responses)
        return with_tokens(requests, responses)

    async def _execute_later(self, requests: list[Any], responses: Any) -> Any:
        return with_tokens(requests, await responses)


def with_tokens(requests: list[Any], responses: Any) -> Any:
    """Return the responses, each with its request's token; None from a decoupled model."""
    if not responses:
        return responses
    return [answered(request, response) for request, response in zip(requests, responses, strict=True)]
