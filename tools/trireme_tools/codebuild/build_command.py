"""``./build_and_push.sh --codebuild``: send the checkout, build and push it in the account, follow the log.

The script decides on the names and tags, and the build runs the same script: here is only what is between.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from sm.errors import CommandError
from trireme_tools import aws
from trireme_tools.codebuild import source
from trireme_tools.codebuild.project import CODEBUILD, DOCUMENTS, Names, Project
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.deletion import ask
from trireme_tools.deploy.file_upload import FileUploader
from trireme_tools.deploy.upload import default_bucket, provide_default_bucket
from trireme_tools.deploy.waiting import Waiter
from trireme_tools.package.contents import ArchiveEntry
from trireme_tools.progress import Progress

#: The variable by which a build is found again: what it was made of.
IDENTITY = "IDENTITY"
DIRTY = "-dirty"
#: The states of a build of the same files that say that what has its tag is its own.
OWN = ("SUCCEEDED", "IN_PROGRESS")
#: Seconds after which the last lines of a build are in its log.
LOG_DELAY_S = 3.0


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; errors are one sentence on standard error."""
    try:
        return run(parser().parse_args(words))
    except CommandError as error:
        sys.stderr.write(f"build_and_push.sh: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of what the script hands over."""
    command = argparse.ArgumentParser()
    command.add_argument("repository")
    for name in ("tag", "revision", "source", "target"):
        command.add_argument(f"--{name}", required=True)
    command.add_argument("--extra-tag", default="")
    command.add_argument("--platform", default="")
    command.add_argument("--region", action="append", default=[])
    command.add_argument("--models", type=Path)
    for name in ("as-user", "yes", "dry-run"):
        command.add_argument(f"--{name}", action="store_true")
    return command


def run(options: argparse.Namespace) -> int:
    accounts = [open_account(region, options.dry_run) for region in options.region or [None]]
    here = accounts[0]
    names = Names(options.repository, here.number, [each.region for each in accounts], default_bucket(here))
    absent = [account.region for account in accounts if not is_pushed(account, names, options)]
    project, packed = Project(here, names), source.pack(Path.cwd())
    variables = build_variables(options, absent)
    identity = source.digest(packed, options.tag.encode())
    same = [build for build in project.builds() if variables_of(build).get(IDENTITY) == identity]
    running = next((build for build in same if runs(build, variables)), None)
    if len(absent) < len(accounts):
        check_existing(names, options.tag, same)
    if not absent:
        here.progress.say(f"{names.repository}:{options.tag} is there already")
    elif running:
        here.progress.say("a build of the same files is running: following it")
        follow(here, project, running["id"])
    else:
        missing = project.missing()
        announce(here, options, names, missing, len(packed))
        if not (options.yes or options.dry_run):
            ask(here, "Build? Type yes to confirm:", "yes", "nothing was built")
        models = send(here, names, options.models, packed, identity)
        project.provide(missing)
        build = start(here, options, names, {**variables, IDENTITY: identity, "MODELS": models}, identity)
        if options.dry_run:
            return 0
        follow(here, project, build["id"])
    for account in accounts:
        for line in addresses(account, names, options):
            sys.stdout.write(f"{line}\n")
    return 0


def open_account(region: str | None, dry: bool) -> Account:
    return Account(aws.session(region), Progress(sys.stderr), Progress(sys.stdout), dry)


def find_image(account: Account, names: Names, tag: str) -> dict[str, Any] | None:
    """Describe an image of the repository; None if there is none."""
    found = account.describe(
        "ecr",
        "describe_images",
        f"look for {names.repository}:{tag}",
        repositoryName=names.repository,
        imageIds=[{"imageTag": tag}],
    )
    return dict(found["imageDetails"][0]) if found else None


def is_pushed(account: Account, names: Names, options: argparse.Namespace) -> bool:
    """True if the image is there. Raises :class:`CommandError` if the second tag names another one."""
    image = find_image(account, names, options.tag)
    other = find_image(account, names, options.extra_tag) if options.extra_tag else None
    if other and (image is None or other["imageDigest"] != image["imageDigest"]):
        raise CommandError(
            f"{names.repository} has another build under the tag {options.extra_tag} already, and tags are "
            "never moved: choose another tag with -t."
        )
    return image is not None


def check_existing(names: Names, tag: str, same: Sequence[Mapping[str, Any]]) -> None:
    """Raise :class:`CommandError` if the tag may name other files: changes without a commit have one tag."""
    if DIRTY in tag and not any(build["buildStatus"] in OWN for build in same):
        raise CommandError(
            f"{names.repository} has another build under the tag {tag} already, and tags are never moved: "
            "commit what you changed, as the tag names the commit."
        )


def build_variables(options: argparse.Namespace, regions: Sequence[str]) -> dict[str, str]:
    """Return the build's variables: the script's arguments, and what it reads of git here."""
    words = [options.repository, "--target", options.target]
    words += [word for region in regions for word in ("--region", region)]
    words += ["--platform", options.platform] if options.platform else []
    words += ["--as-user"] if options.as_user else []
    words += ["--models", "models"] if options.models else []
    return {
        "ARGUMENTS": " ".join(words),
        "BUILD_TAG": options.tag,
        "BUILD_REVISION": options.revision,
        "BUILD_SOURCE": options.source,
    }


def variables_of(build: Mapping[str, Any]) -> dict[str, str]:
    rows = build.get("environment", {}).get("environmentVariables", ())
    return {row["name"]: row["value"] for row in rows}


def runs(build: Mapping[str, Any], variables: Mapping[str, str]) -> bool:
    """True if a build with these variables is under way."""
    return build["buildStatus"] == "IN_PROGRESS" and variables.items() <= variables_of(build).items()


def announce(
    account: Account, options: argparse.Namespace, names: Names, missing: Mapping[str, Any], size: int
) -> None:
    """Say what will be made, what may be done with it, and what it costs."""
    say, compute = account.progress.say, DOCUMENTS["compute"][options.target]
    if "role" in missing:
        say(f"role {names.role} of CodeBuild gets these rights and no others:")
        say(json.dumps(missing["role"], indent=2))
    for kind, document in missing.items():
        say(f"{kind} {document.get('name', names.role)} will be made or changed")
    price, minutes = Decimal(compute["price"]), compute["minutes"]
    most, beside = DOCUMENTS["project"]["timeoutInMinutes"], " and the models" if options.models else ""
    say(
        f"{size / 1e6:.1f} MB{beside} are sent, and {compute['type']} builds "
        f"{names.repository}:{options.tag} in {account.region}: "
        f"${price} a minute, about {minutes} minutes, about ${price * minutes:.2f}; "
        f"it is stopped after {most} minutes, ${price * most:.2f}"
    )


def send(account: Account, names: Names, models: Path | None, packed: bytes, identity: str) -> str:
    """Upload the archive and the models; return where the models are, empty without any."""
    bucket = provide_default_bucket(account)
    place = {"Bucket": bucket, "Key": source_key(names, identity)}
    if account.dry:
        account.show("s3", "cp", "source.zip", f"s3://{bucket}/{place['Key']}")
    else:
        account.create("s3", "put_object", f"send {place['Key']}", **place, Body=packed)
    if models is None:
        return ""
    return str(FileUploader(account, models, read_entries(models)).send(bucket, f"{names.prefix}models/").url)


def read_entries(models: Path) -> list[ArchiveEntry]:
    """Return all below a folder. Links are followed, as the hash in the tag follows them."""
    paths = [
        Path(above, name)
        for above, folders, files in os.walk(models, followlinks=True)
        for name in (*folders, *files)
    ]
    return [ArchiveEntry(path.relative_to(models).as_posix(), path) for path in sorted(paths)]


def source_key(names: Names, identity: str) -> str:
    return f"{names.prefix}{identity}.zip"


def start(
    account: Account, options: argparse.Namespace, names: Names, variables: Mapping[str, str], identity: str
) -> dict[str, Any]:
    machine = DOCUMENTS["images"]["arm64" if options.platform.endswith("arm64") else "amd64"]
    started = account.create(
        CODEBUILD,
        "start_build",
        f"start a build of {names.project}",
        projectName=names.project,
        sourceLocationOverride=f"{names.bucket}/{source_key(names, identity)}",
        environmentTypeOverride=machine["type"],
        imageOverride=machine["image"],
        computeTypeOverride=DOCUMENTS["compute"][options.target]["type"],
        environmentVariablesOverride=[{"name": name, "value": value} for name, value in variables.items()],
    )
    return dict(started.get("build", {}))


class BuildWaiter(Waiter):
    """Polls a build, and shows the lines of its log as they come."""

    kind = "build"
    passing = (
        "SUBMITTED",
        "QUEUED",
        "PROVISIONING",
        "DOWNLOAD_SOURCE",
        "INSTALL",
        "PRE_BUILD",
        "BUILD",
        "POST_BUILD",
        "UPLOAD_ARTIFACTS",
        "FINALIZING",
        "COMPLETED",
    )

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._build: dict[str, Any] = {}
        self._token: dict[str, str] = {}
        #: The last line, and False once the log could not be read.
        self.last, self._readable = "", True

    def _poll(self, name: str) -> dict[str, Any] | None:
        found = self._account.call(CODEBUILD, "batch_get_builds", f"look at build {name}", ids=[name])
        if not found["builds"]:
            return None
        self._build = dict(found["builds"][0])
        passes = self._build["buildStatus"] == "IN_PROGRESS"
        state = self._build["currentPhase"] if passes else self._build["buildStatus"]
        return {**self._build, "EndpointStatus": state}

    def _last_line(self, _name: str, _since: float) -> str:
        self.show_new_lines()
        return self.last

    def show_new_lines(self) -> None:
        """Write what the log has got since the last call. Who may build need not be allowed to read it."""
        try:
            if self._readable:
                self._show_new_lines()
        except aws.ServiceUnavailable:
            raise
        except CommandError as error:
            self._readable = False
            self._account.progress.say(f"the build's log is not shown: {error}")

    def _show_new_lines(self) -> None:
        logs = self._build.get("logs", {})
        if not (group := logs.get("groupName")) or not (stream := logs.get("streamName")):
            return
        while True:
            page = self._account.describe(
                "logs",
                "get_log_events",
                "read the build's log",
                logGroupName=group,
                logStreamName=stream,
                startFromHead=True,
                **self._token,
            )
            for event in (page or {}).get("events", ()):
                if line := str(event["message"]).rstrip():
                    self._account.progress.say(line)
                    self.last = line
            token = {"nextToken": page["nextForwardToken"]} if page else {}
            if token == self._token or not (page or {}).get("events"):
                return
            self._token = token


def follow(account: Account, project: Project, build_id: str) -> None:
    """Wait for the end of a build. Raises :class:`CommandError` if it fails."""
    waiter = BuildWaiter(account)
    account.progress.say(f"build {build_id}")
    try:
        build = waiter.wait(build_id)
    except KeyboardInterrupt:
        account.progress.say(
            f"\nstopped waiting; build {build_id} goes on: the same command follows it again, "
            f"'sm delete {project.names.repository} --build' stops it and removes what it needs"
        )
        raise
    time.sleep(LOG_DELAY_S)
    waiter.show_new_lines()
    if build is None or build["buildStatus"] != "SUCCEEDED":
        raise CommandError(failure(build or {}, build_id, waiter.last))


def failure(build: Mapping[str, Any], build_id: str, last: str) -> str:
    """Return CodeBuild's own reason, the log's last line and where all of it is."""
    reasons = [
        f"{phase['phaseType']}: {context.get('message') or context.get('statusCode')}"
        for phase in build.get("phases", ())
        if phase.get("phaseStatus") not in (None, "SUCCEEDED")
        for context in phase.get("contexts", ())
        if context.get("message") or context.get("statusCode")
    ]
    reason = (reasons or ["CodeBuild gives no reason"])[-1]
    log = f" The log's last line: {last}." if last else ""
    link = build.get("logs", {}).get("deepLink")
    return (
        f"build {build_id} is {build.get('buildStatus', 'gone')}: {reason}.{log} Nothing more was pushed; "
        f"mend it and run this again.{f' The whole log: {link}' if link else ''}"
    )


def addresses(account: Account, names: Names, options: argparse.Namespace) -> list[str]:
    """Return the address of each tag with its digest; the second tag is put beside the first."""
    image, tags = find_image(account, names, options.tag), [options.tag]
    if image is None:
        raise CommandError(f"there is no {names.repository}:{options.tag} after the build: see its log.")
    if extra := options.extra_tag:
        tags.append(extra)
        if find_image(account, names, extra) is None:
            put_tag(account, names, options.tag, extra)
    registry = f"{account.number}.dkr.ecr.{account.region}.{account.domain}"
    return [f"{registry}/{names.repository}:{tag}@{image['imageDigest']}" for tag in tags]


def put_tag(account: Account, names: Names, tag: str, extra: str) -> None:
    doing = f"tag {names.repository}:{tag} as {extra}"
    ids = {"repositoryName": names.repository, "imageIds": [{"imageTag": tag}]}
    (found,) = account.call("ecr", "batch_get_image", doing, **ids)["images"]
    kind = (
        {"imageManifestMediaType": found["imageManifestMediaType"]}
        if "imageManifestMediaType" in found
        else {}
    )
    account.create(
        "ecr",
        "put_image",
        doing,
        repositoryName=names.repository,
        imageTag=extra,
        imageManifest=found["imageManifest"],
        **kind,
    )


if __name__ == "__main__":
    sys.exit(main())
