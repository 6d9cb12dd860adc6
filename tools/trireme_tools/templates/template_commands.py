"""``sm template`` and ``sm iam``: print documents; nothing is created."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from sm.errors import CommandError
from trireme_tools import aws
from trireme_tools.arguments import matching, whole_number
from trireme_tools.deploy import autoscaling, deploy_arguments, gpu_hosts, images, model_data, resources
from trireme_tools.deploy.deployment_plan import DeploymentPlan, Shadow
from trireme_tools.deploy.images import Image
from trireme_tools.deploy.model_data import ModelData
from trireme_tools.progress import Progress
from trireme_tools.templates import cloudformation, kubernetes, policies, terraform
from trireme_tools.templates.policies import EndpointNeeds, S3Objects
from trireme_tools.templates.stack import Stack

quantity = matching(r"(?=.*[1-9])[0-9]+(\.[0-9]+)?(m|[kMGT]i?)?", "a quantity such as 2, 500m or 8Gi")
FORMATS = ("cloudformation", "terraform", "kubernetes", "helm", "kserve")


def add_template_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the endpoint's name")
    command.add_argument("--format", choices=FORMATS, default="cloudformation")
    command.add_argument(
        "--target-in-flight",
        type=whole_number("target in flight", 1, 10_000),
        metavar="N",
        help="on Kubernetes with --autoscale: invocations in flight in each pod (8)",
    )
    command.add_argument(
        "--service-monitor",
        action="store_true",
        help="on Kubernetes: a ServiceMonitor, for a cluster with Prometheus' operator",
    )
    command.add_argument(
        "--cpu", type=quantity, metavar="N", help="on Kubernetes: a pod's processors (2, 500m)"
    )
    command.add_argument(
        "--memory", type=quantity, metavar="SIZE", help="on Kubernetes: a pod's memory (8Gi)"
    )
    command.add_argument(
        "--gpus",
        type=whole_number("gpus", 0, 16),
        metavar="N",
        help="on Kubernetes: a pod's GPUs (those of --instance-type; without it none)",
    )
    command.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="on Kubernetes, instead of --cpu and --memory: the model repository that a pod will serve",
    )
    command.add_argument(
        "--sticky-sessions",
        action="store_true",
        help="on Kubernetes: one caller's requests reach one pod, so its sessions are found",
    )
    command.add_argument(
        "--cache",
        default="",
        metavar="pvc://CLAIM",
        help="on Kubernetes: a volume that keeps what the pods fetch",
    )
    command.add_argument("--out", type=Path, metavar="FOLDER", help="the folder of a Helm chart")
    deploy_arguments.add_description_arguments(command)
    deploy_arguments.add_shadow_arguments(command)
    # A pod asks for a GPU only if an option says so.
    command.set_defaults(instance_type=None)


def add_iam_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "name",
        metavar="NAME",
        help="the endpoint's name; with --gateway, the gateway's; with --build, the image's repository",
    )
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
    deploy_arguments.add_async_argument(command)
    deploy_arguments.add_notify_argument(command)
    command.add_argument(
        "--account",
        metavar="ID",
        help="the endpoint's account if the image is in another one (the image's account)",
    )
    command.add_argument("--role", metavar="ARN", help="the endpoint's role (NAME-execution)")
    command.add_argument(
        "--build",
        action="store_true",
        help="print the policies of a build in the account ('./build_and_push.sh --codebuild')",
    )
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


WRITERS = {
    "cloudformation": cloudformation.template,
    "terraform": terraform.template,
}
#: Forms that consist of several documents.
KUBERNETES_WRITERS = {"kubernetes": kubernetes.template, "kserve": kubernetes.kserve}
CLUSTER_FORMATS = (*KUBERNETES_WRITERS, "helm")
#: Any account: a role's policy reaches other accounts only if they allow it.
ANY = "*"


def template(options: argparse.Namespace) -> int:
    """Print the deployment in the chosen form."""
    resources.check(options.name)
    stack = read_stack(options)
    if (options.format == "helm") != bool(options.out):
        raise CommandError("--format helm and --out FOLDER need each other: a chart is a folder of files.")
    if options.format == "helm":
        kubernetes.write_chart(stack, options.out)
        sys.stderr.write(kubernetes.comment(stack))
    elif write := KUBERNETES_WRITERS.get(options.format):
        documents = write(stack)
        sys.stdout.write(kubernetes.comment(stack))
        sys.stdout.write(kubernetes.to_yaml(documents, explicit_start=True))
    else:
        show(WRITERS[options.format](stack))
    return 0


def iam(options: argparse.Namespace) -> int:
    """Print the policies."""
    if options.build:
        show(build_documents(options))
    else:
        show(gateway_documents(options) if options.gateway else endpoint_documents(options))
    return 0


def build_documents(options: argparse.Namespace) -> dict[str, Any]:
    """Return the policies of CodeBuild's role and of who starts builds, for any Region and account if none
    is given.
    """
    from trireme_tools.codebuild.project import Names  # it needs boto3, which templates do not

    region, account = options.region or ANY, options.account or ANY
    bucket = options.bucket or f"sagemaker-{region}-{account}"
    names = Names(options.name, account, [region], bucket)
    role = {"name": names.role, "trust": names.document("trust"), "policy": names.document("role")}
    return {"role": role, "builder": names.document("builder")}


def show(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


def read_stack(options: argparse.Namespace) -> Stack:
    deploy_arguments.check_data(options)
    deploy_arguments.check_kind(options)
    data = options.model_data or ""
    data = data.rstrip("/") + "/" if options.mme else data
    on_cluster = options.format in CLUSTER_FORMATS
    if options.instance_type is None:
        options.instance_type = "" if on_cluster else deploy_arguments.INSTANCE_TYPE
    plan = DeploymentPlan.of(options, ModelData(data), options.role or "")
    if plan.fields and on_cluster:
        raise CommandError("--set and --extra are fields of SageMaker's API: take a format of SageMaker.")
    if options.shadow:
        plan = replace(plan, shadow=read_shadow(options, on_cluster))
    if not on_cluster:
        archives = archives_in(data, options.mme)
        plan.check({}, scaled=bool(options.autoscale), served=None)
    limits = autoscaling.read(options, has_default=on_cluster)
    if options.target_in_flight and not (on_cluster and options.autoscale):
        raise CommandError("--target-in-flight needs --autoscale MIN:MAX and --format kubernetes or helm.")
    if options.service_monitor and options.format not in ("kubernetes", "helm"):
        raise CommandError("--service-monitor needs --format kubernetes or helm.")
    names = ("cpu", "memory", "gpus", "models", "cache")
    sized = {name: getattr(options, name) for name in names}
    if (options.sticky_sessions or any(sized.values())) and not on_cluster:
        raise CommandError(
            "--cpu, --memory, --gpus, --models, --cache and --sticky-sessions need a format of Kubernetes."
        )
    if options.sticky_sessions and options.format == "kserve":
        raise CommandError(
            "--sticky-sessions needs --format kubernetes or helm: KServe makes the Service itself."
        )
    if not (on_cluster or plan.serverless):
        for uri in (plan.image, plan.shadow.image if plan.shadow else ""):
            gpu_hosts.check(uri, plan.instance_type, plan.ami)
    if on_cluster:
        more = options.target_in_flight, options.service_monitor
        return Stack(plan, {}, limits, *more, **sized, sticky_sessions=options.sticky_sessions)
    if options.role:
        return Stack(plan, {}, limits)
    needs = EndpointNeeds(
        options.name, Image.read(options.image), archives, ANY, options.output, options.notify or ""
    )
    policy = needs.policy("execution")
    if plan.shadow:
        image = Image.read(plan.shadow.image or options.image)
        shadow = replace(needs, image=image, data=archives_in(plan.shadow.data or data, many=False))
        policy = policies.merge(policy, shadow.policy("execution"), "Shadow")
    return Stack(plan, policy, limits)


def read_shadow(options: argparse.Namespace, on_cluster: bool) -> Shadow:
    if on_cluster or options.mme:
        raise CommandError("--shadow needs one of SageMaker's formats, and cannot be combined with --mme.")
    kind = "data" if options.shadow.startswith("s3://") else "image"
    return Shadow(**{kind: options.shadow}, percent=options.percent)


def archives_in(data: str, many: bool) -> S3Objects | None:
    """Return the archive, or everything below the prefix; None if the image contains the models."""
    if not data:
        return None
    return S3Objects.below(data) if many or data.endswith("/") else S3Objects.read(data)


def endpoint_documents(options: argparse.Namespace) -> dict[str, Any]:
    """Return the role's policy and trust, the deployer's policy, and the policy of an image repository in
    another account.
    """
    resources.check(options.name)
    needs, role = needs_of_options(options) if options.image else needs_of_endpoint(options)
    documents = {
        "role": {
            "arn": role,
            "trust": policies.trust_policy("sagemaker.amazonaws.com"),
            "policy": needs.policy("execution"),
        },
        "deployer": needs.policy("deployer", role),
    }
    # Everyone may pull AWS's own image.
    if needs.image.account != needs.account and needs.image.repository != images.REPOSITORY:
        documents["repository"] = needs.policy("repository")
    return documents


def needs_of_options(options: argparse.Namespace) -> tuple[EndpointNeeds, str]:
    """Return the needs that the options describe, and the role's ARN.

    A folder's archives are expected where ``sm deploy`` puts them.
    """
    deploy_arguments.check_data(options)
    image = Image.read(options.image)
    account = options.account or image.account
    if deploy_arguments.local_repository(options.model_data):
        bucket = options.bucket or f"sagemaker-{image.region}-{account}"
        archives: S3Objects | None = S3Objects.below(f"s3://{bucket}/{resources.KEY_PREFIX}/{options.name}/")
    else:
        archives = archives_in(options.model_data or "", options.mme)
    needs = EndpointNeeds(options.name, image, archives, account, options.output, options.notify or "")
    return needs, options.role or f"arn:{image.partition}:iam::{account}:role/{options.name}-execution"


def needs_of_endpoint(options: argparse.Namespace) -> tuple[EndpointNeeds, str]:
    """Return the needs of an existing endpoint, and its role's ARN."""
    if options.model_data:
        raise CommandError("--model-data needs --image: give both, or neither to read the existing endpoint.")
    from trireme_tools.deploy.account import Account
    from trireme_tools.deploy.resources import Resources

    session = aws.session(options.region, options.profile)
    resources = Resources(Account(session, Progress(sys.stderr), Progress(sys.stdout)), options.name)
    endpoint = resources.existing()
    configuration = resources.configuration(endpoint["EndpointConfigName"]) or {}
    if (model := resources.serving()) is None:
        raise CommandError(
            f"the endpoint {options.name} has no model: give --image, and --model-data if it has any."
        )
    container = model["PrimaryContainer"]
    output = configuration.get("AsyncInferenceConfig", {}).get("OutputConfig", {})
    topic = output.get("NotificationConfig", {}).get("SuccessTopic", "")
    image, account = Image.read(container["Image"]), endpoint["EndpointArn"].split(":")[4]
    archives = archives_in(model_data.url_of(container), container.get("Mode") == "MultiModel")
    needs = EndpointNeeds(options.name, image, archives, account, output.get("S3OutputPath"), topic)
    return needs, str(model["ExecutionRoleArn"])


def gateway_documents(options: argparse.Namespace) -> dict[str, Any]:
    if not options.bucket:
        raise CommandError("--gateway needs --bucket BUCKET, the bucket of its inputs, results and models.")
    inputs = [prefix for prefix in options.inputs.split(",") if prefix]
    return policies.gateway(
        options.name, options.bucket, inputs, options.results, options.models, options.triton_port
    )
