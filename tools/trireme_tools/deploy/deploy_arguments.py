"""Arguments of ``sm deploy``, ``status``, ``logs``, ``delete``, ``images``. Importing it loads no boto3."""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path

from sm.errors import CommandError
from trireme_tools.arguments import matching, number, whole_number
from trireme_tools.deploy import api_fields, project_file
from trireme_tools.deploy.alarms import BoxAlarms

#: The cores of SageMaker's largest instance.
MAX_CORES = 192
#: Megabytes of a serverless endpoint that SageMaker offers.
MEMORY_SIZES_MB = tuple(range(1024, 6145, 1024))
INSTANCE_TYPE = "ml.g5.xlarge"
#: The API's fields of what a copy needs, by the options.
COMPUTE = {
    "cpus": "NumberOfCpuCoresRequired",
    "memory": "MinMemoryRequiredInMb",
    "gpus": "NumberOfAcceleratorDevicesRequired",
}
s3_url = matching(r"s3://[a-z0-9.-]{3,63}(/.*)?", "s3://BUCKET/PREFIX")
percent = number(100 * MAX_CORES, "a percentage, such as 70; for 4 cores together 280")


def add_deploy_arguments(command: argparse.ArgumentParser) -> None:
    add_name_argument(command)
    add_project_arguments(command)
    add_shadow_arguments(command)
    add_update_arguments(command)
    add_component_arguments(command)
    command.add_argument("--dry-run", action="store_true", help="print the AWS calls, make none")
    command.add_argument(
        "--save",
        action="store_true",
        help=f"write NAME and the options that describe it to {project_file.FILE}",
    )
    project_file.add_defaults(command, project_options())


def add_name_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "name", metavar="NAME", nargs="?", help=f"the endpoint's name (that in {project_file.FILE})"
    )


def add_project_arguments(command: argparse.ArgumentParser) -> None:
    """Add what ``trireme.toml`` may have."""
    add_description_arguments(command)
    command.add_argument("--bucket", help="the bucket for a folder's files (sagemaker-REGION-ACCOUNT)")
    command.add_argument(
        "--archive", action="store_true", help="pack a folder as one archive instead of sending its files"
    )
    add_account_arguments(command)


@cache
def project_options() -> argparse.ArgumentParser:
    """Return a parser of what ``trireme.toml`` may have."""
    command = argparse.ArgumentParser(add_help=False)
    add_project_arguments(command)
    return command


