"""``sm invoke``: send a request, and show the answer and the time it took."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

from sm.errors import CommandError
from sm.settings import Settings
from trireme_tools import charts
from trireme_tools.arguments import number, whole_number
from trireme_tools.invoke import load_test, messages, showing
from trireme_tools.invoke.load_test import LoadTest
from trireme_tools.invoke.messages import InvokeReply, InvokeRequest, to_error
from trireme_tools.invoke.url import Url, read_api_key
from trireme_tools.progress import Progress

#: Seconds of the longest load: it is a look, no endurance test.
MAX_LOAD_S = 600.0
#: The most requests of a load test.
MAX_REQUESTS = 1_000_000


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "target",
        nargs="?",
        metavar="NAME|URL",
        help="an endpoint or a URL (default: the endpoint in trireme.toml, or the local box, "
        "http://localhost:8080 or SAGEMAKER_BIND_TO_PORT)",
    )
    command.add_argument("--model", metavar="MODEL", help="the model's name (the default model)")
    command.add_argument("--target-model", metavar="ARCHIVE", help="a multi-model endpoint's archive")
    command.add_argument("--component", metavar="NAME", help="an inference component of the endpoint")
    body = command.add_mutually_exclusive_group(required=True)
    body.add_argument("--image", type=Path, metavar="FILE", help="a JPEG, PNG or WebP picture")
    body.add_argument("--file", type=Path, metavar="FILE", help="any file: a recording, a document, a .npy")
    body.add_argument("--text", metavar="TEXT", help="a text")
    body.add_argument("--json", metavar="FILE", help="a request or a payload in JSON; - is standard input")
    command.add_argument(
        "--content-type",
        metavar="TYPE",
        help="with --file: its type (by the file's name, such as audio/x-wav)",
    )
    command.add_argument(
        "--save-picture", type=Path, metavar="FILE", help="draw the answer on the picture that is sent"
    )
    command.add_argument("--accept", metavar="TYPE", help="the answer's type, such as image/png")
    how = command.add_mutually_exclusive_group()
    how.add_argument("--stream", action="store_true", help="show each part of the answer as it arrives")
    how.add_argument(
        "--async",
        action="store_true",
        dest="through_s3",
        help="invoke an asynchronous endpoint, and wait for the answer in S3",
    )
    how.add_argument(
        "-n",
        type=whole_number("number", 1, MAX_REQUESTS),
        metavar="N",
        help="send N requests and show their times",
    )
    how.add_argument(
        "--load",
        type=number(MAX_LOAD_S, f"a number of seconds up to {MAX_LOAD_S:g}"),
        metavar="SECONDS",
        help=f"send requests for so long and show their times (at most {MAX_LOAD_S:g})",
    )
    command.add_argument(
        "-c",
        type=whole_number("number", 1, MAX_REQUESTS),
        default=1,
        metavar="C",
        help="with -n and --load: how many run at once (1)",
    )
    command.add_argument("--plot", type=Path, metavar="FILE.svg", help="with -n and --load: draw the times")
    command.add_argument(
        "--api-key", type=Path, metavar="FILE", help="a file with the API key for the box at a URL"
    )
    command.add_argument("--raw", action="store_true", help="write the answer's bytes unchanged")
    command.add_argument("--region", metavar="REGION", help="the endpoint's Region")
    command.add_argument("--profile", metavar="PROFILE", help="the profile of your AWS configuration")


class InvokeTarget(Protocol):
    """The target of requests."""

    def ask(self, request: InvokeRequest) -> InvokeReply: ...

    def close(self) -> None: ...


class StreamingTarget(InvokeTarget, Protocol):
    def stream(self, request: InvokeRequest) -> Iterator[bytes]: ...


def run(options: argparse.Namespace) -> int:
    """Send what the options say."""
    options.target = options.target or f"http://localhost:{Settings.read(os.environ).port}"
    is_load = bool(options.n or options.load)
    if options.c > 1 and not is_load:
        raise CommandError("-c needs -n or --load.")
    if options.content_type and not options.file:
        raise CommandError("--content-type needs --file.")
    if options.plot:
        if not is_load:
            raise CommandError("--plot needs -n or --load: it draws the times of many requests.")
        charts.check(options.plot)
    request = build_request(options)
    if options.save_picture:
        if is_load or options.stream or options.through_s3:
            raise CommandError(
                "--save-picture is for one request: leave out -n, --load, --stream and --async."
            )
        return save_picture(request, options)
    if options.through_s3:
        with closing(open_async_endpoint(options)) as target:
            return send_once(target, request, options)
    with closing(open_target(options)) as target:
        if options.stream:
            return stream(target, request, options.raw)
        return send_many(target, request, options) if is_load else send_once(target, request, options)


def build_request(options: argparse.Namespace) -> InvokeRequest:
    if options.image:
        body, content_type = messages.picture_body(options.image)
    elif options.file:
        body, content_type = messages.file_body(options.file, options.content_type)
    elif options.json:
        body, content_type = messages.json_body(options.json, options.model)
    else:
        body, content_type = options.text.encode(), "text/plain"
    accept = options.accept or "application/json"
    return InvokeRequest(body, content_type, accept, options.model, options.target_model, options.component)


def is_url(target: str) -> bool:
    """True for a URL. Raises :class:`CommandError` if it is not an endpoint's name either."""
    if target.startswith(("http://", "https://")):
        return True
    if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", target):
        raise CommandError(
            f"{target!r} is not an endpoint's name, and a URL begins with http:// or https://."
        )
    return False


