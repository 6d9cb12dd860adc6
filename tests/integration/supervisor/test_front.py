"""The real nginx with this box's configuration, before small servers that stand where the router would."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.server.supervisor import front
from sm.server.supervisor.capacity import capacity
from sm.settings import Settings
from tests.support.boxes import descendants, wait_until
from tests.support.nginx_front import NGINX, Front, error, make_box, running
from tests.support.request_id_examples import ACCEPTED, REFUSED, ROOT

pytestmark = pytest.mark.skipif(NGINX is None, reason="there is no nginx")


@pytest.fixture
def nginx(run: Path) -> Iterator[Front]:
    with running(run) as started:
        yield started


@pytest.fixture
def narrow(run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """One that lets four requests through at once."""
    monkeypatch.setattr("sm.server.supervisor.capacity.MAX_UNREAD_REQUESTS", 0)
    with running(run, threads=1, queue=0) as started:
        yield started


@pytest.mark.parametrize(
    "path", ["/ping", "/metrics", "/models", "/models/a", "/execution-parameters", "/", "/openapi.json"]
)
def test_the_control_plane_has_its_own_routes(nginx: Front, path: str) -> None:
    assert nginx.ask("GET", path)[0] == 200
    assert nginx.upstream.seen[0][:2] == ("control", path)


@pytest.mark.parametrize(
    "path",
    ["/invocations", "/invocations?modelname=a%2Fb", "/endpoints/e/invocations", "/v2/health/ready", "/x"],
)
def test_everything_else_is_the_data_planes(nginx: Front, path: str) -> None:
    assert nginx.ask("POST", path, b"{}")[0] == 200
    assert nginx.upstream.seen[0][:2] == ("data", path)


@pytest.mark.parametrize("status", [400, 404, 405, 413, 422, 429, 500, 502, 503, 504, 507])
def test_the_routers_own_errors_pass_untouched(nginx: Front, status: int) -> None:
    nginx.upstream.status, nginx.upstream.body = status, b'{"error":"mine"}'
    assert nginx.ask("POST", "/invocations", b"{}")[::2] == (status, b'{"error":"mine"}')


def test_a_body_over_the_limit_is_413_in_the_contracts_shape(run: Path) -> None:
    with running(run, max_payload_mb=1.0) as nginx:
        assert nginx.ask("POST", "/invocations", b" " * 2**20)[0] == 200
        answer = nginx.ask("POST", "/invocations", b" " * (2**20 + 1))
        assert str(2**20) in error(answer, 413, "too_large")["error"]
        assert len(nginx.upstream.seen) == 1


def chunked(nginx: Front, size: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=10)
    chunks, headers = iter([b" " * (size // 4)] * 4), {"Transfer-Encoding": "chunked"}
    connection.request("POST", "/invocations", chunks, headers, encode_chunked=True)
    answer = connection.getresponse()
    status, body = answer.status, answer.read()
    connection.close()
    return status, body


def test_a_chunked_body_over_the_limit_is_413_too(run: Path) -> None:
    with running(run, max_payload_mb=1.0) as nginx:
        status, body = chunked(nginx, 3 * 2**19)
        assert status == 413
        assert json.loads(body)["code"] == "too_large"


def test_a_chunked_body_arrives_whole_with_its_length(nginx: Front) -> None:
    assert chunked(nginx, 400_000)[0] == 200
    assert nginx.upstream.seen[0][3] == 400_000


def test_callers_beyond_what_the_workers_can_look_at_get_429_and_ping_is_unharmed(narrow: Front) -> None:
    nginx = narrow
    nginx.upstream.holding = True
    answers: list[tuple[int, dict[str, str], bytes]] = []
    callers = [
        threading.Thread(target=lambda: answers.append(nginx.ask("POST", "/invocations", b"{}")))
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    wait_until(lambda: len(nginx.upstream.seen) == 4)
    answer = nginx.ask("POST", "/invocations", b"{}")
    error(answer, 429, "overloaded")
    assert answer[1]["retry-after"] == "1"
    assert nginx.ask("GET", "/ping")[0] == 200
    nginx.upstream.hold.set()
    for caller in callers:
        caller.join(60)
    assert [answer[0] for answer in answers] == [200] * 4


def test_a_flood_of_scrapes_is_turned_away_and_ping_is_unharmed(nginx: Front) -> None:
    nginx.upstream.holding, nginx.upstream.held_plane = True, "control"
    statuses: list[int] = []
    callers = [
        threading.Thread(target=lambda: statuses.append(nginx.ask("GET", "/metrics")[0])) for _ in range(12)
    ]
    for caller in callers:
        caller.start()
    wait_until(lambda: len(nginx.upstream.seen) == 8 and len(statuses) == 4)
    answer = nginx.ask("GET", "/metrics")
    error(answer, 429, "overloaded")
    assert answer[1]["retry-after"] == "1"
    assert nginx.ask("GET", "/ping")[0] == 200
    nginx.upstream.hold.set()
    for caller in callers:
        caller.join(60)
    assert sorted(statuses) == [200] * 8 + [429] * 4


@contextmanager
def slow_callers(nginx: Front, count: int, size: int, sent: int = 1) -> Iterator[list[socket.socket]]:
    """Connections on which a body of ``size`` bytes has begun and does not go on."""
    head = f"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n".encode()
    callers = [socket.create_connection(("127.0.0.1", nginx.port), timeout=20) for _ in range(count)]
    try:
        for caller in callers:
            caller.sendall(head + b" " * sent)
        yield callers
    finally:
        for caller in callers:
            caller.close()


@pytest.mark.parametrize("size", [1000, 500_000, 20_000_000])
def test_callers_with_slow_bodies_take_nobodys_place(nginx: Front, size: int) -> None:
    with slow_callers(nginx, 16, size):
        for length in (2, 500_000, 2_000_000):
            for _ in range(5):
                assert nginx.ask("POST", "/invocations", b" " * length)[0] == 200
    assert {received for *_, received in nginx.upstream.seen} == {2, 500_000, 2_000_000}


def test_a_slow_body_that_comes_whole_is_answered(nginx: Front) -> None:
    with slow_callers(nginx, 16, 1000) as callers:
        for caller in callers:
            caller.sendall(b" " * 999)
            assert caller.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_a_head_or_a_body_that_stalls_ends_its_connection_and_no_other(run: Path) -> None:
    with running(run, receive_timeout=1.0) as nginx, slow_callers(nginx, 3, 1000) as bodies:
        head = socket.create_connection(("127.0.0.1", nginx.port), timeout=20)
        head.sendall(b"POST /invocations HTTP/1.1\r\nX: ")
        for caller in (*bodies, head):
            assert caller.recv(65536) == b""
        head.close()
        assert nginx.ask("POST", "/invocations", b"{}")[0] == 200
        wait_until(lambda: nginx.log.read_text().count("POST /invocations 408") == 4)


def test_a_body_that_goes_on_may_take_longer_than_one_piece_of_it(run: Path) -> None:
    with running(run, receive_timeout=3.0) as nginx, slow_callers(nginx, 1, 9) as (caller,):
        for _ in range(8):
            time.sleep(0.5)
            caller.sendall(b" ")
        assert caller.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_bodies_that_memory_has_no_room_for_are_a_429_before_they_are_sent(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "memory_limit", lambda: 2**30)
    most = capacity(Settings(workers=1, threads=2, queue=2), 2**30, 1024).large_bodies
    with running(run) as nginx, slow_callers(nginx, most, 20_000_000):
        head = (
            b"POST /invocations HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2000000\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", nginx.port), timeout=10) as caller:
            caller.sendall(head)
            top, _, body = caller.recv(65536).partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 429 ")
        assert b"Retry-After: 1" in top
        assert json.loads(body)["code"] == "overloaded"
        assert chunked(nginx, 400_000)[0] == 429
        assert nginx.ask("POST", "/invocations", b" " * 500_000)[0] == 200


def test_a_killed_worker_of_nginx_leaves_no_request_counted(narrow: Front) -> None:
    nginx = narrow
    nginx.upstream.holding = True
    with slow_callers(nginx, 4, 1) as callers:
        wait_until(lambda: len(nginx.upstream.seen) == 4)
        assert nginx.ask("POST", "/invocations", b"{}")[0] == 429
        (worker,) = descendants(nginx.process.pid)
        os.kill(worker, signal.SIGKILL)
        assert all(caller.recv(65536) == b"" for caller in callers)
    nginx.upstream.hold.set()
    assert nginx.ask("POST", "/invocations", b"{}")[0] == 200


def test_without_a_data_plane_invocations_are_503_and_may_be_tried_again(run: Path) -> None:
    with running(run, ("control",)) as nginx:
        answer = nginx.ask("POST", "/invocations", b"{}")
        error(answer, 503, "not_ready")
        assert answer[1]["retry-after"] == "1"
        assert nginx.ask("GET", "/ping")[0] == 200


def test_without_a_control_plane_ping_is_503(run: Path) -> None:
    with running(run, ("data",)) as nginx:
        error(nginx.ask("GET", "/ping"), 503, "not_ready")
        assert nginx.ask("POST", "/invocations", b"{}")[0] == 200


def test_a_front_waits_longer_than_what_is_behind_it(run: Path) -> None:
    text = front.render(Settings(timeout=480.0), make_box(run))
    assert "proxy_read_timeout 485s;" in text
    assert "proxy_read_timeout 65s;" not in text


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
def test_the_front_gives_up_on_a_silent_stream_later_than_on_others(
    run: Path, monkeypatch: pytest.MonkeyPatch, path: str, accept: str, status: int
) -> None:
    monkeypatch.setattr(front, "TIMEOUT_MARGIN_S", 1)
    with running(run, timeout=0.1) as nginx:
        nginx.upstream.holding = True
        release = threading.Timer(4.0, nginx.upstream.hold.set)
        release.start()
        assert nginx.ask("POST", path, b"{}", Accept=accept)[0] == status
        release.join()


def test_where_every_answer_is_a_stream_no_request_need_say_so(run: Path) -> None:
    text = front.render(Settings(inference_type="generate_stream"), make_box(run))
    assert "default 1;" in text.partition("$streamed {")[2].partition("}")[0]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"X_Amzn_SageMaker_Inference_Id": "mine-1", "X_Amzn_Trace_Id": ROOT}, "mine-1"),
        ({"X_Amzn_SageMaker_Inference_Id": 'a"b', "X_Amzn_Trace_Id": ROOT}, ROOT),
        ({}, None),
        ({"X_Trireme_Request_Id": "forged"}, None),
    ],
)
def test_the_request_id_is_the_callers_or_made_here(
    nginx: Front, headers: dict[str, str], expected: str | None
) -> None:
    given = id_chosen_by(nginx, headers)
    assert given == expected if expected else re.fullmatch("[0-9a-f]{32}", given)


def test_nginx_takes_the_ids_that_the_router_takes_and_no_others(nginx: Front) -> None:
    for header, value in ACCEPTED:
        assert id_chosen_by(nginx, {header: value}) == value
    for header, value in REFUSED:
        given = id_chosen_by(nginx, {header: value.encode().decode("latin-1")})
        assert re.fullmatch("[0-9a-f]{32}", given), value


def id_chosen_by(nginx: Front, headers: dict[str, str]) -> str:
    nginx.ask("POST", "/invocations", b"{}", **headers)
    return nginx.upstream.seen[-1][2]["X-Trireme-Request-Id"]


def test_every_answer_names_its_request_once(nginx: Front) -> None:
    for path in ("/ping", "/models", "/invocations"):
        assert nginx.ask("POST", path, b"{}", X_Request_Id="mine-3")[1]["x-request-id"] == "mine-3"
        made = nginx.ask("POST", path, b"{}", X_Request_Id='"}\\')[1]["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", made)


def test_an_error_of_the_fronts_has_the_callers_id(run: Path) -> None:
    with running(run, ("control",)) as nginx:
        answer = nginx.ask("POST", "/invocations", b"{}", X_Amzn_SageMaker_Inference_Id="mine-2")
        assert error(answer, 503, "not_ready")["request_id"] == "mine-2"


def test_the_time_of_arrival_travels_along_and_cannot_be_forged(nginx: Front) -> None:
    before = time.time()
    nginx.ask("POST", "/invocations", b"{}", X_Trireme_Start="1")
    assert before - 1 <= float(nginx.upstream.seen[0][2]["X-Trireme-Start"]) <= time.time() + 1


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_input"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_input"),
        (b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", 400, "bad_input"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, "bad_input"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000 + b"\r\n\r\n", 431, "bad_input"),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /.error HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404, "not_found"),
    ],
)
def test_what_nginx_refuses_itself_is_json(nginx: Front, raw: bytes, status: int, code: str) -> None:
    head, _, body = nginx.send(raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    refusal = json.loads(body)
    assert refusal["code"] == code
    assert f"X-Request-Id: {refusal['request_id']}".encode() in head.splitlines()


def test_a_path_with_an_escape_out_of_the_root_is_json(nginx: Front) -> None:
    reply = nginx.send(b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["code"] == "bad_input"


def test_before_a_stop_callers_are_told_to_come_on_new_connections(nginx: Front) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=10)
    connection.request("POST", "/invocations", b"{}")
    answer = connection.getresponse()
    answer.read()
    assert answer.getheader("Connection") == "keep-alive"
    nginx.box.draining_file.touch()
    connection.request("POST", "/invocations", b"{}")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, nginx.upstream.body)
    assert answer.getheader("Connection") == "close"
    connection.close()


def test_a_quit_finishes_what_runs(nginx: Front) -> None:
    nginx.upstream.holding = True
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(nginx.ask("POST", "/invocations", b"{}")[0]))
    caller.start()
    wait_until(lambda: nginx.upstream.seen)
    nginx.process.send_signal(signal.SIGQUIT)
    nginx.upstream.hold.set()
    caller.join(60)
    assert answers == [200]
    assert nginx.process.wait(60) == 0


def test_only_what_the_router_did_not_answer_is_logged_and_no_query(run: Path) -> None:
    with running(run, max_payload_mb=0.001) as nginx:
        nginx.ask("GET", "/ping")
        nginx.ask("POST", "/invocations", b"{}")
        nginx.ask("POST", "/invocations?key=secret", b" " * 5000)
        wait_until(lambda: b"413" in nginx.log.read_bytes())
        lines = [json.loads(line) for line in nginx.log.read_text().splitlines() if line.startswith("{")]
        assert [line["message"] for line in lines] == ["POST /invocations 413"]
        assert (lines[0]["status"], lines[0]["code"]) == (413, "too_large")
        assert lines[0]["reason"].startswith("the body is larger than the ")


def test_everything_nginx_writes_is_in_the_run_folder(run: Path) -> None:
    text = front.render(Settings(), make_box(run))
    paths = [
        line.split()[1].rstrip(";") for line in text.splitlines() if "_temp_path" in line or "pid " in line
    ]
    assert len(paths) == 6
    assert all(path.startswith(str(run)) for path in paths)


def test_a_configuration_that_nginx_refuses_stops_the_start_with_its_sentence(run: Path) -> None:
    assert NGINX is not None
    with pytest.raises(StartError, match="nginx refuses its configuration: .*70000"):
        front.prepare(NGINX, replace(Settings(), port=70000), make_box(run))


def test_nginx_is_chosen_found_or_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert front.choose(replace(Settings(), nginx="off")) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(front, "NGINX_PATHS", str(tmp_path))
    assert front.choose(replace(Settings(), nginx="auto")) is None
    with pytest.raises(StartError, match="TRIREME_NGINX=on"):
        front.choose(replace(Settings(), nginx="on"))
    (tmp_path / "nginx").write_text("#!/bin/sh\n")
    (tmp_path / "nginx").chmod(0o755)
    assert front.choose(replace(Settings(), nginx="auto")) == tmp_path / "nginx"
