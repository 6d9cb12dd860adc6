"""API keys and rate limits on a real box, and the commands of docs/run/expose-the-port.md."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from sm.server.access import keys
from tests.integration.access.locked_boxes import (
    CALL_COMMANDS,
    INVOKE_COMMAND,
    ROUTES_THAT_NEED_A_KEY,
    LockedBox,
)
from tests.support import pages
from tests.support.boxes import memory_field, wait_until

UPLOAD = b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n"


def resident_bytes(pids: list[int]) -> int:
    return sum(memory_field(pid, "VmRSS:", "status") for pid in pids)


def test_the_pages_commands_call_the_box_that_its_other_commands_set_up(locked: LockedBox) -> None:
    curls, invoke = (
        commands.replace("localhost:8443", f"localhost:{locked.tls_port}")
        for commands in (CALL_COMMANDS, INVOKE_COMMAND)
    )
    assert curls.count("curl") == 3
    pages.run_commands(curls, locked.folder, locked.box.port)
    # The box of these tests has no bert_base.
    arguments = "--text 'Paris is the [MASK] of France.' --model bert_base"
    assert arguments in invoke
    (locked.folder / "ask.json").write_text('{"modelname":"probe","payload":{"numbers":[5]}}')
    invoke = invoke.replace(arguments, "--json ask.json --raw")
    (answer,) = pages.run_commands(invoke, locked.folder, locked.box.port)
    assert answer["result"] == [5]


@pytest.mark.parametrize(("method", "path"), ROUTES_THAT_NEED_A_KEY)
def test_every_route_needs_a_key(locked: LockedBox, method: str, path: str) -> None:
    answer = locked.request(method, path, b"{}" if method == "POST" else None)
    assert answer.error == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == 'Bearer realm="trireme"'


def test_every_kind_of_route_answers_with_a_key(locked: LockedBox) -> None:
    v2_body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
    assert locked.request("POST", "/v2/models/echo/infer", v2_body, x_api_key=locked.key).status == 200
    for path in ("/metrics", "/models", "/openapi.json", "/v2/health/ready", "/execution-parameters"):
        assert locked.request("GET", path, x_api_key=locked.key).status == 200, path


@pytest.mark.parametrize(
    "path", ["//ping", "/models/..", "/models/%2e%2e", "/metrics/../ping", "/metrics%2f..%2fping"]
)
def test_path_traversal_from_an_open_path_reaches_no_protected_route(locked: LockedBox, path: str) -> None:
    for method in ("GET", "DELETE"):
        status, _, body = locked.request(method, path)
        assert (status, body) == (200, b"") or b"<title>Trireme" in body or status == 405


@pytest.mark.parametrize("wrong", ["x", "trireme_" + "A" * 43, "A" * 5000, "'; --", "\u00e9"])
def test_a_wrong_key_is_a_403_and_is_not_repeated(locked: LockedBox, wrong: str) -> None:
    answer = locked.invoke(x_api_key=wrong)
    assert answer.error == (403, "forbidden")
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert len(wrong) == 1 or wrong.encode() not in answer.body


@pytest.mark.parametrize("name", ["x-api-key: ", "Authorization: Bearer "])
@pytest.mark.parametrize("path", ["/metrics", "/v2/health/ready", "/invocations-bidirectional-stream"])
def test_two_keys_are_a_400_whichever_is_right(locked: LockedBox, name: str, path: str) -> None:
    right, other = locked.key, locked.other_key
    for pair in ((right, "x"), ("x", right), (right, right), (right, other)):
        lines = "".join(f"{name}{key}\r\n" for key in pair)
        with locked.connect() as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n{lines}Connection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert (head.split(b" ")[1], json.loads(body)["code"]) == (b"400", "bad_input")
        assert right.encode() not in answer


def test_a_body_without_a_key_is_refused_before_it_is_sent_and_stored_nowhere(locked: LockedBox) -> None:
    memory_before = resident_bytes(locked.box.pids("nginx"))
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(locked.connect()) for _ in range(8)]
        for connection in connections:
            connection.sendall(UPLOAD)
            # The response comes before any byte of the body.
            assert connection.recv(65536).startswith(b"HTTP/1.1 401")
            # nginx reads and discards the body for a while, so that the sender can read the response.
            with contextlib.suppress(OSError):
                for _ in range(40):
                    connection.sendall(b"x" * 2**18)
        assert resident_bytes(locked.box.pids("nginx")) - memory_before < 20_000_000
        assert not list((locked.box.run_folder() / "nginx" / "body").iterdir())


def test_callers_without_a_key_cannot_block_those_with_one(locked: LockedBox) -> None:
    """More connections than the workers and their queue hold, each with a body that never ends."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(locked.connect()) for _ in range(60)]
        for connection in connections:
            connection.sendall(UPLOAD + b"{")
        for connection in connections:
            assert connection.recv(65536).startswith(b"HTTP/1.1 401")
        assert [locked.invoke(x_api_key=locked.key).status for _ in range(5)] == [200] * 5


