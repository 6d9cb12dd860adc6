"""The CodeBuild project of an image's repository, its role and what it reads: find, make, remove."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import yaml
from botocore.exceptions import ClientError

from trireme_tools import aws, documents
from trireme_tools.deploy import resources
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.deletion import Resource
from trireme_tools.deploy.images import partition_of

DOCUMENTS = documents.read(__file__, "codebuild.yaml")
CODEBUILD, IAM = "codebuild", "iam"
#: The name of the role's only policy.
POLICY = "build"
#: Characters that CodeBuild and IAM take.
MAX_PROJECT_NAME, MAX_ROLE_NAME = 100, 64
#: Seconds for which CodeBuild may not know a new role yet, and between two attempts.
ROLE_DELAY_S, ROLE_RETRY_S = 60.0, 3.0
#: Builds of a project that are looked at, the newest: what BatchGetBuilds takes.
MAX_BUILDS = 100


@dataclass(frozen=True)
class Names:
    """The names of what belongs to an image's repository. ``regions`` are pushed to; the first builds."""

    repository: str
    account: str
    regions: Sequence[str]
    bucket: str

    @property
    def project(self) -> str:
        """CodeBuild takes letters, digits, '-' and '_'; ECR has no two marks side by side."""
        return _shorten(
            f"trireme-build-{self.repository.replace('/', '--').replace('.', '-_')}", MAX_PROJECT_NAME
        )

    @property
    def role(self) -> str:
        """IAM's names belong to all Regions, a project to one."""
        return _shorten(f"{self.project}-{self.regions[0]}", MAX_ROLE_NAME)

    @property
    def prefix(self) -> str:
        """What the keys of its objects begin with."""
        return f"trireme-builds/{self.project}/"

    @property
    def log_group(self) -> str:
        return f"/aws/codebuild/{self.project}"

    def document(self, kind: str) -> Any:
        """Return ``project``, or the policy ``trust``, ``role`` or ``builder``."""
        partition = partition_of(self.regions[0])
        here = f"{self.regions[0]}:{self.account}"
        bucket_arn = f"arn:{partition}:s3:::{self.bucket}"
        filled = documents.fill(
            DOCUMENTS[kind],
            {
                "repository": self.repository,
                "project": self.project,
                "project_arn": f"arn:{partition}:codebuild:{here}:project/{self.project}",
                "role": f"arn:{partition}:iam::{self.account}:role/{self.role}",
                "bucket": self.bucket,
                "bucket_arn": bucket_arn,
                "prefix": self.prefix,
                "objects": f"{bucket_arn}/{self.prefix}*",
                "images": [
                    f"arn:{partition}:ecr:{region}:{self.account}:repository/{self.repository}"
                    for region in self.regions
                ],
                "log_group": self.log_group,
                "log_arn": f"arn:{partition}:logs:{here}:log-group:{self.log_group}",
                "buildspec": yaml.safe_dump(DOCUMENTS["buildspec"], sort_keys=False, width=1000),
            },
        )
        return filled if kind == "project" else {"Version": "2012-10-17", "Statement": filled}


