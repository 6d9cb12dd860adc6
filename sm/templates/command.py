"""``sm template`` and ``sm iam``: documents on standard output, nothing is made."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from sm.build.progress import Progress
from sm.deploy import aws, images, names
from sm.deploy.account import Account
from sm.deploy.autoscaling import Scaling
from sm.deploy.belongings import Belongings
from sm.deploy.plan import Plan, Serverless
from sm.errors import StartError
from sm.templates import cloudformation, gateway, kserve, policies, terraform
from sm.templates.places import Image, Objects
from sm.templates.policies import Needs
from sm.templates.stack import Stack

WRITERS = {
    "cloudformation": cloudformation.template,
    "terraform": terraform.template,
    "kserve": kserve.template,
}
#: Any account: a role's policy reaches no further than its own, unless the other one allows it.
ANY = "*"


def template(given: argparse.Namespace) -> int:
    """Print the deployment in the chosen form."""
    names.check(given.name)
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
    if not (given.image and given.model_data):
        raise StartError("--image and --model-data are both needed.")
    data = given.model_data.rstrip("/") + "/" if given.mme else given.model_data
    Objects.read(data)
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
    if given.role or given.format == "kserve":
        return Stack(plan, {}, scaling(given))
    needs = Needs(given.name, Image.read(given.image), data, ANY, given.mme, given.output)
    return Stack(plan, policies.execution(needs), scaling(given))


def scaling(given: argparse.Namespace) -> Scaling | None:
    if not given.autoscale:
        return None
    least, most = given.autoscale
    if given.serverless:
        raise StartError("--serverless goes without --autoscale: it has no instances.")
    if least == 0 and not given.output:
        raise StartError("--autoscale 0:MAX goes with --async only: else nobody could answer.")
    if given.format == "kserve":
        # Kubernetes looks at the CPU, not at requests.
        return Scaling(least, most, 0.0)
    if given.target_invocations is None:
        raise StartError("--autoscale wants --target-invocations N, the requests a minute for each instance.")
    return Scaling(least, most, given.target_invocations)


def of_endpoint(given: argparse.Namespace) -> dict[str, Any]:
    """The role's policy and trust, the policy of who deploys, and that of a repository elsewhere."""
    names.check(given.name)
    found, role = wanted(given) if given.image and given.model_data else there(given)
    documents = {
        "role": {
            "arn": role,
            "trust": policies.trust("sagemaker.amazonaws.com"),
            "policy": policies.execution(found),
        },
        "deployer": policies.deployer(found, role),
    }
    # Everybody may pull AWS's own image.
    if found.image.account != found.account and found.image.repository != images.REPOSITORY:
        documents["repository"] = policies.repository(found)
    return documents


def wanted(given: argparse.Namespace) -> tuple[Needs, str]:
    """By the options, with a role that is still to be made."""
    image = Image.read(given.image)
    account = given.account or image.account
    found = Needs(given.name, image, given.model_data, account, given.mme, given.output)
    return found, f"arn:{image.partition}:iam::{account}:role/{given.name}-execution"


def there(given: argparse.Namespace) -> tuple[Needs, str]:
    """By the endpoint as it is, with its role."""
    if given.image or given.model_data:
        raise StartError("--image and --model-data go together; without both, the endpoint is looked at.")
    session = aws.session(given.region, given.profile)
    things = Belongings(Account(session, Progress(sys.stderr), Progress(sys.stdout)), given.name)
    endpoint = things.existing()
    configuration = things.configuration(endpoint["EndpointConfigName"]) or {}
    if (model := things.serving()) is None:
        raise StartError(f"the endpoint {given.name} has no model: give --image and --model-data.")
    container = model["PrimaryContainer"]
    output = configuration.get("AsyncInferenceConfig", {}).get("OutputConfig", {}).get("S3OutputPath")
    image, account = Image.read(container["Image"]), endpoint["EndpointArn"].split(":")[4]
    multi = container.get("Mode") == "MultiModel"
    found = Needs(given.name, image, container["ModelDataUrl"], account, multi, output)
    return found, str(model["ExecutionRoleArn"])


def of_gateway(given: argparse.Namespace) -> dict[str, Any]:
    if not given.bucket:
        raise StartError("--gateway wants --bucket BUCKET: of its inputs, results and models.")
    inputs = [prefix for prefix in given.inputs.split(",") if prefix]
    return gateway.policies(given.name, given.bucket, inputs, given.results, given.models, given.triton_port)
