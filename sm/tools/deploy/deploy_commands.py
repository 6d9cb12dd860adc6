"""``sm deploy``, ``status``, ``logs``, ``delete`` and ``images``."""

from __future__ import annotations

import argparse
import os
import sys

from sm.errors import StartError
from sm.settings import Settings
from sm.tools.deploy import (
    alarms,
    autoscaling,
    aws,
    deploy_arguments,
    endpoint_logs,
    preflight,
    resource_names,
    scaling,
    status,
    triton_images,
)
from sm.tools.deploy.account import Account
from sm.tools.deploy.deletion import Deletion
from sm.tools.deploy.deployment import Deployment
from sm.tools.deploy.deployment_plan import Plan, Serverless
from sm.tools.deploy.rollout import Rollout
from sm.tools.deploy.start_failures import Failed
from sm.tools.deploy.upload import Uploader, fingerprint
from sm.tools.deploy.verifying import Verifier
from sm.tools.deploy.waiting import Waiter
from sm.tools.progress import Progress
from sm.tools.selftest import print_outcomes


def deploy(given: argparse.Namespace) -> int:
    """Make or update an endpoint, wait for it, and compare its answers; 1 if one differs."""
    resource_names.check(given.name)
    _check(given)
    account = _account(given, given.dry_run)
    deployment = Deployment(account, given.name, Waiter(account))
    try:
        if given.rollback:
            served = deployment.roll_back(_rollout(account, given))
            if not given.dry_run:
                account.progress.say(f"endpoint {given.name} serves {served} again")
            return 0
        plan = _plan(account, given, deployment)
        _apply(account, given, deployment, plan)
    except KeyboardInterrupt:
        account.progress.say(
            f"\nstopped waiting, AWS goes on: 'sm status {given.name}' tells how far it is, the same command "
            f"takes it up again, 'sm delete {given.name}' removes it all"
        )
        raise
    return 0 if given.dry_run else _verify(account, given, plan)


def show_status(given: argparse.Namespace) -> int:
    return status.show(_account(given), resource_names.check(given.name))


def show_logs(given: argparse.Namespace) -> int:
    endpoint_logs.show(_account(given), resource_names.check(given.name), given.lines, given.follow)
    return 0


def delete(given: argparse.Namespace) -> int:
    account = _account(given)
    Deletion(account, resource_names.check(given.name), Waiter(account)).run(given.yes)
    return 0


def show_images(given: argparse.Namespace) -> int:
    """One Region's image alone, so that a script can take it; else all with their Regions.

    Where a second account may hold the release too, it is said beside the first.
    """
    results = Progress(sys.stdout)
    if given.region:
        first, *others = triton_images.uris(given.region, given.version, given.cpu)
        results.say(first)
        for other in others:
            Progress(sys.stderr).say(f"the SageMaker SDK's table has it in another account: {other}")
        return 0
    for region in triton_images.regions(given.version):
        found = " or ".join(triton_images.uris(region, given.version, given.cpu))
        results.say(f"{region:<15} {found}")
    return 0


def _account(given: argparse.Namespace, dry: bool = False) -> Account:
    session = aws.session(given.region, given.profile)
    return Account(session, Progress(sys.stderr), Progress(sys.stdout), dry)


def _check(given: argparse.Namespace) -> None:
    """What goes together and what does not."""
    if not given.rollback:
        deploy_arguments.check_data(given)
    scaling.read(given)
    if given.serverless and (given.autoscale or given.mme or given.startup_timeout):
        raise StartError(
            "--serverless goes without --autoscale, --mme and --startup-timeout: it has none of them."
        )


def _plan(account: Account, given: argparse.Namespace, deployment: Deployment) -> Plan:
    """All that is asked of the account before anything is made, then the archive."""
    preflight.image(account, given.image)
    if given.mme:
        preflight.multi_model(account, given.image, given.instance_type)
    role = preflight.role(account, deployment.things, given.role)
    repository = deploy_arguments.repository(given.model_data)
    url, content = given.model_data or "", ""
    if repository:
        cache = Settings.read(os.environ).cache
        url = Uploader(account, cache).send(repository, given.name, given.bucket, given.mme)
    elif url:
        url = url.rstrip("/") + "/" if given.mme else url
        content = fingerprint(account, url, given.mme)
    return Plan(
        name=given.name,
        image=given.image,
        data=url,
        role=role,
        fingerprint=content,
        mme=given.mme,
        env=dict(given.env),
        tags=dict(given.tags),
        instance_type=given.instance_type,
        count=given.count,
        serverless=Serverless(*given.serverless) if given.serverless else None,
        output=given.output,
        startup_timeout=given.startup_timeout,
    )


def _apply(account: Account, given: argparse.Namespace, deployment: Deployment, plan: Plan) -> None:
    try:
        deployment.apply(plan, _rollout(account, given))
    except Failed as error:
        stays = f" The archive stays at {plan.data} for the next run." if plan.data else ""
        raise Failed(f"{error}{stays}") from None
    if wanted := scaling.read(given):
        autoscaling.apply(account, plan.name, wanted, bool(plan.output))


def _rollout(account: Account, given: argparse.Namespace) -> Rollout:
    kind = "CANARY" if given.canary else "LINEAR" if given.linear else "ALL_AT_ONCE"
    chosen = alarms.chosen(account, given.name, given.alarm)
    return Rollout(kind, given.canary or given.linear or 0, given.bake, tuple(chosen))


def _verify(account: Account, given: argparse.Namespace, plan: Plan) -> int:
    if triton_images.is_prebuilt(plan.image):
        account.progress.say("AWS's own image has no clients: no samples are compared")
        return 0
    settings = Settings.read(os.environ)
    repository = deploy_arguments.repository(given.model_data)
    outcomes = tuple(Verifier(account, plan).outcomes(settings.clients, repository))
    differs = print_outcomes(outcomes)
    if not any(outcome.differences is not None for outcome in outcomes):
        account.progress.say("no client that is served has a sample: nothing was compared")
    account.progress.say(
        f"endpoint {plan.name} serves, but not what it should. It was left: "
        f"'sm deploy {plan.name} --rollback' or 'sm delete {plan.name}'"
        if differs
        else f"endpoint {plan.name} serves"
    )
    return differs
