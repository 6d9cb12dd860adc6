"""The Chalice app: ``chalice local``, ``chalice deploy``, and :mod:`serve` serve it."""

from __future__ import annotations

import threading

from chalice.app import Chalice, Request, Response
from chalicelib.front import Front, request_id


class Gateway(Chalice):
    """Keeps the current request for each thread; Chalice has one for the whole app."""

    _of_thread = threading.local()

    @property
    def current_request(self) -> Request | None:
        return getattr(self._of_thread, "request", None)

    @current_request.setter
    def current_request(self, value: Request | None) -> None:
        self._of_thread.request = value


app = Gateway(app_name="trireme-gateway", configure_logs=False)
front = Front()
app.register_middleware(front.reshape, "http")


@app.route("/health", methods=["GET"])
def health() -> Response:
    return front.answer(active_request(), lambda api: api.health(), open_to_all=True)


@app.route("/models", methods=["GET"], api_key_required=True)
def models() -> Response:
    return front.answer(active_request(), lambda api: api.models())


@app.route("/load_model/{model}", methods=["POST"], api_key_required=True, content_types=["*/*"])
def load_model(model: str) -> Response:
    return front.answer(active_request(), lambda api: api.load(model))


@app.route("/infer", methods=["POST"], api_key_required=True)
def infer_default() -> Response:
    body = bytes(active_request().raw_body)  # type: ignore[arg-type]
    return front.answer(active_request(), lambda api: api.infer_default(body))


@app.route("/infer/{model}", methods=["POST"], api_key_required=True)
def infer(model: str) -> Response:
    request = active_request()
    version = request.query_params.get("version", "") if request.query_params else ""
    body, identity = bytes(request.raw_body), request_id(request)  # type: ignore[arg-type]
    kind = request.headers.get("content-type") or ""
    return front.answer(request, lambda api: api.infer(model, body, version, identity, kind))


def active_request() -> Request:
    request = app.current_request
    assert request is not None  # Chalice calls a view for a request only
    return request
