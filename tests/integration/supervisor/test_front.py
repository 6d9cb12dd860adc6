"""The real nginx with the box's configuration, in front of small servers that stand in for the router."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm.errors import StartError
from sm.server.access.certificates import CERTIFICATE, KEY
from sm.server.supervisor import nginx as front
from sm.server.supervisor.nginx import capacity
from sm.settings import Settings
from tests.support import certificates
from tests.support.boxes import descendants, free_port, wait_until
from tests.support.nginx_front import NGINX, Front, make_box, read_error, running_nginx
from tests.support.request_id_examples import ACCEPTED, REFUSED

pytestmark = [pytest.mark.core, pytest.mark.skipif(NGINX is None, reason="there is no nginx")]


@pytest.fixture
def nginx(run: Path) -> Iterator[Front]:
    with running_nginx(run) as front:
        yield front


@pytest.fixture
def narrow_nginx(run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """An nginx that lets four requests through at once."""
    monkeypatch.setattr("sm.server.supervisor.nginx.MAX_UNREAD_REQUESTS", 0)
    with running_nginx(run, threads=1, queue=0) as front:
        yield front


@pytest.mark.parametrize(
    ("plane", "method", "path"),
    [
        *(("control", "GET", path) for path in ("/ping", "/metrics", "/models/a", "/", "/openapi.json")),
        ("control", "POST", "/ping"),
        *(
            ("data", "POST", path)
            for path in ("/invocations?modelname=a%2Fb", "/endpoints/e/invocations", "/x")
        ),
    ],
)
def test_control_routes_go_to_the_control_plane_and_the_others_to_the_workers(
    nginx: Front, plane: str, method: str, path: str
) -> None:
    assert nginx.request(method, path, b"{}" if method == "POST" else None)[0] == 200
    assert nginx.upstream.received_requests[0][:2] == (plane, path)


def test_a_body_over_the_limit_is_413_in_the_contracts_shape(run: Path) -> None:
    with running_nginx(run, max_payload_mb=1.0) as nginx:
        assert nginx.request("POST", "/invocations", b" " * 2**20)[0] == 200
        response = nginx.request("POST", "/invocations", b" " * (2**20 + 1))
        read_error(response, 413, "too_large")
        assert len(nginx.upstream.received_requests) == 1


def post_in_chunks(nginx: Front, size: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=10)
    headers = {"Transfer-Encoding": "chunked"}
    connection.request("POST", "/invocations", iter([b" " * (size // 4)] * 4), headers, encode_chunked=True)
    with contextlib.closing(connection), connection.getresponse() as response:
        return response.status


def test_a_chunked_body_reaches_the_router_with_a_content_length(nginx: Front) -> None:
    assert post_in_chunks(nginx, 400_000) == 200
    assert nginx.upstream.received_requests[0][3] == 400_000


def hold_requests(nginx: Front, plane: str, method: str, path: str, callers: int, held: int) -> list[int]:
    """Flood a plane that answers nobody; then one more gets a 429, and /ping a 200. Returns the flood's statuses."""
    nginx.upstream.holding, nginx.upstream.held_plane = True, plane
    body = b"{}" if method == "POST" else None
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(nginx.request(method, path, body)[0]))
        for _ in range(callers)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(nginx.upstream.received_requests) == held and len(statuses) == callers - held)
    response = nginx.request(method, path, body)
    read_error(response, 429, "overloaded")
    assert response[1]["retry-after"] == "1"
    assert nginx.request("GET", "/ping")[0] == 200
    nginx.upstream.hold.set()
    for thread in threads:
        thread.join(60)
    return sorted(statuses)


def test_callers_beyond_the_workers_capacity_get_429_and_ping_still_works(narrow_nginx: Front) -> None:
    assert hold_requests(narrow_nginx, "data", "POST", "/invocations", 4, held=4) == [200] * 4