def open_target(options: argparse.Namespace) -> StreamingTarget:
    """Return the target of the options. boto3 is imported only for an endpoint."""
    if is_url(options.target):
        return Url(options.target, read_api_key(options.api_key))
    if options.api_key:
        raise CommandError("--api-key is for a URL: an endpoint of SageMaker asks for no key of the box's.")
    from trireme_tools import aws
    from trireme_tools.invoke.endpoint import Endpoint

    return Endpoint(options.target, aws.session(options.region, options.profile), options.c)


def open_async_endpoint(options: argparse.Namespace) -> InvokeTarget:
    if is_url(options.target):
        raise CommandError("--async is for an endpoint of SageMaker: give its name.")
    from trireme_tools import aws
    from trireme_tools.invoke.endpoint import AsyncEndpoint

    return AsyncEndpoint(options.target, aws.session(options.region, options.profile))


def send_once(target: InvokeTarget, request: InvokeRequest, options: argparse.Namespace) -> int:
    """Print one answer to standard output, and its time to standard error."""
    if options.through_s3:
        with Progress(sys.stderr).step("waiting for the answer in S3"):
            reply = target.ask(request)
    else:
        reply = target.ask(request)
    if not reply.is_success:
        raise to_error(reply)
    if options.raw:
        sys.stdout.buffer.write(reply.body)
        return 0
    say(f"{reply.status} in {reply.seconds * 1000:.1f} ms, {len(reply.body)} bytes of {reply.content_type}")
    for line in showing.format_reply(reply, options.model or "answer", Path()):
        sys.stdout.write(f"{line}\n")
    return 0


def stream(target: StreamingTarget, request: InvokeRequest, raw: bool) -> int:
    """Print the parts as they arrive."""
    chunks = target.stream(request)
    if raw:
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        return 0
    for part in showing.event_data(chunks):
        sys.stdout.write(f"{part}\n")
        sys.stdout.flush()
    return 0


def send_many(target: InvokeTarget, request: InvokeRequest, options: argparse.Namespace) -> int:
    """Print the table of many requests; return 1 if any failed."""
    how_many = f"{options.n} requests" if options.n else f"requests for {options.load:g} s"
    say(f"{how_many}, {options.c} at once")
    load = LoadTest()
    requests, limit_s = options.n or MAX_REQUESTS, options.load or math.inf
    began = time.monotonic()
    size = options.n or round(options.load)
    done, unit = (
        (lambda: load.request_count, "") if options.n else (lambda: round(time.monotonic() - began), " s")
    )
    with Progress(sys.stderr).step("sending", size, done, lambda count: f"{count}{unit}"):
        load_test.measure(lambda: target.ask(request), requests, options.c, limit_s, load)
    charts.show(load_test.table(load), sys.stdout)
    if options.plot and load.latencies:
        latencies = sorted(load.latencies)
        marks = {name: load_test.quantile(latencies, share) * 1000 for name, share in load_test.MARKS.items()}
        charts.histogram(
            options.plot,
            f"{options.target}, {options.c} at once",
            [1000 * seconds for seconds in latencies],
            marks,
        )
        say(f"drawn in {options.plot}")
    return int(bool(load.errors))


def save_picture(request: InvokeRequest, options: argparse.Namespace) -> int:
    """Send one request and draw its answer on the picture that was sent."""
    # Pictures are decoded with OpenCV and Pillow: only who draws waits for them.
    from trireme_tools.invoke import result_picture

    result_picture.check_file(options.save_picture)
    sent_picture = request.sent_picture
    if sent_picture is None:
        raise CommandError(
            "--save-picture needs a request with a picture: --image FILE, or a payload with one."
        )
    kind = None
    if is_url(options.target):
        key = read_api_key(options.api_key)
        kind = result_picture.fetch_kind(options.target, options.model, key)
        request = request.with_parameters(kind.parameters if kind else {})
    with closing(open_target(options)) as target:
        reply = target.ask(request)
    if not reply.is_success:
        raise to_error(reply)
    result = reply.member("result")
    if picture := result_picture.picture_in(reply, result):
        drawn = result_picture.decode_picture(picture)
    else:
        drawn = result_picture.draw_result(kind or result_picture.guess_kind(result), result, sent_picture)
    result_picture.save(drawn, options.save_picture)
    say(f"{reply.status} in {reply.seconds * 1000:.1f} ms, drawn in {options.save_picture}")
    return 0


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
