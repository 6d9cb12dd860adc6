"""CORS: which web pages may call the box, seen from a real browser and in the response headers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import websocket
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.integration.access.locked_boxes import ORIGIN, Answer, LockedBox
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with chromium("--ignore-certificate-errors") as driver:
        yield driver


def invoke_from_page(browser: Chrome, locked: LockedBox, key: str) -> dict[str, Any]:
    """Invoke a model from a script on the page; return the status and body that the script sees."""
    url = f"https://127.0.0.1:{locked.tls_port}/invocations"
    return dict(browser.execute_async_script(INVOKE_MODEL, url, key))


def preflight(locked: LockedBox, origin: str) -> Answer:
    return locked.request(
        "OPTIONS",
        "/invocations",
        Origin=origin,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="content-type,x-api-key",
    )


def test_a_page_of_a_listed_origin_can_invoke_a_model(browser: Chrome, locked: LockedBox) -> None:
    """It can read errors too."""
    browser.get(locked.page)
    assert invoke_from_page(browser, locked, locked.key)["body"]["result"] == [7]
    without_key = invoke_from_page(browser, locked, "")
    assert (without_key["status"], without_key["body"]["code"]) == (401, "unauthorized")
    assert without_key["challenge"].startswith("Bearer")

    def invoke_until_limited() -> dict[str, Any] | None:
        response = invoke_from_page(browser, locked, locked.limited_key)
        return response if response["status"] != 200 else None

    limited = wait_until(invoke_until_limited, description="a response over the rate limit")
    assert (limited["status"], int(limited["retry"]) >= 1) == (429, True)


def test_the_playground_asks_for_a_key_and_works_with_one(browser: Chrome, locked: LockedBox) -> None:
    def find(selector: str) -> Any:
        return WebDriverWait(browser, 20).until(lambda driver: driver.find_element(By.CSS_SELECTOR, selector))

    browser.get(f"https://127.0.0.1:{locked.tls_port}/")
    WebDriverWait(browser, 20).until(lambda _: find("#key").is_displayed())
    find("#key").send_keys(locked.key + "\n")
    find("[data-model=probe]").click()
    find("#payload textarea").send_keys("[3]")
    find("#send").click()
    answer = WebDriverWait(browser, 20).until(lambda _: find("#answer").get_attribute("textContent"))
    assert json.loads(str(answer))["result"] == [3]
    find("#tab-code").click()
    code = find("#code").text
    assert ("$API_KEY" in code, locked.key in code) == (True, False)


def test_a_preflight_is_answered_without_a_key(locked: LockedBox) -> None:
    status, headers, body = preflight(locked, ORIGIN)
    assert (status, body, headers["access-control-allow-origin"]) == (204, b"", ORIGIN)
    assert headers["access-control-allow-headers"] == "content-type,x-api-key"
    assert "POST" in headers["access-control-allow-methods"]
    assert headers["vary"].startswith("Origin")
    # One that is no preflight needs a key.
    assert locked.request("OPTIONS", "/invocations").status == 401
    assert locked.request("OPTIONS", "/invocations", Origin=ORIGIN).status == 401


@pytest.mark.parametrize(
    "origin",
    [FOREIGN_ORIGIN, "null", "https://app.example.com.evil.example", "http://app.example.com", "x app"],
)
def test_other_origins_get_no_cors_headers(locked: LockedBox, origin: str) -> None:
    for response in (preflight(locked, origin), locked.invoke(Origin=origin, x_api_key=locked.key)):
        assert "access-control-allow-origin" not in response.headers
        assert response.headers["vary"].startswith("Origin")


def test_every_status_allows_the_listed_origin_and_never_all_origins(locked: LockedBox) -> None:
    key = {"Origin": ORIGIN, "x_api_key": locked.key}
    for expected, (status, headers, _) in {
        200: locked.invoke(**key),
        401: locked.invoke(Origin=ORIGIN),
        403: locked.invoke(Origin=ORIGIN, x_api_key="x"),
        404: locked.request("GET", "/nothing", None, **key),
        413: locked.request("POST", "/invocations", None, Content_Length=str(2**40), **key),
    }.items():
        found = (status, headers["access-control-allow-origin"], headers["vary"])
        assert found == (expected, ORIGIN, "Origin")
        assert "access-control-allow-credentials" not in headers
    own = f"https://127.0.0.1:{locked.tls_port}"
    assert locked.invoke(Origin=own, x_api_key=locked.key).headers["access-control-allow-origin"] == own


def test_a_websocket_of_another_origin_is_refused(locked: LockedBox) -> None:
    url = f"wss://127.0.0.1:{locked.tls_port}/invocations-bidirectional-stream"
    options: dict[str, Any] = {"sslopt": {"cert_reqs": 0}, "timeout": 10}
    options["header"] = [f"x-api-key: {locked.key}"]
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        websocket.create_connection(url, origin=FOREIGN_ORIGIN, **options)
    assert refused.value.status_code == 403
    websocket.create_connection(url, origin=ORIGIN, **options).close()
