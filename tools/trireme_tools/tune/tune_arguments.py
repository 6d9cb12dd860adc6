"""Arguments of ``sm tune``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

UNITS = {"ms": 1e-3, "s": 1.0, "us": 1e-6}
MAX_BOUND_S = 3600.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL", help="the client's name, as in requests")
    command.add_argument(
        "--p99",
        type=duration,
        default=0.2,
        metavar="TIME",
        help="the highest p99 allowed, such as 200ms (the default) or 1s",
    )
    command.add_argument(
        "--minutes", type=minutes, default=5.0, metavar="N", help="the time limit for the whole run (5)"
    )
    command.add_argument("--apply", action="store_true", help="write the best setting into config.pbtxt")
    command.add_argument("--part", metavar="NAME", help="the model to tune if the client calls several")
    command.add_argument(
        "--instances", type=counts, metavar="N,N", help="instance counts to try; powers of 2 up to the cores"
    )
    command.add_argument(
        "--callers",
        type=counts,
        default=(1, 2, 4, 8, 16, 32),
        metavar="N,N",
        help="numbers of concurrent requests to try (1,2,4,8,16,32)",
    )
    command.add_argument(
        "--delays", type=delays, metavar="TIME,TIME", help="delays of dynamic batching to try (1ms,5ms)"
    )
    command.add_argument(
        "--report",
        type=Path,
        metavar="FOLDER",
        help="the folder for report.md, plot.svg and sweep.json (tune-MODEL)",
    )
    command.add_argument(
        "--from",
        type=Path,
        dest="sweep",
        metavar="FILE",
        help="choose from this sweep.json without measuring",
    )
    command.add_argument(
        "--instance-type",
        action="append",
        metavar="TYPE",
        help="the instance type of the cost, such as ml.m5.xlarge; repeatable",
    )
    command.add_argument(
        "--region", default="us-east-1", metavar="REGION", help="the Region of the cost (us-east-1)"
    )
    command.add_argument("--live", action="store_true", help="use today's prices from AWS's price list")
    command.add_argument("--profile", metavar="PROFILE", help="with --live: the AWS profile")


def duration(text: str) -> float:
    """Parse ``200ms``, ``0.2s`` or ``500us``; return seconds."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)(ms|us|s)", text)
    seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= MAX_BOUND_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, such as 200ms or 1s")
    return seconds


def delays(text: str) -> tuple[int, ...]:
    """Parse durations between commas; return microseconds."""
    return tuple(sorted({round(duration(word) * 1e6) for word in text.split(",")}))


def minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 24 * 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes")
    return value


def counts(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() and 0 < int(word) <= 1024 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of counts, such as 1,2,4")
    return tuple(sorted({int(word) for word in words}))
