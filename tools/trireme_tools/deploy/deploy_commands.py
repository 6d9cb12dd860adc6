"""``sm deploy``, ``status``, ``logs``, ``delete`` and ``images``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from sm.commands.selftest import print_outcomes
from sm.errors import CommandError
from sm.settings import Settings
from trireme_tools import aws
from trireme_tools.deploy import (
    alarms,
    api_fields,
    autoscaling,
    components,
    deploy_arguments,
    endpoint_logs,
    gpu_hosts,
    images,
    model_data,
    preflight,
    project_file,
    quotas,
    resources,
    status,
)
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.components import Component
from trireme_tools.deploy.deletion import Deletion
from trireme_tools.deploy.deployment import ALL_AT_ONCE, Deployment, Rollout
from trireme_tools.deploy.deployment_plan import DeploymentPlan, Shadow
from trireme_tools.deploy.model_data import ModelData
from trireme_tools.deploy.upload import Uploader
from trireme_tools.deploy.verifying import Verifier
from trireme_tools.deploy.waiting import EndpointFailed, Waiter
from trireme_tools.progress import Progress

#: The options of trireme.toml that describe no deployment.
OF_ACCOUNT = ("archive", "bucket", "profile", "region")


def deploy(options: argparse.Namespace) -> int:
    """Create or update an endpoint, wait for it, and compare its answers; return 1 if one differs."""
    resources.check(options.name)
    if options.rollback or _changes_shadow(options):
        project_file.drop(options, deploy_arguments.project_options(), keep=OF_ACCOUNT)
    _check(options)
    account = _account(options, options.dry_run)
    deployment = Deployment(account, options.name, Waiter(account))
    try:
        if options.rollback:
            configuration = deployment.roll_back(_rollout_with_alarms(account, options))
            if not options.dry_run:
                account.progress.say(f"endpoint {options.name} serves {configuration} again")
            return 0
        if _changes_shadow(options):
            _change_shadow(account, options, deployment)
            return 0
        plan = _plan(account, options, deployment)
        if options.save and not options.dry_run:
            project_file.save(options, deploy_arguments.project_options())
        if options.component:
            components.apply(account, Component.of(options, plan))
            if limits := autoscaling.read(options, component=True):
                autoscaling.apply(account, plan.name, limits)
        else:
            _apply(account, options, deployment, plan)
    except KeyboardInterrupt:
        account.progress.say(
            f"\nstopped waiting; AWS continues: 'sm status {options.name}' tells how far it is, the same "
            f"command takes it up again, 'sm delete {options.name}' removes it all"
        )
        raise
    return 0 if options.dry_run else _verify(account, options, plan)


def show_status(options: argparse.Namespace) -> int:
    _complete(options)
    return status.show(_account(options), resources.check(options.name))


def show_logs(options: argparse.Namespace) -> int:
    endpoint_logs.show(_account(options), resources.check(options.name), options.lines, options.follow)
    return 0


def delete(options: argparse.Namespace) -> int:
    _complete(options)
    account = _account(options)
    Deletion(account, resources.check(options.name), Waiter(account)).run(options.yes)
    return 0


def _complete(options: argparse.Namespace) -> None:
    project_file.complete(options, deploy_arguments.project_options())


def _account(options: argparse.Namespace, dry: bool = False) -> Account:
    session = aws.session(options.region, options.profile)
    return Account(session, Progress(sys.stderr), Progress(sys.stdout), dry)


def _check(options: argparse.Namespace) -> None:
    """Check which options go together."""
    if options.save and (options.rollback or _changes_shadow(options)):
        raise CommandError("--save is for a deployment: it goes without --rollback and the shadow's options.")
    if options.save:
        project_file.describe(options, deploy_arguments.project_options())
    if _changes_shadow(options):
        if options.image or options.model_data or options.rollback:
            raise CommandError(
                "--shadow, --promote-shadow and --remove-shadow change an endpoint that serves: they go "
                "without --image, --model-data and --rollback."
            )
    elif not options.rollback:
        deploy_arguments.check_data(options)
    deploy_arguments.check_kind(options)
    deploy_arguments.check_component(options)
    autoscaling.read(options, component=options.component)
    fields = api_fields.read(options)
    if not options.image and any(field.call != api_fields.UPDATE for field in fields):
        raise CommandError("--set and --extra without --image take the fields of UpdateEndpoint only.")
    if options.alarms and options.image and images.is_prebuilt(options.image):
        raise CommandError(
            "--alarms reads the box's own metrics, and AWS's image writes none: take --alarm errors and "
            "--alarm latency:MS."
        )


def _changes_shadow(options: argparse.Namespace) -> bool:
    return bool(options.shadow or options.promote_shadow or options.remove_shadow)


def _change_shadow(account: Account, options: argparse.Namespace, deployment: Deployment) -> None:
    """Add, promote or remove the shadow variant."""
    if options.shadow:
        deployment.check_shadow(_rollout(options, options.alarm))
    rollout, name = _rollout_with_alarms(account, options), options.name
    if options.promote_shadow:
        deployment.promote_shadow(rollout)
        account.progress.say(f"endpoint {name} serves what its shadow ran")
    elif options.remove_shadow:
        deployment.remove_shadow(rollout)
        account.progress.say(f"endpoint {name} has no shadow any more")
    else:
        shadow, content_id = _read_shadow(account, options)
        deployment.add_shadow(shadow, content_id, rollout)
        account.progress.say(
            f"the shadow gets a copy of {shadow.percent} % of the requests: 'sm status {name}' compares, "
            f"'sm deploy {name} --promote-shadow' or '--remove-shadow' ends it"
        )


def _read_shadow(account: Account, options: argparse.Namespace) -> tuple[Shadow, str]:
    """Return the shadow, and what identifies the content of its archive. A folder is packed and uploaded."""
    chosen, percent = options.shadow, options.percent
    if Path(chosen).is_dir():
        uploader = Uploader(account, Settings.read(os.environ).cache)
        data = uploader.send(Path(chosen), options.name, options.bucket, options.archive)
        return Shadow(data=data.url, percent=percent), ""
    if chosen.startswith("s3://"):
        data = model_data.find(account, chosen, mme=False)
        return Shadow(data=data.url, percent=percent), data.fingerprint
    preflight.check_image(account, chosen)
    return Shadow(image=chosen, percent=percent), ""


def _plan(account: Account, options: argparse.Namespace, deployment: Deployment) -> DeploymentPlan:
    """Make all checks of the account before anything is created, then pack the archive."""
    preflight.check_architecture(options.image, options.instance_type)
    if not options.serverless:
        ami = gpu_hosts.choose_ami(options.instance_type, options.ami)
        gpu_hosts.check(options.image, options.instance_type, ami)
    preflight.check_image(account, options.image)
    if options.mme:
        preflight.check_multi_model(account, options.image, options.instance_type)
    role = preflight.choose_role(account, deployment.resources, options.role)
    repository = deploy_arguments.local_repository(options.model_data)
    data = ModelData()
    known = ModelData("" if repository else options.model_data or "")
    draft, check_quotas = DeploymentPlan.of(options, known, role), None
    if options.component:
        draft.check({}, scaled=False, served=None)
        components.check_quotas(account, Component.of(options, draft))
    else:
        rollout, most = _rollout(options, options.alarm), options.autoscale[1] if options.autoscale else 0
        deployment.check(draft, rollout, bool(most))
        ask = partial(quotas.check, account, options.name, draft.configuration(), most)
        is_served = deployment.served_configuration() is not None
        ask(changes=not is_served)
        # Only models that are not there yet make an update.
        check_quotas = ask if is_served and not rollout.is_rolling else None
    if repository:
        uploader = Uploader(account, Settings.read(os.environ).cache, check_quotas)
        # SageMaker takes single files for neither kind (botocore: ContainerDefinition.ModelDataSource).
        packed = options.archive or bool(options.serverless)
        data = uploader.send(repository, options.name, options.bucket, packed, options.mme)
    elif url := options.model_data:
        url = url.rstrip("/") + "/" if options.mme else url
        data = model_data.find(account, url, options.mme)
    return DeploymentPlan.of(options, data, role)


def _apply(
    account: Account, options: argparse.Namespace, deployment: Deployment, plan: DeploymentPlan
) -> None:
    try:
        deployment.apply(plan, _rollout_with_alarms(account, options))
    except EndpointFailed as error:
        note = f" The models stay at {plan.data.url} for the next run." if plan.data.url else ""
        raise EndpointFailed(f"{error}{note}") from None
    if limits := autoscaling.read(options):
        autoscaling.apply(account, plan.name, limits)
    alarms.create(account, plan.alarms())


def _rollout(options: argparse.Namespace, names: Iterable[str]) -> Rollout:
    """Return the rollout with the named alarms."""
    kind = "CANARY" if options.canary else "LINEAR" if options.linear else ALL_AT_ONCE
    percent = options.canary or options.linear or 0
    return Rollout(kind, percent, options.bake, tuple(names), api_fields.read(options))


def _rollout_with_alarms(account: Account, options: argparse.Namespace) -> Rollout:
    """Return the rollout, after creating the alarms that it asks for."""
    return _rollout(options, alarms.choose(account, options.name, options.alarm))


def _verify(account: Account, options: argparse.Namespace, plan: DeploymentPlan) -> int:
    if images.is_prebuilt(plan.image):
        account.progress.say("AWS's own image has no clients: no samples are compared")
        return 0
    settings = Settings.read(os.environ)
    repository = deploy_arguments.local_repository(options.model_data)
    component = Component.of(options, plan) if options.component else None
    if component and component.create()["RuntimeConfig"]["CopyCount"] == 0:
        account.progress.say(f"component {plan.name} has no copy: nothing was compared")
        return 0
    endpoint = component.endpoint if component else plan.name
    verifier = Verifier(account, plan, endpoint, plan.name if component else None)
    outcomes = tuple(verifier.outcomes(settings.clients, repository))
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