def test_a_flood_of_scrapes_gets_429_and_ping_still_works(nginx: Front) -> None:
    assert hold_requests(nginx, "control", "GET", "/metrics", 12, held=8) == [200] * 8 + [429] * 4


@contextmanager
def slow_callers(nginx: Front, count: int, size: int, sent_bytes: int = 1) -> Iterator[list[socket.socket]]:
    """Connections that have sent the first bytes of a body of ``size`` bytes, and then pause."""
    request_head = f"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode()
    callers = [socket.create_connection(("127.0.0.1", nginx.port), timeout=20) for _ in range(count)]
    try:
        for caller in callers:
            caller.sendall(request_head + b" " * sent_bytes)
        yield callers
    finally:
        for caller in callers:
            caller.close()


#: Paths that need no body.
BODILESS_PATHS = (
    *("/ping", "/", "/docs", "/dashboard", "/page/main.js", "/metrics", "/dashboard/data", "/openapi.json"),
    *("/execution-parameters", "/models/a", "/samples/a/b", "/invocations-bidirectional-stream"),
)
#: The end of the head of a request with a body, the bytes that follow it, and how often.
UNFINISHED_BODIES = {
    "length": (b"Content-Length: 1000000\r\n\r\n", b" " * 900_000),
    "small length": (b"Content-Length: 4000\r\n\r\n", b" " * 3_000),
    "chunked": (b"Transfer-Encoding: chunked\r\n\r\n", b"dbba0\r\n" + b" " * 900_000),
}


def nginx_memory(nginx: Front) -> int:
    pids = [nginx.process.pid, *descendants(nginx.process.pid)]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * resource.getpagesize()


@pytest.mark.parametrize("form", UNFINISHED_BODIES)
def test_unfinished_bodies_on_paths_that_need_none_cost_no_memory(nginx: Front, form: str) -> None:
    head, body = UNFINISHED_BODIES[form]
    assert nginx.request("GET", "/ping")[0] == 200
    before = nginx_memory(nginx)
    with contextlib.ExitStack() as stack:
        for path in BODILESS_PATHS * 5:
            caller = stack.enter_context(socket.create_connection(("127.0.0.1", nginx.port), timeout=20))
            with contextlib.suppress(OSError):  # nginx has refused it already
                caller.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\n".encode() + head + body)
        assert nginx.request("GET", "/ping")[0] == 200
        assert nginx_memory(nginx) - before < 4 * 2**20
        assert {path for _, path, *_ in nginx.upstream.received_requests} == {"/ping"}


def test_a_large_body_on_a_path_that_needs_none_is_a_413(nginx: Front) -> None:
    for path in BODILESS_PATHS:
        read_error(nginx.request("POST", path, b" " * 5000), 413, "too_large")
    assert nginx.upstream.received_requests == []


def send_over_http2(port: int, method: str, path: str, size: int) -> str:
    """Send a body without saying its length; return the status."""
    command = ["curl", "-sk", "--http2", "-o", "/dev/null", "-w", "%{http_code}", "-X", method, "-T", "-"]
    url = f"https://localhost:{port}{path}"
    return subprocess.run(
        [*command, url], input=b" " * size, capture_output=True, check=False
    ).stdout.decode()


def test_http2_has_the_same_limits_for_bodies_of_unknown_length(run: Path) -> None:
    certificate, key = certificates.write(run)
    tls_port = free_port()
    settings: dict[str, Any] = {"tls_certificate": certificate, "tls_key": key, "tls_port": tls_port}
    (folder := make_box(run).tls_folder).mkdir(parents=True)
    shutil.copy(certificate, folder / CERTIFICATE)
    shutil.copy(key, folder / KEY)
    with running_nginx(run, **settings) as nginx:
        assert nginx.request("GET", "/ping")[0] == 200
        for path in BODILESS_PATHS:
            assert send_over_http2(tls_port, "POST", path, 5000) == "413", path
        for method in ("GET", "DELETE", "OPTIONS"):
            assert send_over_http2(tls_port, method, "/invocations", 5000) == "413", method
            assert send_over_http2(tls_port, method, "/v2/health/ready", 5000) == "413", method
        assert send_over_http2(tls_port, "POST", "/ping", 2) == "200"
        for path in ("/invocations", "/models"):
            assert send_over_http2(tls_port, "POST", path, 5000) == "200"