def test_the_log_names_the_keys_owner_and_no_key_is_ever_shown(locked: LockedBox) -> None:
    headers = {"X_Amzn_SageMaker_Inference_Id": "who-asks", "x_api_key": locked.key}
    answer = locked.invoke(X_Trireme_Key_Name="forged", **headers)
    metrics = locked.request("GET", "/metrics", x_api_key=locked.key).body
    locked.invoke(Authorization="Bearer trireme_WRONG-KEY")
    log = locked.box.wait_for_log('"who-asks"')
    line = next(line for line in log.splitlines() if '"who-asks"' in line)
    assert json.loads(line)["api_key_name"] == "alice"
    for key in (locked.key, locked.limited_key, "WRONG-KEY"):
        assert key.encode() not in log.encode() + metrics + answer.body


def test_a_key_over_its_rate_gets_429_and_other_keys_do_not(locked: LockedBox) -> None:
    """Far more requests than bob's key allows: three at once, then one every two seconds."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: locked.invoke(x_api_key=locked.limited_key), range(24)))
    assert [answer.status for answer in answers].count(200) >= 3
    refused = next(answer for answer in answers if answer.status == 429)
    assert refused.error == (429, "rate_limited")
    assert 1 <= int(refused.headers["retry-after"]) <= 2
    assert locked.invoke(x_api_key=locked.key).status == 200
    wait_until(lambda: locked.invoke(x_api_key=locked.limited_key).status == 200, description="the next turn")


def test_keys_added_to_or_removed_from_the_file_take_effect(locked: LockedBox) -> None:
    key, content = keys.generate(), locked.keys_file.read_text()
    locked.keys_file.write_text(content + keys.format_line("carol", key) + "\n")
    wait_until(lambda: locked.invoke(x_api_key=key).status == 200, description="the new key's acceptance")
    locked.keys_file.write_text(content)
    wait_until(lambda: locked.invoke(x_api_key=key).status == 403, description="the removed key's refusal")
    assert locked.invoke(x_api_key=locked.key).status == 200


def test_a_key_file_that_becomes_invalid_leaves_the_old_keys(locked: LockedBox) -> None:
    content, before = locked.keys_file.read_text(), locked.warnings(locked.keys_file)
    try:
        locked.keys_file.write_text("garbage\n")
        wait_until(lambda: locked.warnings(locked.keys_file) > before, description="a warning")
        assert (locked.invoke(x_api_key=locked.key).status, locked.invoke().status) == (200, 401)
    finally:
        locked.keys_file.write_text(content)


def test_requests_get_503_while_the_key_checker_hangs_and_it_is_replaced(locked: LockedBox) -> None:
    content = locked.keys_file.read_text()
    (checker,) = locked.box.pids("sm.server.access.keys")
    assert resident_bytes([checker]) < 40_000_000
    # The new checker starts even if the file is broken: it uses the last valid keys.
    locked.keys_file.write_text("garbage\n")
    os.kill(checker, signal.SIGSTOP)
    try:
        try:
            answer = locked.invoke(x_api_key=locked.key)
            assert answer.error == (503, "not_ready")
            assert answer.headers["retry-after"] == "1"
            assert locked.request("GET", "/ping").status == 200
        finally:
            os.kill(checker, signal.SIGKILL)
        wait_until(lambda: locked.invoke(x_api_key=locked.key).status == 200, description="a new checker")
        assert locked.invoke(x_api_key="x").status == 403
    finally:
        locked.keys_file.write_text(content)
