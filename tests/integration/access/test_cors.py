"""CORS: which web pages may call the box, seen from a real browser and in the response headers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import websocket
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.integration.access.locked_boxes import ORIGIN, LockedBox
from tests.support.boxes import wait_until
from tests.support.browser import chromium

FOREIGN_ORIGIN = "https://elsewhere.example"
INVOKE_MODEL = """
const [url, key, done] = arguments;
const headers = { "Content-Type": "application/json", ...(key && { "x-api-key": key }) };
fetch(url, { method: "POST", headers, body: '{"modelname":"probe","payload":{"numbers":[7]}}' })
  .then(async response => done({ status: response.status, body: await response.json(), retry: response.headers.get("Retry-After"),
                               challenge: response.headers.get("WWW-Authenticate") }))
  .catch(error => done({ error: String(error) }));
"""
OPEN_WEBSOCKET = """
const [url, done] = arguments;
const socket = new WebSocket(url);
socket.onopen = () => done("open");
socket.onerror = () => done("refused");
"""


class EmptyPage(BaseHTTPRequestHandler):
    """A page from another server than the box."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_: object) -> None:
        """Keep the test output clean."""


@pytest.fixture(scope="module")
def page_port(locked: LockedBox) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", locked.page_port), EmptyPage) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield locked.page_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser(page_port: int) -> Iterator[webdriver.Chrome]:
    with chromium("--ignore-certificate-errors") as driver:
        yield driver


def invoke_from_page(browser: webdriver.Chrome, locked: LockedBox, key: str) -> dict[str, Any]:
    """Invoke a model from a script on the page; return the status and body that the script sees."""
    url = f"https://127.0.0.1:{locked.tls_port}/invocations"
    return dict(browser.execute_async_script(INVOKE_MODEL, url, key))


def preflight(locked: LockedBox, origin: str) -> tuple[int, dict[str, str], bytes]:
    return locked.request(
        "OPTIONS",
        "/invocations",
        Origin=origin,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="content-type,x-api-key",
    )


def test_a_page_of_a_listed_origin_can_invoke_a_model(
    browser: webdriver.Chrome, locked: LockedBox, page_port: int
) -> None:
    browser.get(f"http://localhost:{page_port}")
    assert invoke_from_page(browser, locked, locked.key)["body"]["result"] == [7]


def test_a_page_of_a_listed_origin_can_read_errors(
    browser: webdriver.Chrome, locked: LockedBox, page_port: int
) -> None:
    browser.get(f"http://localhost:{page_port}")
    without_key = invoke_from_page(browser, locked, "")
    assert (without_key["status"], without_key["body"]["code"]) == (401, "unauthorized")
    assert without_key["challenge"].startswith("Bearer")

    def invoke_until_limited() -> dict[str, Any] | None:
        response = invoke_from_page(browser, locked, locked.limited_key)
        return response if response["status"] != 200 else None

    limited = wait_until(invoke_until_limited, description="a response over the rate limit")
    assert (limited["status"], limited["body"]["code"]) == (429, "rate_limited")
    assert int(limited["retry"]) >= 1


def test_a_page_of_another_origin_is_refused(
    browser: webdriver.Chrome, locked: LockedBox, page_port: int
) -> None:
    browser.get(f"http://127.0.0.1:{page_port}")
    assert "Failed to fetch" in invoke_from_page(browser, locked, locked.key)["error"]
    url = f"wss://127.0.0.1:{locked.tls_port}/invocations-bidirectional-stream"
    assert browser.execute_async_script(OPEN_WEBSOCKET, url) == "refused"


def test_the_playground_asks_for_a_key_and_works_with_one(
    browser: webdriver.Chrome, locked: LockedBox
) -> None:
    browser.get(f"https://127.0.0.1:{locked.tls_port}/")
    field = WebDriverWait(browser, 20).until(lambda driver: driver.find_element(By.ID, "key"))
    WebDriverWait(browser, 20).until(lambda _: field.is_displayed())
    assert "API key" in browser.find_element(By.ID, "state").text
    field.send_keys(locked.key + "\n")
    button = WebDriverWait(browser, 20).until(
        lambda driver: driver.find_element(By.CSS_SELECTOR, "[data-model=probe]")
    )
    button.click()
    payload = WebDriverWait(browser, 20).until(
        lambda driver: driver.find_element(By.CSS_SELECTOR, "#payload textarea")
    )
    payload.send_keys("[3]")
    browser.find_element(By.ID, "send").click()
    answer = WebDriverWait(browser, 20).until(
        lambda driver: driver.find_element(By.ID, "answer").get_attribute("textContent")
    )
    assert json.loads(str(answer))["result"] == [3]
    browser.find_element(By.ID, "tab-code").click()
    code = browser.find_element(By.ID, "code").text
    assert "$API_KEY" in code
    assert locked.key not in code


def test_a_preflight_is_answered_without_a_key(locked: LockedBox) -> None:
    status, headers, body = preflight(locked, ORIGIN)
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-origin"] == ORIGIN
    assert headers["access-control-allow-headers"] == "content-type,x-api-key"
    assert "POST" in headers["access-control-allow-methods"]
    assert headers["vary"].startswith("Origin")
    assert "OPTIONS /invocations 204" not in locked.box.log.read_text()


@pytest.mark.parametrize(
    "origin",
    [FOREIGN_ORIGIN, "null", "https://app.example.com.evil.example", "http://app.example.com", "x app"],
)
def test_other_origins_get_no_cors_headers(locked: LockedBox, origin: str) -> None:
    for response in (preflight(locked, origin), locked.invoke(Origin=origin, x_api_key=locked.key)):
        assert "access-control-allow-origin" not in response[1]
        assert response[1]["vary"].startswith("Origin")


def test_the_boxs_own_origin_is_always_allowed(locked: LockedBox) -> None:
    own_origin = f"https://127.0.0.1:{locked.tls_port}"
    assert (
        locked.invoke(Origin=own_origin, x_api_key=locked.key)[1]["access-control-allow-origin"] == own_origin
    )


def test_every_status_allows_the_listed_origin_and_never_all_origins(locked: LockedBox) -> None:
    responses = {
        200: locked.invoke(Origin=ORIGIN, x_api_key=locked.key),
        401: locked.invoke(Origin=ORIGIN),
        403: locked.invoke(Origin=ORIGIN, x_api_key="x"),
        404: locked.request("GET", "/nothing", Origin=ORIGIN, x_api_key=locked.key),
        413: locked.request(
            "POST", "/invocations", Origin=ORIGIN, x_api_key=locked.key, Content_Length=str(2**40)
        ),
    }
    for status, (actual_status, headers, _) in responses.items():
        assert actual_status == status
        assert headers["access-control-allow-origin"] == ORIGIN
        assert headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in headers


def test_an_options_request_that_is_no_preflight_needs_a_key(locked: LockedBox) -> None:
    assert locked.request("OPTIONS", "/invocations")[0] == 401
    assert locked.request("OPTIONS", "/invocations", Origin=ORIGIN)[0] == 401


def test_a_websocket_of_another_origin_is_refused(locked: LockedBox) -> None:
    url = f"wss://127.0.0.1:{locked.tls_port}/invocations-bidirectional-stream"
    options: dict[str, Any] = {
        "sslopt": {"cert_reqs": 0},
        "timeout": 10,
        "header": [f"x-api-key: {locked.key}"],
    }
    with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
        websocket.create_connection(url, origin=FOREIGN_ORIGIN, **options)
    websocket.create_connection(url, origin=ORIGIN, **options).close()