@pytest.mark.parametrize("size", [1000, 500_000, 20_000_000])
def test_slow_uploads_do_not_block_other_callers(nginx: Front, size: int) -> None:
    with slow_callers(nginx, 16, size):
        for length in (2, 500_000, 2_000_000):
            for _ in range(5):
                assert nginx.request("POST", "/invocations", b" " * length)[0] == 200
    assert {received for *_, received in nginx.upstream.received_requests} == {2, 500_000, 2_000_000}


def test_a_head_or_a_body_that_stalls_ends_its_connection_and_no_other(run: Path) -> None:
    with running_nginx(run, stream_stall=2.0) as nginx, slow_callers(nginx, 3, 1000) as bodies:
        stalled_head = socket.create_connection(("127.0.0.1", nginx.port), timeout=20)
        stalled_head.sendall(b"POST /invocations HTTP/1.1\r\nX: ")
        for caller in (*bodies, stalled_head):
            assert caller.recv(65536) == b""
        stalled_head.close()
        assert nginx.request("POST", "/invocations", b"{}")[0] == 200
        wait_until(lambda: nginx.log.read_text().count("POST /invocations 408") == 4)


def test_bodies_beyond_the_memory_limit_get_429_before_they_are_sent(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "memory_limit", lambda: 2**30)
    max_bodies = capacity(Settings(workers=1, threads=2, queue=2), 2**30, 1024).large_bodies
    with running_nginx(run) as nginx, slow_callers(nginx, max_bodies, 20_000_000):
        head = (
            b"POST /invocations HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2000000\r\n\r\n"
        )
        lines = nginx.send(head).split(b"\r\n")
        assert (lines[0].split()[1], b"Retry-After: 1" in lines) == (b"429", True)
        assert post_in_chunks(nginx, 400_000) == 429
        assert nginx.request("POST", "/invocations", b" " * 500_000)[0] == 200


@pytest.mark.parametrize("path", ["/invocations", "/endpoints/e/invocations", "/models/m/invoke"])
def test_a_request_whose_worker_died_is_sent_to_another_one_once(nginx: Front, path: str) -> None:
    nginx.upstream.drops = 1
    status, headers, body = nginx.request("POST", path, b"{}", Content_Type="application/json")
    assert (status, body, headers["x-trireme-repeated"]) == (200, nginx.upstream.body, "1")
    assert [received[3] for received in nginx.upstream.received_requests] == [2, 2], "its whole body twice"
    assert "x-trireme-repeated" not in nginx.request("POST", path, b"{}")[1]
    nginx.upstream.drops = 2
    status, headers, body = nginx.request("POST", path, b"{}")
    assert (status, json.loads(body)["code"], headers["retry-after"]) == (503, "not_ready", "1")
    assert nginx.upstream.drops == 0
    (line,) = wait_until(lambda: access_lines(nginx), description="the line of nginx's own answer")
    assert line["status"] == 503, "the router logs its own answers"


def test_a_request_with_state_or_a_stream_is_sent_once(nginx: Front, run: Path) -> None:
    for path, headers in (
        ("/invocations", {"X-Amzn-SageMaker-Session-Id": "s"}),
        ("/invocations", {"Accept": "text/event-stream"}),
        ("/v2/models/m/infer", {}),
    ):
        nginx.upstream.drops = 1
        assert nginx.request("POST", path, b"{}", **headers)[0] == 503
        assert nginx.upstream.drops == 0
    assert [received[0] for received in nginx.upstream.received_requests].count("data") == 3


