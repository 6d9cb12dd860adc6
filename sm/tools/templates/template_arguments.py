"""What ``sm template`` and ``sm iam`` take."""

from __future__ import annotations

import argparse

from sm.tools.deploy import deploy_arguments as deploying

FORMATS = ("cloudformation", "terraform", "kserve")


def template(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the endpoint's name")
    command.add_argument("--format", choices=FORMATS, default="cloudformation")
    deploying.describing(command)


def iam(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the endpoint's name, or with --gateway the gateway's")
    command.add_argument("--image", metavar="URI", help="the image (that of the endpoint, which is there)")
    command.add_argument(
        "--model-data", metavar="s3://…|DIR", help="the archive, with --mme the prefix, or a model repository"
    )
    command.add_argument(
        "--bucket", help="where a folder's archive goes (sagemaker-REGION-ACCOUNT); the gateway's bucket"
    )
    command.add_argument("--mme", action="store_true", help="a multi-model endpoint")
    command.add_argument(
        "--async",
        dest="output",
        type=deploying.bucket,
        metavar="s3://…",
        help="asynchronous; answers go there",
    )
    command.add_argument(
        "--account", metavar="ID", help="the endpoint's account, where the image is in another (the image's)"
    )
    command.add_argument("--role", metavar="ARN", help="the endpoint's role (NAME-execution)")
    gateway = command.add_argument_group("the gateway")
    gateway.add_argument("--gateway", action="store_true", help="the policy of the gateway's function")
    gateway.add_argument("--inputs", default="images/", metavar="PREFIX,…", help="(images/)")
    gateway.add_argument("--results", default="results/", metavar="PREFIX", help="(results/)")
    gateway.add_argument("--models", default="models/", metavar="PREFIX", help="(models/)")
    gateway.add_argument("--triton-port", type=int, default=8001, metavar="PORT", help="Triton's gRPC (8001)")
    deploying.account(command)
