"""The same words of Triton are the same error over each transport: both releases', from a scripted Triton."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import pytest
from tritonclient.grpc import service_pb2 as pb
from werkzeug import Response

from sm.errors import NotReady, TriremeError
from sm.model_processes.answer_guard import AnswerGuard
from sm.triton.calls import Calls
from sm.triton.channel import Channel
from sm.triton.http_proxy import ProxyRequest, Upstream
from sm.triton.triton_errors import HTTP_CODES, Failed
from tests.integration.triton.scripted_triton import Call, h2_server
from tests.support.http_server import serving
from tests.support.triton_words import SAID, Said

pytestmark = pytest.mark.core

TIMEOUT_S = 10.0
REQUEST = pb.ModelInferRequest(model_name="x")
STATUSES = {code: status for status, code in HTTP_CODES.items()}


def over_a_stream(said: Said) -> type[TriremeError]:
    answer = pb.ModelStreamInferResponse(error_message=said.words)

    def script(call: Call) -> None:
        call.answer(answer.SerializeToString())

    with h2_server(script) as server:
        channel = Channel(server.port, TIMEOUT_S)
        with pytest.raises(Failed) as failed:
            list(channel.stream(REQUEST, lambda: None))
        channel.close()
    return failed.value.kind


def over_http(said: Said) -> type[TriremeError]:
    body = json.dumps({"error": said.words}).encode()
    with serving(lambda _: Response(body, STATUSES.get(said.code, 500))) as url:
        upstream = Upstream(int(url.rpartition(":")[2]), TIMEOUT_S, Calls(AnswerGuard(None)))
        with contextlib.closing(upstream):
            try:
                reply = upstream.send(ProxyRequest("POST", "/v2/models/x/infer", b'{"inputs": []}'))
            except NotReady as error:
                return type(error)
    assert reply.failure is not None
    return reply.failure.kind


@pytest.mark.parametrize("transport", [over_a_stream, over_http])
def test_the_words_of_each_release_are_the_same_error_over_each_transport(
    transport: Callable[[Said], type[TriremeError]],
) -> None:
    said = [each for each in SAID if each.words_suffice or transport is not over_a_stream]
    assert {each.words: transport(each) for each in said} == {each.words: each.kind for each in said}
