"""Arguments of ``sm template`` and ``sm iam``."""

from __future__ import annotations

import argparse
from pathlib import Path

from trireme_tools.deploy import deploy_arguments

FORMATS = ("cloudformation", "terraform", "kubernetes", "helm", "kserve")


def add_template_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the endpoint's name")
    command.add_argument("--format", choices=FORMATS, default="cloudformation")
    command.add_argument(
        "--target-in-flight",
        type=deploy_arguments.whole_number("target in flight", 1, 10_000),
        metavar="N",
        help="on Kubernetes with --autoscale: invocations in flight in each pod (8)",
    )
    command.add_argument(
        "--service-monitor",
        action="store_true",
        help="on Kubernetes: a ServiceMonitor, for a cluster with Prometheus' operator",
    )
    command.add_argument("--out", type=Path, metavar="FOLDER", help="the folder of a Helm chart")
    deploy_arguments.add_description_arguments(command)
    deploy_arguments.add_shadow_arguments(command)


def add_iam_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the endpoint's name; with --gateway, the gateway's")
    command.add_argument(
        "--image", metavar="URI", help="the image (default: the image of the existing endpoint)"
    )
    command.add_argument(
        "--model-data", metavar="s3://…|DIR", help="the archive, with --mme the prefix, or a model repository"
    )
    command.add_argument(
        "--bucket",
        help="the bucket for a folder's archive (sagemaker-REGION-ACCOUNT), or the gateway's bucket",
    )
    command.add_argument("--mme", action="store_true", help="a multi-model endpoint")
    command.add_argument(
        "--async",
        dest="output",
        type=deploy_arguments.s3_url,
        metavar="s3://…",
        help="an asynchronous endpoint; the S3 prefix of the answers",
    )
    command.add_argument(
        "--account",
        metavar="ID",
        help="the endpoint's account if the image is in another one (the image's account)",
    )
    command.add_argument("--role", metavar="ARN", help="the endpoint's role (NAME-execution)")
    gateway = command.add_argument_group("the gateway")
    gateway.add_argument("--gateway", action="store_true", help="print the policy of the gateway's function")
    gateway.add_argument(
        "--inputs", default="images/", metavar="PREFIX,…", help="prefixes of the inputs (images/)"
    )
    gateway.add_argument(
        "--results", default="results/", metavar="PREFIX", help="prefix of the results (results/)"
    )
    gateway.add_argument(
        "--models", default="models/", metavar="PREFIX", help="prefix of the models (models/)"
    )
    gateway.add_argument(
        "--triton-port", type=int, default=8001, metavar="PORT", help="Triton's gRPC port (8001)"
    )
    deploy_arguments.add_account_arguments(command)
