"""CodeBuild, played on this machine: moto keeps the projects, and a build runs the project's own buildspec.

A build is a folder with the files of its source and a bash that runs the commands. It pushes to the registry that
``environment`` names; what it has pushed is then in moto's ECR, too, where the registry of an account is.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml
from botocore.exceptions import ClientError
from moto.codebuild.models import codebuild_backends

from tests.support.aws import ECR_PASSWORD, REGION
from tests.support.containers import build_flags

ACCOUNT = "123456789012"
TARGET = "CodeBuild_20161006."
PUSHED = re.compile(
    r"(?P<registry>[\w.:-]+)/(?P<name>[\w./-]+):(?P<tag>[\w.-]+)@(?P<digest>sha256:[0-9a-f]{64})"
)


@dataclass
class PlayedCodeBuild:
    """The builds of an account, and what its machines have: ``environment`` with ``PATH`` and ``REGISTRY``."""

    #: A client of moto, by service.
    client: Callable[[str], Any]
    folder: Path
    environment: Mapping[str, str]
    builds: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)
    #: The names of the images that builds have left with the engine.
    images: list[str] = field(default_factory=list)
    #: A build waits for it before its commands.
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_go_on.set()

    def answer(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer of an operation that moto lacks, or only makes up."""
        if operation == "StartBuild":
            return {"build": self._start(parameters)}
        if operation == "BatchGetBuilds":
            known = [each for each in parameters["ids"] if each in self.builds]
            return {"builds": [self.builds[each] for each in known]}
        if operation == "ListBuildsForProject" and self._project(parameters["projectName"]):
            ids = [key for key, row in self.builds.items() if row["projectName"] == parameters["projectName"]]
            return {"ids": ids[::-1]}
        if operation == "StopBuild":
            build = self.builds[parameters["id"]]
            if process := self.processes.get(parameters["id"]):
                process.kill()
            return {"build": build}
        if operation == "UpdateProject":
            project = codebuild_backends[ACCOUNT][REGION].codebuild_projects[parameters["name"]]
            project.project_metadata.update(parameters)
            return {"project": {}}
        return None

    def close(self) -> None:
        self.may_go_on.set()
        for process in self.processes.values():
            process.kill()
        for thread in self.threads:
            thread.join()
        if self.images:
            remove = [self.environment["DOCKER"], "rmi", "--force", *self.images]
            subprocess.run(remove, env=dict(self.environment), capture_output=True)

    def _project(self, name: str) -> dict[str, Any] | None:
        found = codebuild_backends[ACCOUNT][REGION].codebuild_projects.get(name)
        return found.project_metadata if found else None

    def _start(self, parameters: dict[str, Any]) -> dict[str, Any]:
        project = self._project(parameters["projectName"]) or {}
        key = str(uuid.uuid4())
        build_id = f"{project['name']}:{key}"
        group = project["logsConfig"]["cloudWatchLogs"]["groupName"]
        environment = {
            **project["environment"],
            "type": parameters["environmentTypeOverride"],
            "image": parameters["imageOverride"],
            "computeType": parameters["computeTypeOverride"],
            "environmentVariables": [
                {**row, "type": "PLAINTEXT"} for row in parameters["environmentVariablesOverride"]
            ],
        }
        build = {
            "id": build_id,
            "arn": f"arn:aws:codebuild:{REGION}:{ACCOUNT}:build/{build_id}",
            "projectName": project["name"],
            "buildStatus": "IN_PROGRESS",
            "currentPhase": "QUEUED",
            "startTime": time.time(),
            "source": {**project["source"], "location": parameters["sourceLocationOverride"]},
            "environment": environment,
            "phases": [{"phaseType": "SUBMITTED", "phaseStatus": "SUCCEEDED"}],
            "logs": {"groupName": group, "streamName": key, "deepLink": f"https://console.aws.example/{key}"},
        }
        self.builds[build_id] = build
        thread = threading.Thread(target=self._run, args=(build, project))
        self.threads.append(thread)
        thread.start()
        return dict(build)

    def _run(self, build: dict[str, Any], project: dict[str, Any]) -> None:
        try:
            self.may_go_on.wait(60)
            self._next(build, "DOWNLOAD_SOURCE")
            folder = self.folder / build["id"].partition(":")[2]
            self._check_role(project["serviceRole"])
            self._fetch(build["source"]["location"], folder)
            spec = yaml.safe_load(project["source"]["buildspec"])
            self._next(build, "BUILD")
            output, status = self._run_commands(build, spec, folder)
            if status:
                message = f"Error while executing command: {spec['phases']['build']['commands'][-1]}. Reason: exit status {status}"
                raise RuntimeError(message)
            self._publish(output)
        except (ClientError, RuntimeError, KeyError, zipfile.BadZipFile) as error:
            failed = {
                "phaseStatus": "FAILED",
                "contexts": [{"statusCode": "CLIENT_ERROR", "message": str(error)}],
            }
            build["phases"][-1] |= failed
            build |= {"buildStatus": "FAILED", "currentPhase": "COMPLETED", "buildComplete": True}
            return
        self._next(build, "COMPLETED")
        build |= {"buildStatus": "SUCCEEDED", "buildComplete": True}

    def _next(self, build: dict[str, Any], phase: str) -> None:
        build["phases"][-1]["phaseStatus"] = "SUCCEEDED"
        build["phases"].append({"phaseType": phase})
        build["currentPhase"] = phase

    def _check_role(self, arn: str) -> None:
        name = arn.rpartition("/")[2]
        trust = self.client("iam").get_role(RoleName=name)["Role"]["AssumeRolePolicyDocument"]
        (statement,) = trust["Statement"]
        if statement["Principal"] != {"Service": "codebuild.amazonaws.com"}:
            raise RuntimeError("CodeBuild is not authorized to perform: sts:AssumeRole")

    def _fetch(self, location: str, folder: Path) -> None:
        bucket, _, key = location.partition("/")
        body = self.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            for entry in archive.infolist():
                Path(archive.extract(entry, folder)).chmod(entry.external_attr >> 16)

    def _run_commands(self, build: dict[str, Any], spec: dict[str, Any], folder: Path) -> tuple[str, int]:
        """Run the commands in one shell; the first that fails ends it. Return standard output and the status."""
        assert (
            spec["version"] == 0.2
            and spec["env"]["shell"] == "bash"
            and build["environment"]["privilegedMode"]
        )
        variables = {row["name"]: row["value"] for row in build["environment"]["environmentVariables"]}
        codebuild = {"CODEBUILD_BUILD_ID": build["id"], "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}
        process = subprocess.Popen(
            ["bash", "-ec", "\n".join(spec["phases"]["build"]["commands"])],
            cwd=folder,
            env={**self.environment, **codebuild, **variables, "CODEBUILD_SRC_DIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes[build["id"]] = process
        assert process.stdout is not None
        lines = []
        with process.stdout:
            for line in process.stdout:
                lines.append(line)
                self._log(build["logs"], line)
        return "".join(lines), process.wait()

    def _log(self, where: Mapping[str, str], line: str) -> None:
        logs, stream = (
            self.client("logs"),
            {"logGroupName": where["groupName"], "logStreamName": where["streamName"]},
        )
        for create, names in (
            (logs.create_log_group, ("logGroupName",)),
            (logs.create_log_stream, tuple(stream)),
        ):
            with suppress(logs.exceptions.ResourceAlreadyExistsException):
                create(**{name: stream[name] for name in names})
        if line.strip():
            logs.put_log_events(**stream, logEvents=[{"timestamp": int(time.time() * 1000), "message": line}])

    def _publish(self, output: str) -> None:
        """Put what was pushed to the registry into moto's ECR."""
        for match in PUSHED.finditer(output):
            own = f"{match['name']}:{match['tag']}"
            self.images += [f"{match['registry']}/{own}", f"localhost/{own}"]
            answer = requests.get(
                f"http://{match['registry']}/v2/{match['name']}/manifests/{match['digest']}",
                headers={"Accept": "application/vnd.docker.distribution.manifest.v2+json"},
                auth=("AWS", ECR_PASSWORD),
                timeout=10,
            )
            answer.raise_for_status()
            self.client("ecr").put_image(
                repositoryName=match["name"],
                imageTag=match["tag"],
                imageManifest=answer.text,
                imageManifestMediaType=answer.headers["Content-Type"],
                imageDigest=match["digest"],
            )


def machine(registry: str, url: str, folder: Path, path: str = "") -> dict[str, str]:
    """Return the environment of a build's machine: Podman, the aws command line, and a registry in ECR's place."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "registries.conf").write_text(
        '[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n'
        '[[registry]]\nprefix = "public.ecr.aws/docker"\nlocation = "docker.io"\n'
    )
    # A build reaches the package index as this machine does.
    engine = folder / "podman"
    engine.write_text(
        f'#!/bin/sh\ncase $1 in build) shift; exec podman build {build_flags()} "$@" ;; esac\nexec podman "$@"\n'
    )
    engine.chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "XDG_RUNTIME_DIR", "PATH") if name in os.environ}
    return {
        **kept,
        **({"PATH": path} if path else {}),
        "DOCKER": str(engine),
        "REGISTRY": registry,
        "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
        "REGISTRY_AUTH_FILE": str(folder / "auth.json"),
        "AWS_ENDPOINT_URL": url,
        "NO_PROXY": "127.0.0.1",
    }