def test_no_request_is_repeated_while_a_model_keeps_sequences(run: Path) -> None:
    (run / "counter").mkdir()
    (run / "counter" / "config.pbtxt").write_text("sequence_batching { }")
    with running_nginx(run) as nginx:
        nginx.upstream.drops = 1
        assert nginx.request("POST", "/invocations", b"{}")[0] == 503


def test_without_a_data_plane_invocations_get_503_with_retry_after(run: Path) -> None:
    with running_nginx(run, ("control",)) as nginx:
        response = nginx.request("POST", "/invocations", b"{}", X_Amzn_SageMaker_Inference_Id="mine-2")
        assert read_error(response, 503, "not_ready")["request_id"] == "mine-2"
        assert response[1]["retry-after"] == "1"
        plane, path, _, received = nginx.upstream.received_requests[-1]
        assert (plane, path, received) == ("control", "/ping", 0), "without the caller's body"
        assert nginx.request("GET", "/ping")[0] == 200


def test_without_a_control_plane_ping_is_503(run: Path) -> None:
    with running_nginx(run, ("data",)) as nginx:
        read_error(nginx.request("GET", "/ping"), 503, "not_ready")
        assert nginx.request("POST", "/invocations", b"{}")[0] == 200


def test_nginx_waits_longer_than_the_router_behind_it(run: Path) -> None:
    assert "proxy_read_timeout 485s;" in front.render(Settings(timeout=480.0), make_box(run))


@pytest.mark.parametrize(
    ("path", "accept", "status"),
    [
        ("/invocations", "*/*", 504),
        ("/invocations", "application/json, text/event-stream", 200),
        ("/endpoints/any/invocations-response-stream", "*/*", 200),
        ("/v2/models/m/generate_stream", "*/*", 200),
        ("/v2/models/m/generate", "*/*", 504),
    ],
)
def test_nginx_waits_longer_for_a_stream_than_for_other_responses(
    run: Path, monkeypatch: pytest.MonkeyPatch, path: str, accept: str, status: int
) -> None:
    monkeypatch.setattr(front, "TIMEOUT_MARGIN_S", 1)
    with running_nginx(run, timeout=0.1) as nginx:
        nginx.upstream.holding = True
        release = threading.Timer(2.0, nginx.upstream.hold.set)
        # A response that nginx does not wait for never comes.
        if status == 200:
            release.start()
        assert nginx.request("POST", path, b"{}", Accept=accept)[0] == status


def test_nginx_accepts_the_same_request_ids_as_the_router(nginx: Front) -> None:
    for header, value in ACCEPTED:
        assert request_id_for(nginx, {header: value}) == value
    for header, value in REFUSED:
        request_id = request_id_for(nginx, {header: value.encode().decode("latin-1")})
        assert re.fullmatch("[0-9a-f]{32}", request_id), value


def request_id_for(nginx: Front, headers: dict[str, str]) -> str:
    nginx.request("POST", "/invocations", b"{}", **headers)
    return nginx.upstream.received_requests[-1][2]["X-Trireme-Request-Id"]


def test_every_response_has_one_request_id(nginx: Front) -> None:
    for path in ("/ping", "/models", "/invocations"):
        assert nginx.request("POST", path, b"{}", X_Request_Id="mine-3")[1]["x-request-id"] == "mine-3"
        new_id = nginx.request("POST", path, b"{}", X_Request_Id='"}\\')[1]["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", new_id)


@pytest.mark.parametrize(
    ("raw_request", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_input"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_input"),
        (b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", 400, "bad_input"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, "bad_input"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431, "bad_input"),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 400, "bad_input"),
        (b"GET /.error HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404, "not_found"),
    ],
)
def test_an_error_of_nginx_itself_is_json(nginx: Front, raw_request: bytes, status: int, code: str) -> None:
    head, _, body = nginx.send(raw_request).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    error_body = json.loads(body)
    assert error_body["code"] == code
    assert f"X-Request-Id: {error_body['request_id']}".encode() in head.splitlines()


def test_before_a_stop_nginx_asks_callers_to_close_their_connections(nginx: Front) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=10)
    for expected in ("keep-alive", "close"):
        connection.request("POST", "/invocations", b"{}")
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, nginx.upstream.body)
        assert response.getheader("Connection") == expected
        nginx.box.draining_file.touch()
    connection.close()


