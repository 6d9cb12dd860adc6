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
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


def invoke(nginx: Front, body: bytes = b"{}", path: str = "/invocations", **headers: str) -> int:
    """Return the status of a POST."""
    return nginx.request("POST", path, body, **headers)[0]


def test_control_routes_go_to_the_control_plane_and_the_others_to_the_workers(nginx: Front) -> None:
    for path in ("/ping", "/metrics", "/models/a", "/", "/openapi.json"):
        assert nginx.request("GET", path)[0] == 200
        assert nginx.upstream.received_requests[-1][:2] == ("control", path)
    for plane, path in (
        ("control", "/ping"),
        ("data", "/invocations?modelname=a%2Fb"),
        ("data", "/endpoints/e/invocations"),
        ("data", "/x"),
    ):
        assert invoke(nginx, path=path) == 200
        assert nginx.upstream.received_requests[-1][:2] == (plane, path)


def test_a_body_over_the_limit_is_413_in_the_contracts_shape(run: Path) -> None:
    with running_nginx(run, max_payload_mb=1.0) as nginx:
        assert invoke(nginx, b" " * 2**20) == 200
        read_error(nginx.request("POST", "/invocations", b" " * (2**20 + 1)), 413, "too_large")
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
    with ThreadPoolExecutor(callers) as pool:
        flood = [pool.submit(nginx.request, method, path, body) for _ in range(callers)]
        wait_until(
            lambda: (
                len(nginx.upstream.received_requests) == held
                and sum(call.done() for call in flood) == callers - held
            )
        )
        response = nginx.request(method, path, body)
        read_error(response, 429, "overloaded")
        assert response[1]["retry-after"] == "1"
        assert nginx.request("GET", "/ping")[0] == 200
        nginx.upstream.hold.set()
    return sorted(call.result()[0] for call in flood)


def test_callers_beyond_the_workers_capacity_get_429_and_ping_still_works(narrow_nginx: Front) -> None:
    assert hold_requests(narrow_nginx, "data", "POST", "/invocations", 4, held=4) == [200] * 4


def test_a_flood_of_scrapes_gets_429_and_ping_still_works(nginx: Front) -> None:
    assert hold_requests(nginx, "control", "GET", "/metrics", 12, held=8) == [200] * 8 + [429] * 4


@contextmanager
def slow_callers(
    nginx: Front, count: int, size: int, sent_bytes: int = 1, path: str = "/invocations"
) -> Iterator[list[socket.socket]]:
    """Connections that have sent the first bytes of a body of ``size`` bytes, and then pause."""
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(connect(nginx)) for _ in range(count)]
        for caller in callers:
            caller.sendall(head + b" " * sent_bytes)
        yield callers


def connect(nginx: Front) -> socket.socket:
    return socket.create_connection(("127.0.0.1", nginx.port), timeout=20)


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
            caller = stack.enter_context(connect(nginx))
            with contextlib.suppress(OSError):  # nginx has refused it already
                caller.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\n".encode() + head + body)
        assert nginx.request("GET", "/ping")[0] == 200
        assert nginx_memory(nginx) - before < 4 * 2**20
        assert {path for _, path, *_ in nginx.upstream.received_requests} == {"/ping"}


def test_a_large_body_on_a_path_that_needs_none_is_a_413(nginx: Front) -> None:
    for path in BODILESS_PATHS:
        read_error(nginx.request("POST", path, b" " * 5000), 413, "too_large")
    assert nginx.upstream.received_requests == []


def test_http2_has_the_same_limits_for_bodies_of_unknown_length(run: Path) -> None:
    files, tls_port = certificates.write(run), free_port()
    (folder := make_box(run).tls_folder).mkdir(parents=True)
    for file, name in zip(files, (CERTIFICATE, KEY), strict=True):
        shutil.copy(file, folder / name)

    def send(method: str, path: str, size: int = 5000) -> str:
        """Send a body without saying its length; return the status."""
        command = ["curl", "-sk", "--http2", "-o", "/dev/null", "-w", "%{http_code}", "-X", method, "-T", "-"]
        url = f"https://localhost:{tls_port}{path}"
        # nginx may end the stream before curl has sent the body.
        return subprocess.run(
            [*command, url], input=b" " * size, stdout=subprocess.PIPE, check=False
        ).stdout.decode()

    with running_nginx(run, tls_certificate=files[0], tls_key=files[1], tls_port=tls_port) as nginx:
        assert nginx.request("GET", "/ping")[0] == 200
        for path in BODILESS_PATHS:
            assert send("POST", path) == "413", path
        for method in ("GET", "DELETE", "OPTIONS"):
            assert {send(method, path) for path in ("/invocations", "/v2/health/ready")} == {"413"}, method
        assert [send("POST", "/ping", 2), *(send("POST", path) for path in ("/invocations", "/models"))] == [
            "200"
        ] * 3


@pytest.mark.parametrize("size", [1000, 500_000, 20_000_000])
def test_slow_uploads_do_not_block_other_callers(nginx: Front, size: int) -> None:
    with slow_callers(nginx, 16, size):
        for length in (2, 500_000, 2_000_000):
            for _ in range(5):
                assert invoke(nginx, b" " * length) == 200
    assert {received for *_, received in nginx.upstream.received_requests} == {2, 500_000, 2_000_000}


