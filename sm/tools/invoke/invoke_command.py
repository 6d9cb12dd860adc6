"""``sm invoke``: ask, and show what came back and how long it took."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

from sm.errors import StartError
from sm.tools.invoke import load_test, question, showing
from sm.tools.invoke.question import Question
from sm.tools.invoke.reply import Reply, failed
from sm.tools.invoke.url import Url
from sm.tools.progress import Progress


class Endpoint(Protocol):
    """Whoever answers."""

    def ask(self, question: Question) -> Reply: ...

    def close(self) -> None: ...


class Streaming(Endpoint, Protocol):
    def stream(self, question: Question) -> Iterator[bytes]: ...


def run(options: argparse.Namespace) -> int:
    """Ask as the options say."""
    if options.c > 1 and not options.n:
        raise StartError("-c goes with -n: so many requests at once, of how many?")
    asked = question_of(options)
    if options.through_s3:
        with closing(asynchronous(options)) as waiting:
            return once(waiting, asked, options)
    with closing(streaming(options)) as target:
        if options.stream:
            return stream(target, asked, options.raw)
        return many(target, asked, options) if options.n else once(target, asked, options)


def question_of(options: argparse.Namespace) -> Question:
    if options.image:
        body, content_type = question.picture(options.image)
    elif options.json:
        body, content_type = question.document(options.json, options.model)
    else:
        body, content_type = question.text(options.text)
    accept = options.accept or "application/json"
    return Question(body, content_type, accept, options.model, options.target_model)


def is_url(target: str) -> bool:
    """Whether it is a URL; :class:`StartError` if it is no endpoint's name either."""
    if target.startswith(("http://", "https://")):
        return True
    if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", target):
        raise StartError(f"{target!r} is no endpoint's name, and a URL begins with http:// or https://.")
    return False


def streaming(options: argparse.Namespace) -> Streaming:
    """The target of the options. boto3 is loaded only for an endpoint."""
    if is_url(options.target):
        return Url(options.target, read_api_key(options.api_key) if options.api_key else "")
    if options.api_key:
        raise StartError("--api-key is for a URL: an endpoint of SageMaker asks for no key of the box's.")
    from sm.tools.deploy import aws
    from sm.tools.invoke.endpoint import Endpoint

    return Endpoint(options.target, aws.session(options.region, options.profile), options.c)


def read_api_key(file: Path) -> str:
    """The key in ``file``; :class:`StartError` if there is none."""
    try:
        words = file.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"--api-key {file} cannot be read: {error}.") from None
    if len(words) != 1:
        raise StartError(f"--api-key {file} does not have one key and nothing else.")
    return words[0]


def asynchronous(options: argparse.Namespace) -> Endpoint:
    if is_url(options.target):
        raise StartError("--async is for an endpoint of SageMaker: give its name.")
    from sm.tools.deploy import aws
    from sm.tools.invoke.asynchronous import AsyncEndpoint

    return AsyncEndpoint(options.target, aws.session(options.region, options.profile))


def once(target: Endpoint, asked: Question, options: argparse.Namespace) -> int:
    """One answer: to standard output, how long it took to standard error."""
    if options.through_s3:
        with Progress(sys.stderr).step("waiting for the answer in S3"):
            reply = target.ask(asked)
    else:
        reply = target.ask(asked)
    if not reply.good:
        raise failed(reply)
    if options.raw:
        sys.stdout.buffer.write(reply.body)
        return 0
    say(f"{reply.status} in {reply.seconds * 1000:.1f} ms, {len(reply.body)} bytes of {reply.content_type}")
    for line in showing.shown(reply, options.model or "answer", Path()):
        sys.stdout.write(f"{line}\n")
    return 0


def stream(target: Streaming, asked: Question, raw: bool) -> int:
    """The parts as they come."""
    chunks = target.stream(asked)
    if raw:
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        return 0
    for part in showing.parts(chunks):
        sys.stdout.write(f"{part}\n")
        sys.stdout.flush()
    return 0


def many(target: Endpoint, asked: Question, options: argparse.Namespace) -> int:
    """The table of ``-n`` requests; 1 if any failed."""
    say(f"{options.n} requests, {options.c} at once")
    found = load_test.measure(lambda: target.ask(asked), options.n, options.c)
    for line in load_test.table(found):
        sys.stdout.write(f"{line}\n")
    return int(bool(found.errors))


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