def add_description_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that describe the deployment; ``sm template`` has the same."""
    command.add_argument("--image", metavar="URI", help="the image's URI in this Region's ECR")
    command.add_argument(
        "--model-data",
        metavar="s3://…|DIR",
        help="a model repository; on S3 an archive, or a prefix that ends in a slash; none if the image has "
        "models",
    )
    command.add_argument("--instance-type", default=INSTANCE_TYPE, metavar="TYPE")
    command.add_argument(
        "--ami",
        metavar="NAME",
        help="the host's InferenceAmiVersion, which has the GPU's driver (the newest that boto3 knows); "
        "none for SageMaker's own choice",
    )
    command.add_argument(
        "--count", type=whole_number("count", 1, 10_000), default=1, metavar="N", help="number of instances"
    )
    command.add_argument(
        "--role", metavar="ARN", help="SageMaker's role (the endpoint's current one, or one named trireme)"
    )
    command.add_argument(
        "--env",
        type=key_value,
        action="append",
        default=[],
        metavar="K=V",
        help="an environment variable of the box",
    )
    command.add_argument("--mme", action="store_true", help="a multi-model endpoint: one archive per model")
    kind = command.add_mutually_exclusive_group()
    add_async_argument(kind)
    add_notify_argument(command)
    kind.add_argument(
        "--serverless",
        type=serverless,
        metavar="MEMORY:CONCURRENCY",
        help="a serverless endpoint: its memory in MB and its concurrent requests",
    )
    command.add_argument(
        "--alarms",
        type=alarm_limits,
        nargs="?",
        const=BoxAlarms(),
        metavar="PERCENT:MS",
        help="two CloudWatch alarms on the box's own metrics: errors over PERCENT of the requests, and a p99 "
        "over MS milliseconds (1:1000)",
    )
    command.add_argument("--autoscale", type=limits, metavar="MIN:MAX", help="number of instances")
    command.add_argument(
        "--target-invocations",
        type=float,
        metavar="N",
        help="with --autoscale: requests per minute and instance (with --async: waiting requests)",
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
        type=whole_number("startup timeout", 60, 3600),
        metavar="S",
        help="seconds until /ping must answer 200",
    )
    command.add_argument("--tags", type=key_value, nargs="+", action="extend", default=[], metavar="K=V")
    api_fields.add_arguments(command)


def add_async_argument(command: argparse._ActionsContainer) -> None:
    command.add_argument(
        "--async",
        dest="output",
        type=s3_url,
        metavar="s3://…",
        help="an asynchronous endpoint; the S3 prefix of the answers",
    )


def add_notify_argument(command: argparse._ActionsContainer) -> None:
    command.add_argument(
        "--notify",
        type=matching(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[\w-]+(\.fifo)?", "an SNS topic's ARN"),
        metavar="ARN",
        help="with --async: an SNS topic that is told of each answer and failure",
    )


def add_shadow_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that describe a shadow variant; ``sm template`` has the same."""
    command.add_argument(
        "--shadow",
        metavar="URI|s3://…|DIR",
        help="an image or an archive that gets a copy of the requests, and whose answers are thrown away",
    )
    command.add_argument(
        "--percent",
        type=whole_number("percent", 1, 100),
        default=10,
        metavar="N",
        help="with --shadow: the share of the requests that it gets (10)",
    )