def test_a_head_or_a_body_that_stalls_ends_its_connection_and_no_other(run: Path) -> None:
    with (
        running_nginx(run, stream_stall=2.0) as nginx,
        slow_callers(nginx, 3, 1000) as bodies,
        connect(nginx) as stalled_head,
    ):
        stalled_head.sendall(b"POST /invocations HTTP/1.1\r\nX: ")
        for caller in (*bodies, stalled_head):
            assert caller.recv(65536) == b""
        assert invoke(nginx) == 200
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
        assert invoke(nginx, b" " * 500_000) == 200


def test_a_request_whose_worker_died_is_sent_to_another_one_once(nginx: Front) -> None:
    upstream = nginx.upstream
    for path in ("/invocations", "/endpoints/e/invocations", "/models/m/invoke"):
        upstream.drops = 1
        status, headers, body = nginx.request("POST", path, b"{}", Content_Type="application/json")
        assert (status, body, headers["x-trireme-repeated"]) == (200, upstream.body, "1")
        first, second = upstream.received_requests[-2:]
        assert first == second, "sm.router.once knows it by its id and the time of its arrival"
        assert (second[3], "X-Trireme-Start" in second[2]) == (2, True)
        assert "x-trireme-repeated" not in nginx.request("POST", path, b"{}")[1]
        upstream.drops = 2
        response = nginx.request("POST", path, b"{}")
        read_error(response, 503, "not_ready")
        assert (response[1]["retry-after"], upstream.drops) == ("1", 0)
    lines = wait_until(
        lambda: len(found := access_lines(nginx)) == 3 and found, description="nginx's own answers"
    )
    assert {line["status"] for line in lines} == {503}, "the router logs its own answers"


def test_a_request_with_state_or_a_stream_is_sent_once(nginx: Front) -> None:
    for path, headers in (
        ("/invocations", {"X-Amzn-SageMaker-Session-Id": "s"}),
        ("/invocations", {"Accept": "text/event-stream"}),
        ("/v2/models/m/infer", {}),
    ):
        nginx.upstream.drops = 1
        assert invoke(nginx, b"{}", path, **headers) == 503
        assert nginx.upstream.drops == 0
    assert [received[0] for received in nginx.upstream.received_requests].count("data") == 3


def test_no_request_is_repeated_while_a_model_keeps_sequences(run: Path) -> None:
    (run / "counter").mkdir()
    (run / "counter" / "config.pbtxt").write_text("sequence_batching { }")
    with running_nginx(run) as nginx:
        nginx.upstream.drops = 1
        assert invoke(nginx) == 503


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
        assert invoke(nginx) == 200


def test_nginx_waits_longer_than_the_router_behind_it(run: Path) -> None:
    assert "proxy_read_timeout 485s;" in front.render(Settings(timeout=480.0), make_box(run))


def test_nginx_waits_longer_for_a_stream_than_for_other_responses(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "TIMEOUT_MARGIN_S", 1)
    cases = (
        ("/invocations", "*/*", 504),
        ("/invocations", "application/json, text/event-stream", 200),
        ("/endpoints/any/invocations-response-stream", "*/*", 200),
        ("/v2/models/m/generate_stream", "*/*", 200),
        ("/v2/models/m/generate", "*/*", 504),
    )
    with running_nginx(run, timeout=0.1) as nginx, ThreadPoolExecutor(len(cases)) as pool:
        nginx.upstream.holding = True
        calls = [pool.submit(invoke, nginx, path=path, Accept=accept) for path, accept, _ in cases]
        wait_until(
            lambda: sum(call.done() for call in calls) == 2, description="the two that are not streams"
        )
        time.sleep(1)
        nginx.upstream.hold.set()
        assert [call.result() for call in calls] == [status for *_, status in cases]


def test_nginx_accepts_the_same_request_ids_as_the_router(nginx: Front) -> None:
    def id_at_the_router(header: str, value: str) -> str:
        invoke(nginx, b"{}", "/invocations", **{header: value})
        return nginx.upstream.received_requests[-1][2]["X-Trireme-Request-Id"]

    for header, value in ACCEPTED:
        assert id_at_the_router(header, value) == value
    for header, value in REFUSED:
        sent = value.encode().decode("latin-1")
        assert re.fullmatch("[0-9a-f]{32}", id_at_the_router(header, sent)), value


def test_every_response_has_one_request_id(nginx: Front) -> None:
    for path in ("/ping", "/models", "/invocations"):
        assert nginx.request("POST", path, b"{}", X_Request_Id="mine-3")[1]["x-request-id"] == "mine-3"
        new_id = nginx.request("POST", path, b"{}", X_Request_Id='"}\\')[1]["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", new_id)


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
    with running_nginx(run, threads=1, queue=0) as nginx:
        text = (run / "nginx" / "nginx.conf").read_text()
        received_at_once = int(re.search(r"limit_conn medium_bodies (\d+);", text)[1])  # type: ignore[index]
        with slow_callers(nginx, received_at_once, 900_000, path="/models"):
            wait_until(lambda: invoke(nginx, b" " * 100_000, "/models") == 429)
            assert invoke(nginx, path="/models") == 200


def test_requests_of_a_killed_worker_of_nginx_are_no_longer_counted(narrow_nginx: Front) -> None:
    nginx = narrow_nginx
    nginx.upstream.holding = True
    with slow_callers(nginx, 4, 1) as callers:
        wait_until(lambda: len(nginx.upstream.received_requests) == 4)
        assert invoke(nginx) == 429
        (worker,) = descendants(nginx.process.pid)
        os.kill(worker, signal.SIGKILL)
        assert all(caller.recv(65536) == b"" for caller in callers)
    nginx.upstream.hold.set()
    assert invoke(nginx) == 200


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
