"""The load generator of the benchmark."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest
from werkzeug import Request as HttpRequest
from werkzeug import Response

from bench import driver
from bench.driver import Load, Request
from tests.support.http_server import serving

#: Numbers the responses of ``unreliable``.
COUNT = itertools.count()


def unreliable(request: HttpRequest) -> Response:
    """One response of three is right, one has other content, one another status."""
    content = request.get_data()
    kind = next(COUNT) % 3
    return Response(b"cat" if kind == 1 else b"a dog, " + content, 500 if kind == 2 else 200)


@pytest.mark.skipif(shutil.which("wrk") is None, reason="there is no wrk: apt-get install wrk")
def test_the_load_generator_checks_every_response(tmp_path: Path) -> None:
    request = Request("/", {"Content-Type": "text/plain"}, b"and\x00a bone\xff" * 1000, b"a bone")
    with serving(unreliable) as url:
        command = driver.wrk(request, int(url.rpartition(":")[2]), 1, 3.0, tmp_path)
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    load = Load.read(output)
    assert load.answers > 3
    assert abs(load.wrong - 2 * load.answers) <= 2
    assert load.lost == 0
    assert 0 < load.p50 <= load.p99 <= load.max
