"""What ``sm invoke`` takes. Apart, as boto3 is loaded only by the request itself."""

from __future__ import annotations

import argparse
from pathlib import Path

LOCAL = "http://localhost:8080"


def take(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "target", nargs="?", default=LOCAL, metavar="NAME|URL", help=f"an endpoint or a URL ({LOCAL})"
    )
    command.add_argument("--model", metavar="MODEL", help="which model is asked (the default model)")
    command.add_argument("--target-model", metavar="ARCHIVE", help="a multi-model endpoint's archive")
    body = command.add_mutually_exclusive_group(required=True)
    body.add_argument("--image", type=Path, metavar="FILE", help="a JPEG, PNG or WebP picture")
    body.add_argument("--text", metavar="TEXT", help="a text")
    body.add_argument("--json", metavar="FILE", help="a request or a payload in JSON; - is standard input")
    command.add_argument("--accept", metavar="TYPE", help="the answer's type, such as image/png")
    how = command.add_mutually_exclusive_group()
    how.add_argument("--stream", action="store_true", help="show the answer in parts, as they come")
    how.add_argument(
        "--async", action="store_true", dest="through_s3", help="ask an asynchronous endpoint, through S3"
    )
    how.add_argument("-n", type=positive, metavar="N", help="ask N times, and show how long it took")
    command.add_argument(
        "-c", type=positive, default=1, metavar="C", help="with -n: so many requests at once (1)"
    )
    command.add_argument(
        "--api-key", type=Path, metavar="FILE", help="a file with the API key that the box at a URL asks for"
    )
    command.add_argument("--raw", action="store_true", help="the answer's bytes as they are")
    command.add_argument("--region", metavar="REGION", help="the endpoint's Region")
    command.add_argument("--profile", metavar="PROFILE", help="the profile of the AWS configuration")


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value
