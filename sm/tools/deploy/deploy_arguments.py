"""The commands and what they take. Apart, so that boto3 is loaded by the one that is run."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path

from sm.errors import StartError

#: Of the largest instance that SageMaker has.
MAX_CORES = 192
#: Megabytes that SageMaker gives a serverless endpoint.
MEMORY = tuple(range(1024, 6145, 1024))


def deploying(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the endpoint's name")
    describing(command)
    command.add_argument("--bucket", help="where a folder's archive goes (sagemaker-REGION-ACCOUNT)")
    updating(command)
    command.add_argument("--dry-run", action="store_true", help="print the calls that would be made")
    account(command)


def describing(command: argparse.ArgumentParser) -> None:
    """What is to be there, whoever makes it: ``sm template`` takes the same."""
    command.add_argument("--image", metavar="URI", help="the image, in this Region's ECR")
    command.add_argument(
        "--model-data",
        metavar="s3://…|DIR",
        help="an archive on S3 (with --mme a prefix), or a model repository; none if the image has models",
    )
    command.add_argument("--instance-type", default="ml.g5.xlarge", metavar="TYPE")
    command.add_argument("--count", type=number("count", 1, 10_000), default=1, metavar="N", help="instances")
    command.add_argument(
        "--role", metavar="ARN", help="SageMaker's role (the endpoint's present one, or one named trireme)"
    )
    command.add_argument(
        "--env", type=pair, action="append", default=[], metavar="K=V", help="a variable of the box"
    )
    command.add_argument(
        "--mme", action="store_true", help="a multi-model endpoint: an archive for each model"
    )
    kind = command.add_mutually_exclusive_group()
    kind.add_argument(
        "--async", dest="output", type=bucket, metavar="s3://…", help="asynchronous; answers go there"
    )
    kind.add_argument(
        "--serverless",
        type=serverless,
        metavar="MEMORY:CONCURRENCY",
        help="no instances; MB and requests at once",
    )
    command.add_argument("--autoscale", type=limits, metavar="MIN:MAX", help="instances")
    command.add_argument(
        "--target-invocations",
        type=float,
        metavar="N",
        help="with --autoscale: requests a minute for each instance (with --async: waiting requests)",
    )
    for unit, parts in (("cpu", "cores"), ("gpu", "GPUs")):
        command.add_argument(
            f"--target-{unit}",
            type=percent,
            metavar="PERCENT",
            help=f"with --autoscale: {unit.upper()} utilisation of each instance, all {parts} added up",
        )
    command.add_argument(
        "--startup-timeout",
        type=number("startup timeout", 60, 3600),
        metavar="S",
        help="seconds until /ping says 200",
    )
    command.add_argument("--tags", type=pair, nargs="+", action="extend", default=[], metavar="K=V")


def updating(command: argparse.ArgumentParser) -> None:
    """How an endpoint that is there changes."""
    command.add_argument(
        "--rollback", action="store_true", help="serve again what was served before the last update"
    )
    steps = command.add_mutually_exclusive_group()
    steps.add_argument(
        "--canary", type=number("canary", 1, 50), metavar="PERCENT", help="move so much first, then all"
    )
    steps.add_argument(
        "--linear", type=number("linear", 10, 50), metavar="PERCENT", help="move so much each time"
    )
    command.add_argument(
        "--bake",
        type=number("bake", 0, 3600),
        default=300,
        metavar="S",
        help="seconds between two moves (300)",
    )
    command.add_argument(
        "--alarm",
        action="append",
        default=[],
        metavar="NAME|errors|latency:MS",
        help="an alarm that undoes the update; errors and latency:MS are made",
    )


def looking(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the endpoint's name")
    account(command)


def logging(command: argparse.ArgumentParser) -> None:
    looking(command)
    command.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    command.add_argument(
        "-n",
        "--lines",
        type=number("lines", 1, 10_000),
        default=100,
        metavar="N",
        help="the last N lines (100)",
    )


def deleting(command: argparse.ArgumentParser) -> None:
    looking(command)
    command.add_argument("--yes", action="store_true", help="do not ask")


def listing(command: argparse.ArgumentParser) -> None:
    command.add_argument("--region", metavar="R", help="only this Region's")
    command.add_argument("--version", default="24.09", metavar="YY.MM", help="Triton's release (24.09)")
    command.add_argument("--cpu", action="store_true", help="the image without GPU libraries")


def account(command: argparse.ArgumentParser) -> None:
    command.add_argument("--region", metavar="R", help="default: AWS_REGION, or the profile's")
    command.add_argument("--profile", metavar="P", help="of your AWS configuration")


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def bucket(text: str) -> str:
    if not re.fullmatch(r"s3://[a-z0-9.-]{3,63}(/.*)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not s3://BUCKET/PREFIX")
    return text


def percent(text: str) -> float:
    """Above 100 where an instance has several cores or GPUs."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 100 * MAX_CORES:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage, such as 70; for 4 cores together 280")
    return value


def limits(text: str) -> tuple[int, int]:
    least, most = _two(text, "MIN:MAX")
    if most < max(1, least):
        raise argparse.ArgumentTypeError(f"{text!r}: MAX is at least 1, and not below MIN")
    return least, most


def serverless(text: str) -> tuple[int, int]:
    memory, concurrency = _two(text, "MEMORY:CONCURRENCY")
    if memory not in MEMORY or not 1 <= concurrency <= 200:
        raise argparse.ArgumentTypeError(f"{text!r}: MEMORY is one of {MEMORY}, CONCURRENCY 1 to 200")
    return memory, concurrency


def _two(text: str, form: str) -> tuple[int, int]:
    if not (found := re.fullmatch(r"(\d+):(\d+)", text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
    return int(found[1]), int(found[2])


def number(name: str, least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{name} is a number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def repository(text: str | None) -> Path | None:
    """The folder that ``--model-data`` names; None where it is on S3, or in the image."""
    return None if not text or text.startswith("s3://") else Path(text)


def check_data(given: argparse.Namespace) -> None:
    """:class:`StartError` where there is no image, or no place for the archives of a multi-model endpoint."""
    if not given.image:
        raise StartError("--image is needed; --model-data too, unless the image has the models inside.")
    if given.mme and not given.model_data:
        raise StartError(
            "--mme wants --model-data: the prefix on S3 below which the archives lie, or a folder."
        )


def deploy(given: argparse.Namespace) -> int:
    """Make or update a SageMaker endpoint, and compare its answers with the golden ones."""
    from sm.tools.deploy import deploy_commands as command

    return command.deploy(given)


def status(given: argparse.Namespace) -> int:
    """What a SageMaker endpoint is, serves and does."""
    from sm.tools.deploy import deploy_commands as command

    return command.show_status(given)


def logs(given: argparse.Namespace) -> int:
    """What the containers of a SageMaker endpoint say."""
    from sm.tools.deploy import deploy_commands as command

    return command.show_logs(given)


def delete(given: argparse.Namespace) -> int:
    """Remove a SageMaker endpoint and all that was made for it."""
    from sm.tools.deploy import deploy_commands as command

    return command.delete(given)


def images(given: argparse.Namespace) -> int:
    """AWS's prebuilt Triton images, by Region."""
    from sm.tools.deploy import deploy_commands as command

    return command.show_images(given)


COMMANDS = {"deploy": deploy, "status": status, "logs": logs, "delete": delete, "images": images}
#: What each takes.
TAKEN = {"deploy": deploying, "status": looking, "logs": logging, "delete": deleting, "images": listing}
