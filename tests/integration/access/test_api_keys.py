"""API keys and rate limits on a real box: nginx, the checker, the router, Triton."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import websocket

from sm.server.access import keys
from tests.support.access_routes import CLOSED
from tests.support.boxes import wait_until
from tests.support.locked_boxes import LockedBox, error_of


def resident_kb(pids: list[int]) -> int:
    """Memory of these processes together."""
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return sum(int(size) for status in statuses for size in re.findall(r"VmRSS:\s+(\d+) kB", status))


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_every_route_needs_a_key(locked: LockedBox, method: str, path: str) -> None:
    response = locked.ask(method, path, b"{}" if method == "POST" else None)
    if path == "//ping":  # nginx takes it for /ping, which is open
        assert response[0] == 200
        return
    assert response[0] == 401
    assert error_of(response)["code"] == "unauthorized"
    assert response[1]["www-authenticate"] == 'Bearer realm="trireme"'


def test_ping_and_the_page_need_no_key(locked: LockedBox) -> None:
    assert locked.ask("GET", "/ping")[::2] == (200, b"")
    assert b"<title>Trireme" in locked.ask("GET", "/")[2]


@pytest.mark.parametrize("path", ["/models/..", "/models/%2e%2e", "/metrics/../ping", "/metrics%2f..%2fping"])
def test_no_spelling_of_an_open_path_leads_anywhere_else(locked: LockedBox, path: str) -> None:
    for method in ("GET", "DELETE"):
        status, _, body = locked.ask(method, path)
        assert (status, body) == (200, b"") or b"<title>Trireme" in body or status == 405


def test_a_key_is_taken_from_either_header(locked: LockedBox) -> None:
    assert locked.invoke(x_api_key=locked.key)[0] == 200
    assert locked.invoke(Authorization=f"Bearer {locked.key}")[0] == 200
    assert locked.invoke(Authorization=f"bearer  {locked.key}")[0] == 200
    # boto3 signs its requests; the key is beside the signature.
    assert locked.invoke(Authorization="AWS4-HMAC-SHA256 x", x_api_key=locked.key)[0] == 200
    assert locked.invoke(Authorization="AWS4-HMAC-SHA256 x")[0] == 401
    assert locked.invoke(Authorization=f"Basic {locked.key}")[0] == 401


@pytest.mark.parametrize("wrong", ["x", "trireme_" + "A" * 43, "A" * 5000, "'; --", "\u00e9"])
def test_a_wrong_key_is_a_403_and_is_not_repeated(locked: LockedBox, wrong: str) -> None:
    response = locked.invoke(x_api_key=wrong)
    assert response[0] == 403
    assert error_of(response)["code"] == "forbidden"
    assert 'error="invalid_token"' in response[1]["www-authenticate"]
    if len(wrong) > 1:
        assert wrong.encode() not in response[2]


def test_a_key_with_a_character_changed_is_wrong(locked: LockedBox) -> None:
    other = "A" if locked.key[-5] != "A" else "B"
    assert locked.invoke(x_api_key=locked.key[:-5] + other + locked.key[-4:])[0] == 403
    assert locked.invoke(x_api_key=locked.key[:-1])[0] == 403
    assert locked.invoke(x_api_key=locked.key + "A")[0] == 403
    assert locked.invoke(x_api_key="")[0] == 401


def test_all_of_the_box_is_there_with_a_key(locked: LockedBox) -> None:
    rows = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
    assert locked.ask("POST", "/v2/models/echo/infer", rows, x_api_key=locked.key)[0] == 200
    for path in ("/metrics", "/models", "/openapi.json", "/v2/health/ready", "/execution-parameters"):
        assert locked.ask("GET", path, x_api_key=locked.key)[0] == 200, path


def test_a_websocket_needs_a_key(locked: LockedBox) -> None:
    url = f"wss://127.0.0.1:{locked.tls_port}/invocations-bidirectional-stream"
    options: dict[str, Any] = {"sslopt": {"cert_reqs": 0}, "timeout": 10}
    with pytest.raises(websocket.WebSocketBadStatusException, match="401"):
        websocket.create_connection(url, **options)
    talk = websocket.create_connection(url, header=[f"x-api-key: {locked.key}"], **options)
    talk.send('{"modelname":"probe","payload":{}}')
    assert json.loads(talk.recv())["modelname"] == "probe"
    talk.close()


def test_a_body_without_a_key_is_refused_before_it_is_sent(locked: LockedBox) -> None:
    with locked.connect() as connection:
        connection.sendall(b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n")
        # The answer comes although not a byte of the body does.
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")


def test_callers_without_a_key_cannot_make_the_box_store_their_bodies(locked: LockedBox) -> None:
    before = resident_kb(locked.box.pids("nginx"))
    intruders = [locked.connect() for _ in range(8)]
    for intruder in intruders:
        intruder.sendall(b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n")
        # A body goes on being read for a while, so that its sender gets to read the answer, and is not kept.
        with contextlib.suppress(OSError):
            for _ in range(40):
                intruder.sendall(b"x" * 2**18)
    assert resident_kb(locked.box.pids("nginx")) - before < 20_000
    assert not list((locked.box.run_folder() / "nginx" / "body").iterdir())
    for intruder in intruders:
        assert intruder.recv(65536).startswith(b"HTTP/1.1 401")
        intruder.close()


def test_callers_without_a_key_take_no_place_from_those_with_one(locked: LockedBox) -> None:
    # More than the workers and the queue hold together, each with a body that never ends.
    intruders = [locked.connect() for _ in range(60)]
    try:
        for intruder in intruders:
            intruder.sendall(b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n{")
        for intruder in intruders:
            assert intruder.recv(65536).startswith(b"HTTP/1.1 401")
        assert [locked.invoke(x_api_key=locked.key)[0] for _ in range(5)] == [200] * 5
    finally:
        for intruder in intruders:
            intruder.close()


def test_the_name_is_in_the_log_and_no_key_anywhere(locked: LockedBox) -> None:
    headers = {"X_Amzn_SageMaker_Inference_Id": "who-asks", "x_api_key": locked.key}
    response = locked.invoke(X_Trireme_Key_Name="forged", **headers)
    metrics = locked.ask("GET", "/metrics", x_api_key=locked.key)[2].decode()
    locked.invoke(Authorization="Bearer trireme_WRONG-KEY")
    text = locked.box.wait_for_log('"who-asks"')
    line = next(line for line in text.splitlines() if '"who-asks"' in line)
    assert json.loads(line)["api_key_name"] == "alice"
    for key in (locked.key, locked.limited_key, "WRONG-KEY"):
        assert key not in text
        assert key not in metrics
        assert key.encode() not in response[2]


def test_a_key_over_its_rate_is_a_429_and_others_are_not(locked: LockedBox) -> None:
    responses = ask_at_once(locked)
    assert [response[0] for response in responses].count(200) >= 3
    refused = next(response for response in responses if response[0] == 429)
    assert error_of(refused)["code"] == "rate_limited"
    assert 1 <= int(refused[1]["retry-after"]) <= 2
    assert locked.invoke(x_api_key=locked.key)[0] == 200
    locked.box.wait_for_log('"api_key_name":"bob"')
    wait_until(
        lambda: locked.invoke(x_api_key=locked.limited_key)[0] == 200, description="the end of the wait"
    )


def test_a_forged_name_makes_no_other_rate(locked: LockedBox) -> None:
    assert 429 in {response[0] for response in ask_at_once(locked, X_Trireme_Key_Name="alice")}


def ask_at_once(locked: LockedBox, **headers: str) -> list[tuple[int, dict[str, str], bytes]]:
    """Far more requests than the key may make that may ask three times at once and once in two seconds."""
    with ThreadPoolExecutor(8) as callers:
        return list(callers.map(lambda _: locked.invoke(x_api_key=locked.limited_key, **headers), range(24)))


def test_a_key_that_is_added_works_and_one_that_is_removed_does_not(locked: LockedBox) -> None:
    key = keys.generate()
    before = locked.keys_file.read_text()
    with locked.keys_file.open("a") as file:
        file.write(keys.format_line("carol", key) + "\n")
    wait_until(lambda: locked.invoke(x_api_key=key)[0] == 200, description="the new key")
    locked.keys_file.write_text(before)
    wait_until(lambda: locked.invoke(x_api_key=key)[0] == 403, description="the end of the key")
    assert locked.invoke(x_api_key=locked.key)[0] == 200
    locked.box.wait_for_log("the API keys were read again: 3")


@pytest.mark.parametrize("broken", ["", "garbage\n", "\nalice sha256:12\n", None])
def test_a_file_that_is_broken_later_changes_nothing(locked: LockedBox, broken: str | None) -> None:
    content = locked.keys_file.read_text()
    reported = locked.box.log.read_text().count("the API keys stay as they were")
    try:
        if broken is None:
            locked.keys_file.unlink()
        else:
            locked.keys_file.write_text(broken)
        wait_until(
            lambda: locked.box.log.read_text().count("the API keys stay as they were") > reported,
            description="a word of it",
        )
        assert locked.invoke(x_api_key=locked.key)[0] == 200
        assert locked.invoke()[0] == 401
    finally:
        locked.keys_file.write_text(content)


def test_without_the_checker_nobody_gets_in_and_it_comes_back(locked: LockedBox) -> None:
    content = locked.keys_file.read_text()
    # Not even a broken file keeps it from coming back: it uses what was good last.
    locked.keys_file.write_text("garbage\n")
    (checker,) = locked.box.pids("sm.server.access.checker")
    os.kill(checker, signal.SIGSTOP)
    try:
        try:
            response = locked.invoke(x_api_key=locked.key)
            assert response[0] == 503
            assert error_of(response)["code"] == "not_ready"
            assert response[1]["retry-after"] == "1"
            assert locked.ask("GET", "/ping")[0] == 200
        finally:
            os.kill(checker, signal.SIGKILL)
        wait_until(lambda: locked.invoke(x_api_key=locked.key)[0] == 200, description="the checker")
        assert locked.invoke(x_api_key="x")[0] == 403
    finally:
        locked.keys_file.write_text(content)


def test_the_checker_is_small(locked: LockedBox) -> None:
    (checker,) = locked.box.pids("sm.server.access.checker")
    assert resident_kb([checker]) < 40_000