def test_nginx_logs_only_its_own_errors_and_never_the_query(run: Path) -> None:
    with running_nginx(run, max_payload_mb=0.001) as nginx:
        nginx.request("GET", "/ping")
        nginx.request("POST", "/invocations", b"{}")
        nginx.request("POST", "/invocations?key=secret", b" " * 5000)
        # nginx's other lines are not JSON, and their times and process ids may have the digits of any status.
        (line,) = wait_until(lambda: access_lines(nginx), description="the line of the refused request")
        assert (line["message"], line["status"], line["code"]) == ("POST /invocations 413", 413, "too_large")
        assert line["reason"]


def access_lines(nginx: Front) -> list[dict[str, Any]]:
    """The lines of nginx's log about requests."""
    return [json.loads(line) for line in nginx.log.read_text().splitlines() if line.startswith("{")]


def test_unfinished_loads_are_counted_like_other_bodies(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "MEDIUM_BODIES", (1, 1))
    path = "/models"
    with running_nginx(run, threads=1, queue=0) as nginx, contextlib.ExitStack() as stack:
        for _ in range(nginx_bodies(nginx)):
            caller = stack.enter_context(socket.create_connection(("127.0.0.1", nginx.port), timeout=20))
            caller.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n ".encode())
        wait_until(lambda: nginx.request("POST", path, b" " * 100_000)[0] == 429)
        assert nginx.request("POST", path, b"{}")[0] == 200


def nginx_bodies(nginx: Front) -> int:
    """The bodies of 100 KB to 1 MB that nginx receives at once."""
    text = (nginx.box.run / "nginx" / "nginx.conf").read_text()
    match = re.search(r"limit_conn medium_bodies (\d+);", text)
    assert match
    return int(match[1])


def test_requests_of_a_killed_worker_of_nginx_are_no_longer_counted(narrow_nginx: Front) -> None:
    nginx = narrow_nginx
    nginx.upstream.holding = True
    with slow_callers(nginx, 4, 1) as callers:
        wait_until(lambda: len(nginx.upstream.received_requests) == 4)
        assert nginx.request("POST", "/invocations", b"{}")[0] == 429
        (worker,) = descendants(nginx.process.pid)
        os.kill(worker, signal.SIGKILL)
        assert all(caller.recv(65536) == b"" for caller in callers)
    nginx.upstream.hold.set()
    assert nginx.request("POST", "/invocations", b"{}")[0] == 200


def test_a_body_may_take_longer_than_each_of_its_pauses(run: Path) -> None:
    with running_nginx(run, stream_stall=4.0) as nginx, slow_callers(nginx, 1, 5) as (caller,):
        for _ in range(4):
            time.sleep(0.7)  # a piece has half of the stall time
            caller.sendall(b" ")
        assert caller.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_nginx_is_used_if_found_required_or_off_as_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert front.find_nginx(Settings(nginx="off")) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(front, "NGINX_PATHS", str(tmp_path))
    assert front.find_nginx(Settings(nginx="auto")) is None
    with pytest.raises(StartError, match="TRIREME_NGINX=on"):
        front.find_nginx(Settings(nginx="on"))
    (tmp_path / "nginx").write_text("#!/bin/sh\n")
    (tmp_path / "nginx").chmod(0o755)
    assert front.find_nginx(Settings(nginx="auto")) == tmp_path / "nginx"


def test_a_configuration_that_nginx_refuses_stops_the_start(run: Path) -> None:
    assert NGINX is not None
    with pytest.raises(StartError, match="70000"):
        front.prepare_nginx(NGINX, replace(Settings(), port=70000), make_box(run))
