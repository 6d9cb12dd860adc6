"""Arguments of ``sm invoke``, in a module of their own so that the command line does not import boto3."""

from __future__ import annotations

import argparse
from pathlib import Path

#: Seconds of the longest load: it is a look, no endurance test.
MAX_LOAD_S = 600.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "target",
        nargs="?",
        metavar="NAME|URL",
        help="an endpoint or a URL (default: the local box, http://localhost:8080 or SAGEMAKER_BIND_TO_PORT)",
    )
    command.add_argument("--model", metavar="MODEL", help="the model's name (the default model)")
    command.add_argument("--target-model", metavar="ARCHIVE", help="a multi-model endpoint's archive")
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
        "--async", action="store_true", dest="through_s3", help="invoke an asynchronous endpoint, through S3"
    )
    how.add_argument("-n", type=positive_number, metavar="N", help="send N requests and show their times")
    how.add_argument(
        "--load",
        type=seconds,
        metavar="SECONDS",
        help=f"send requests for so long and show their times (at most {MAX_LOAD_S:g})",
    )
    command.add_argument(
        "-c",
        type=positive_number,
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


def positive_number(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= MAX_LOAD_S:
        raise ValueError
    return value