class Project:
    """The project of an account."""

    def __init__(self, account: Account, names: Names) -> None:
        self._account, self.names = account, names

    def missing(self) -> dict[str, Any]:
        """Return what would be made or changed: ``role`` and ``project`` with their documents."""
        wanted, missing = self.names.document("project"), {}
        policy = self._account.describe(
            IAM, "get_role_policy", "look at the build's role", RoleName=self.names.role, PolicyName=POLICY
        )
        # The real AWS quotes the document; boto3 decodes it.
        if not policy or policy["PolicyDocument"] != self.names.document("role"):
            missing["role"] = self.names.document("role")
        described = self._describe()
        if described is None or not _has(described, wanted):
            missing["project"] = wanted
        return missing

    def provide(self, missing: dict[str, Any]) -> None:
        """Make or change what :meth:`missing` has found."""
        account, names = self._account, self.names
        if "role" in missing:
            account.create(
                IAM,
                "create_role",
                f"make role {names.role}",
                RoleName=names.role,
                AssumeRolePolicyDocument=json.dumps(names.document("trust")),
                Tags=aws.to_tags({"trireme:build": names.repository}),
            )
            account.create(
                IAM,
                "put_role_policy",
                f"set the policy of role {names.role}",
                RoleName=names.role,
                PolicyName=POLICY,
                PolicyDocument=json.dumps(missing["role"]),
            )
        if "project" in missing:
            operation = "create_project" if self._describe() is None else "update_project"
            delay_s = ROLE_DELAY_S if "role" in missing else 0.0
            self._provide_project(operation, missing["project"], time.monotonic() + delay_s)

    def _provide_project(self, operation: str, arguments: dict[str, Any], until: float) -> None:
        doing = f"make project {self.names.project}"
        if self._account.dry:
            self._account.create(CODEBUILD, operation, doing, **arguments)
            return
        while True:
            try:
                getattr(self._account.client(CODEBUILD), operation)(**arguments)
                return
            except ClientError as error:
                # CodeBuild refuses a role that IAM has not spread yet.
                if aws.code(error) != "InvalidInputException" or time.monotonic() > until:
                    raise aws.explain(error, doing) from None
            time.sleep(ROLE_RETRY_S)

    def builds(self) -> list[dict[str, Any]]:
        """Describe the newest builds, the newest first."""
        doing = f"look for builds of {self.names.project}"
        listed = self._account.describe(
            CODEBUILD,
            "list_builds_for_project",
            doing,
            projectName=self.names.project,
            sortOrder="DESCENDING",
        )
        if not (ids := (listed or {}).get("ids", ())[:MAX_BUILDS]):
            return []
        by_id = {
            row["id"]: row
            for row in self._account.call(CODEBUILD, "batch_get_builds", doing, ids=ids)["builds"]
        }
        return [by_id[each] for each in ids if each in by_id]

    def resources(self) -> Iterator[Resource]:
        """Yield what there is, in the order of deletion."""
        account, names = self._account, self.names
        for build in self.builds():
            if build["buildStatus"] == "IN_PROGRESS":
                stop = partial(
                    account.remove, CODEBUILD, "stop_build", f"stop build {build['id']}", id=build["id"]
                )
                yield Resource(f"running build {build['id']}", stop)
        if self._describe():
            doing = f"remove project {names.project}"
            remove = partial(account.remove, CODEBUILD, "delete_project", doing, name=names.project)
            yield Resource(f"project {names.project}", remove)
        doing = f"remove role {names.role}"
        if account.describe(IAM, "get_role", f"look at role {names.role}", RoleName=names.role):
            policy = {"RoleName": names.role, "PolicyName": POLICY}
            yield Resource(
                f"policy of role {names.role}",
                partial(account.remove, IAM, "delete_role_policy", doing, **policy),
            )
            yield Resource(
                f"role {names.role}", partial(account.remove, IAM, "delete_role", doing, RoleName=names.role)
            )
        listing = {"Bucket": names.bucket, "Prefix": names.prefix}
        for row in account.paginate("s3", "list_objects_v2", "Contents", f"list {names.bucket}", **listing):
            place = {"Bucket": names.bucket, "Key": row["Key"]}
            doing = f"remove {row['Key']}"
            yield Resource(
                f"source s3://{names.bucket}/{row['Key']}",
                partial(account.remove, "s3", "delete_object", doing, **place),
            )

    def _describe(self) -> dict[str, Any] | None:
        doing = f"look at project {self.names.project}"
        found = self._account.call(CODEBUILD, "batch_get_projects", doing, names=[self.names.project])[
            "projects"
        ]
        return dict(found[0]) if found else None


def _shorten(name: str, most: int) -> str:
    return name if len(name) <= most else resources.add_hash("trireme-build", name)


def _has(described: Any, wanted: Any) -> bool:
    """True if all that is wanted is described; AWS adds members."""
    if isinstance(wanted, dict):
        return all(name in described and _has(described[name], value) for name, value in wanted.items())
    return bool(described == wanted)
