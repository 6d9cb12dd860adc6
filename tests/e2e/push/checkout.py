"""Fixtures for build_and_push.sh: a small checkout, Podman, a real registry and a fake AWS on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.aws import ENVIRONMENT, fake_aws, registry_config, running_registry
from tests.support.aws_proxy import Proxy, running_proxy
from tests.support.containers import podman
from tests.support.played_codebuild import PlayedCodeBuild, machine

#: A program that needs no library, so that an image of it needs no base. Ubuntu's ``ldconfig`` is a script that calls it.
PROGRAM = shutil.which("ldconfig.real", path="/sbin") or "/sbin/ldconfig"
AWS_COMMAND = Path(sys.executable).with_name("aws")


@dataclass
class Checkout:
    """A git repository with build_and_push.sh, a version and a small Dockerfile."""

    folder: Path
    env: dict[str, str]
    label: str = field(default_factory=lambda: f"trireme.test={uuid.uuid4()}")

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
        done = subprocess.run(
            ["git", *identity, *words], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "test")

    def add_step(self, step: str) -> None:
        with (self.folder / "Dockerfile").open("a") as file:
            file.write(f"{step}\n")

    @property
    def tag(self) -> str:
        return f"0.1.0-{self.git('rev-parse', '--short=12', 'HEAD')}"

    def push(self, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.folder / "build_and_push.sh"), *options]
        return subprocess.run(command, capture_output=True, text=True, env={**self.env, **env}, timeout=200)

    def dry_run(self, *options: str, **env: str) -> list[str]:
        """Return the commands that a dry run prints."""
        done = self.push("--dry-run", *options, **{"PATH": "/usr/bin:/bin", "DOCKER": "docker", **env})
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A clean checkout. Its environment has credentials, but neither AWS nor a registry."""
    folder = tmp_path / "clone"
    (folder / "sm").mkdir(parents=True)
    shutil.copy(HERE / "build_and_push.sh", folder)
    (folder / "sm" / "__init__.py").write_text('"""A clone."""\n\n__version__ = "0.1.0"\n')
    env = {
        **{name: os.environ[name] for name in ("HOME", "XDG_RUNTIME_DIR") if name in os.environ},
        "PATH": f"{AWS_COMMAND.parent}:{os.environ['PATH']}",
        **{name: value for name, value in ENVIRONMENT.items() if name != "AWS_DEFAULT_REGION"},
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "NO_PROXY": "127.0.0.1",
    }
    clone = Checkout(folder, env)
    clone.git("init", "--quiet")
    shutil.copy(PROGRAM, folder / "program")
    # The label comes first, so that what a failed build leaves has it too and is removed after the test.
    clone.add_step(f"FROM scratch\nLABEL {clone.label}\nCOPY program /\nARG VERSION REVISION")
    version, revision = (
        f"org.opencontainers.image.{name.lower()}=${name}" for name in ("VERSION", "REVISION")
    )
    clone.add_step(f'LABEL {version} {revision}\nCMD ["/program", "--version"]')
    clone.commit()
    return clone


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The `host:port` of a fake AWS."""
    with fake_aws() as address:
        yield address


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The `host:port` of a registry that runs Debian's docker-registry."""
    if shutil.which("docker-registry") is None:
        pytest.skip("no docker-registry here: apt-get install docker-registry")
    with running_registry(registry_config(tmp_path_factory.mktemp("registry"))) as address:
        yield address


@pytest.fixture
def pushing(checkout: Checkout, moto: str, registry: str, tmp_path: Path) -> Iterator[Checkout]:
    """The checkout with Podman, a fake AWS and a registry."""
    if shutil.which("podman") is None:
        pytest.skip("no Podman here")
    # The tests' registries are on loopback and have no TLS.
    (tmp_path / "registries.conf").write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
    checkout.env |= {
        "DOCKER": "podman",
        "AWS_ENDPOINT_URL": f"http://{moto}",
        "REGISTRY": registry,
        "AWS_REGION": "eu-west-1",
        "CONTAINERS_REGISTRIES_CONF": str(tmp_path / "registries.conf"),
        "REGISTRY_AUTH_FILE": str(tmp_path / "auth.json"),
    }
    yield checkout
    label = ("--filter", f"label={checkout.label}")
    if mine := podman("image", "ls", "--all", "--quiet", "--no-trunc", *label).split():
        podman("rmi", "--force", *set(mine))


#: What the script and git need of a machine: no container engine, and no aws command line.
LAPTOP_TOOLS = (
    "bash",
    "cat",
    "cut",
    "dirname",
    "find",
    "git",
    "ls",
    "sed",
    "sh",
    "sha256sum",
    "sort",
    "xargs",
)


@dataclass
class Laptop:
    """A clone on a machine without a container engine, and its account, whose builds are played."""

    clone: Checkout
    #: The same clone on a machine with Podman.
    elsewhere: Checkout
    aws: Proxy
    builds: PlayedCodeBuild

    def push(self, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.clone.push("--codebuild", *options, **env)

    def delete(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run ``sm delete --build``."""
        command = [sys.executable, "-m", "sm.cli", "delete", "--build", *options]
        return subprocess.run(
            command, cwd=self.clone.folder.parent, capture_output=True, text=True, env=self.clone.env
        )

    def resources(self) -> dict[str, list[str]]:
        """List the account."""
        s3, iam, ecr, codebuild = (self.aws.client(name) for name in ("s3", "iam", "ecr", "codebuild"))
        buckets = [each["Name"] for each in s3.list_buckets()["Buckets"]]
        return {
            "buckets": buckets,
            "objects": [
                row["Key"] for name in buckets for row in s3.list_objects_v2(Bucket=name).get("Contents", ())
            ],
            "roles": [each["RoleName"] for each in iam.list_roles()["Roles"]],
            "projects": codebuild.list_projects()["projects"],
            "repositories": [each["repositoryName"] for each in ecr.describe_repositories()["repositories"]],
        }


@pytest.fixture
def laptop(pushing: Checkout, registry: str, tmp_path: Path) -> Iterator[Laptop]:
    """Such a machine. The builds' own machine has Podman and the aws command line."""
    tools = tmp_path / "laptop"
    tools.mkdir()
    for name in LAPTOP_TOOLS:
        (tools / name).symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    with running_proxy(Proxy()) as aws:
        path = f"{AWS_COMMAND.parent}:{os.environ['PATH']}"
        environment = machine(registry, aws.url, tmp_path / "machine", path)
        aws.codebuild = PlayedCodeBuild(aws.client, tmp_path / "builds", {**ENVIRONMENT, **environment})
        own = {
            "AWS_ENDPOINT_URL": aws.url,
            "PATH": str(tools),
            "PYTHON": sys.executable,
            "PYTHONPATH": f"{HERE}:{HERE / 'tools'}:{HERE / 'extensions'}",
            "TRIREME_CACHE": str(tmp_path / "cache"),
        }
        kept = {name: value for name, value in pushing.env.items() if name not in ("DOCKER", "REGISTRY")}
        clone = Checkout(pushing.folder, {**kept, **own}, pushing.label)
        pushing.env["REGISTRY_AUTH_FILE"] = environment["REGISTRY_AUTH_FILE"]
        try:
            yield Laptop(clone, pushing, aws, aws.codebuild)
        finally:
            aws.codebuild.close()
