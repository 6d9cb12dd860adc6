"""``sm template`` and ``sm iam``: documents on standard output, nothing is made."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from sm.errors import StartError
from sm.tools.deploy import aws, resource_names, scaling, triton_images
from sm.tools.deploy import deploy_arguments as deploying
from sm.tools.deploy.account import Account
from sm.tools.deploy.deployment_plan import Plan, Serverless
from sm.tools.deploy.resources import Resources
from sm.tools.deploy.upload import FOLDER
from sm.tools.progress import Progress
from sm.tools.templates import cloudformation, deployer_policy, gateway_policy, kserve, policies, terraform
from sm.tools.templates.places import Image, Objects
from sm.tools.templates.policies import Needs
from sm.tools.templates.stack import Stack

WRITERS = {
    "cloudformation": cloudformation.template,
    "terraform": terraform.template,
    "kserve": kserve.template,
}
#: Any account: a role's policy reaches no further than its own, unless the other one allows it.
ANY = "*"


def template(given: argparse.Namespace) -> int:
    """Print the deployment in the chosen form."""
    resource_names.check(given.name)
    show(WRITERS[given.format](stack(given)))
    return 0


def iam(given: argparse.Namespace) -> int:
    """Print the policies."""
    show(of_gateway(given) if given.gateway else of_endpoint(given))
    return 0


def show(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


def stack(given: argparse.Namespace) -> Stack:
    deploying.check_data(given)
    data = given.model_data or ""
    data = data.rstrip("/") + "/" if given.mme else data
    archives = archives_in(data, given.mme)
    plan = Plan(
        name=given.name,
        image=given.image,
        data=data,
        role=given.role or "",
        mme=given.mme,
        env=dict(given.env),
        tags=dict(given.tags),
        instance_type=given.instance_type,
        count=given.count,
        serverless=Serverless(*given.serverless) if given.serverless else None,
        output=given.output,
        startup_timeout=given.startup_timeout,
    )
    autoscaling = scaling.read(given, has_default=given.format == "kserve")
    if given.role or given.format == "kserve":
        return Stack(plan, {}, autoscaling)
    needs = Needs(given.name, Image.read(given.image), archives, ANY, given.output)
    return Stack(plan, policies.execution(needs), autoscaling)


def archives_in(data: str, many: bool) -> Objects | None:
    """The archive, or all below the prefix; None where the image has the models."""
    if not data:
        return None
    return Objects.below(data) if many else Objects.read(data)


def of_endpoint(given: argparse.Namespace) -> dict[str, Any]:
    """The role's policy and trust, the policy of who deploys, and that of a repository elsewhere."""
    resource_names.check(given.name)
    found, role = wanted(given) if given.image else there(given)
    documents = {
        "role": {
            "arn": role,
            "trust": policies.trust("sagemaker.amazonaws.com"),
            "policy": policies.execution(found),
        },
        "deployer": deployer_policy.policy(found, role),
    }
    # Everybody may pull AWS's own image.
    if found.image.account != found.account and found.image.repository != triton_images.REPOSITORY:
        documents["repository"] = policies.repository(found)
    return documents


def wanted(given: argparse.Namespace) -> tuple[Needs, str]:
    """By the options, with a role to be made. A folder's archives go where deploying puts them."""
    deploying.check_data(given)
    image = Image.read(given.image)
    account = given.account or image.account
    if deploying.repository(given.model_data):
        bucket = given.bucket or f"sagemaker-{image.region}-{account}"
        archives: Objects | None = Objects.below(f"s3://{bucket}/{FOLDER}/{given.name}/")
    else:
        archives = archives_in(given.model_data or "", given.mme)
    found = Needs(given.name, image, archives, account, given.output)
    return found, given.role or f"arn:{image.partition}:iam::{account}:role/{given.name}-execution"


def there(given: argparse.Namespace) -> tuple[Needs, str]:
    """By the endpoint as it is, with its role."""
    if given.model_data:
        raise StartError("--model-data goes with --image; without both, the endpoint is looked at.")
    session = aws.session(given.region, given.profile)
    things = Resources(Account(session, Progress(sys.stderr), Progress(sys.stdout)), given.name)
    endpoint = things.existing()
    configuration = things.configuration(endpoint["EndpointConfigName"]) or {}
    if (model := things.serving()) is None:
        raise StartError(
            f"the endpoint {given.name} has no model: give --image, and --model-data if it has any."
        )
    container = model["PrimaryContainer"]
    output = configuration.get("AsyncInferenceConfig", {}).get("OutputConfig", {}).get("S3OutputPath")
    image, account = Image.read(container["Image"]), endpoint["EndpointArn"].split(":")[4]
    archives = archives_in(container.get("ModelDataUrl", ""), container.get("Mode") == "MultiModel")
    found = Needs(given.name, image, archives, account, output)
    return found, str(model["ExecutionRoleArn"])


def of_gateway(given: argparse.Namespace) -> dict[str, Any]:
    if not given.bucket:
        raise StartError("--gateway wants --bucket BUCKET: of its inputs, results and models.")
    inputs = [prefix for prefix in given.inputs.split(",") if prefix]
    return gateway_policy.policies(
        given.name, given.bucket, inputs, given.results, given.models, given.triton_port
    )