def add_update_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments for updates."""
    ending = command.add_mutually_exclusive_group()
    ending.add_argument("--promote-shadow", action="store_true", help="serve what the shadow runs")
    ending.add_argument("--remove-shadow", action="store_true", help="remove the shadow")
    command.add_argument(
        "--rollback", action="store_true", help="roll back to the version before the last update"
    )
    steps = command.add_mutually_exclusive_group()
    for name, least, when in (("canary", 1, "first, then all"), ("linear", 10, "in each step")):
        steps.add_argument(
            f"--{name}",
            type=whole_number(name, least, 50),
            metavar="PERCENT",
            help=f"move this share of the traffic {when}",
        )
    command.add_argument(
        "--bake",
        type=whole_number("bake", 0, 3600),
        default=300,
        metavar="S",
        help="seconds between two steps (300)",
    )
    command.add_argument(
        "--alarm",
        action="append",
        default=[],
        metavar="NAME|errors|latency:MS",
        help="an alarm that rolls the update back; errors and latency:MS are created for you",
    )


def add_component_arguments(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("an inference component")
    group.add_argument(
        "--component", action="store_true", help="NAME is a component, on an endpoint for several"
    )
    group.add_argument(
        "--endpoint", metavar="NAME", help="an existing endpoint for it (else NAME, made if missing)"
    )
    group.add_argument(
        "--copies",
        type=whole_number("copies", 0, 10_000),
        metavar="N",
        help="its copies: 1 at first; 0 ends all",
    )
    group.add_argument("--cpus", type=number(192, "a number of cores"), metavar="N", help="cores of a copy")
    group.add_argument(
        "--memory", type=whole_number("memory", 128, 10**7), metavar="MB", help="least memory of a copy"
    )
    group.add_argument("--gpus", type=whole_number("gpus", 1, 16), metavar="N", help="GPUs of a copy")


def check_component(options: argparse.Namespace) -> None:
    """Raise :class:`CommandError` for options that do not go together."""
    own = [f"--{name}" for name in ("endpoint", "copies", *COMPUTE) if getattr(options, name) is not None]
    if not options.component:
        if own:
            raise CommandError(f"{own[0]} needs --component.")
        return
    others = ("mme", "output", "serverless", "shadow", "rollback", "canary", "linear", "alarms", "save")
    if wrong := [name for name in others if getattr(options, name)]:
        raise CommandError(f"--component cannot be combined with --{wrong[0].replace('output', 'async')}.")
    if options.memory is None:
        raise CommandError("--component needs --memory MB, the least that SageMaker reserves for a copy.")


def add_status_arguments(command: argparse.ArgumentParser) -> None:
    add_name_argument(command)
    add_account_arguments(command)


def add_delete_arguments(command: argparse.ArgumentParser) -> None:
    add_status_arguments(command)
    command.add_argument(
        "--build",
        action="store_true",
        help="delete instead what './build_and_push.sh --codebuild' has made: the project, its role and what "
        "was sent. NAME is the image's repository (trireme)",
    )
    command.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def add_images_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--region", metavar="R", help="only images of this Region")
    command.add_argument("--version", default="24.09", metavar="YY.MM", help="Triton's release (24.09)")
    command.add_argument("--cpu", action="store_true", help="the image without GPU libraries")


def add_account_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--region", metavar="R", help="default: AWS_REGION, or the profile's")
    command.add_argument("--profile", metavar="P", help="the profile of your AWS configuration")


def alarm_limits(text: str) -> BoxAlarms:
    """Parse ``PERCENT:MS``."""
    rate, colon, latency = text.partition(":")
    try:
        limits = BoxAlarms(float(rate), float(latency))
    except ValueError:
        limits = BoxAlarms(0.0, 0.0)
    if not colon or not 0 < limits.error_percent <= 100 or not 0 < limits.p99_ms < 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} is not PERCENT:MS, such as 1:1000")
    return limits


def key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def limits(text: str) -> tuple[int, int]:
    least, most = _two_numbers(text, "MIN:MAX")
    if most < max(1, least):
        raise argparse.ArgumentTypeError(f"{text!r}: MAX is at least 1, and not below MIN")
    return least, most


def serverless(text: str) -> tuple[int, int]:
    memory, concurrency = _two_numbers(text, "MEMORY:CONCURRENCY")
    if memory not in MEMORY_SIZES_MB or not 1 <= concurrency <= 200:
        raise argparse.ArgumentTypeError(
            f"{text!r}: MEMORY is one of {MEMORY_SIZES_MB}, CONCURRENCY 1 to 200"
        )
    return memory, concurrency


def _two_numbers(text: str, form: str) -> tuple[int, int]:
    if not (match := re.fullmatch(r"(\d+):(\d+)", text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not {form}")
    return int(match[1]), int(match[2])


def local_repository(text: str | None) -> Path | None:
    """Return the folder that ``--model-data`` names; None if the data is on S3, or in the image."""
    return None if not text or text.startswith("s3://") else Path(text)


def check_data(options: argparse.Namespace) -> None:
    """Raise :class:`CommandError` if there is no image, or the models cannot be used in this way."""
    if not options.image:
        raise CommandError("--image is needed; --model-data too, unless the image has the models inside.")
    if options.mme and not options.model_data:
        raise CommandError(
            "--mme needs --model-data: the prefix on S3 below which the archives lie, or a folder."
        )


def check_kind(options: argparse.Namespace) -> None:
    """Raise :class:`CommandError` for options that this kind of endpoint does not have."""
    if options.serverless and options.output:  # argparse refuses it, unless one is trireme.toml's
        raise CommandError("--serverless cannot be combined with --async.")
    if options.serverless and options.startup_timeout:
        raise CommandError("--serverless cannot be combined with --startup-timeout.")
    if options.notify and not options.output:
        raise CommandError("--notify needs --async: only an asynchronous endpoint tells a topic.")
