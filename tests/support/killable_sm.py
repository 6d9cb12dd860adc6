"""Run ``sm`` in processes that a test can kill. They are forked from a parent that has loaded boto3, to save time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import boto3

from sm import cli
from sm.settings import HERE
from tests.support.aws_proxy import Proxy
from trireme_tools import aws
from trireme_tools.deploy import deploy_commands as command

LOADED = command  # imported here so that the parent loads it once
SERVICES = ("s3", "sagemaker", "application-autoscaling", "cloudwatch", "ecr", "iam", "logs", "sts")
KEYS = ("aws_access_key_id", "aws_secret_access_key")


def main() -> None:
    """Read commands from standard input. For each, print the child's process id, then its exit code."""
    session = boto3.Session()
    for service in SERVICES:  # loads the services' descriptions into the session
        session.client(service, "eu-west-1", endpoint_url="http://127.0.0.1:1", **dict.fromkeys(KEYS, "x"))
    for line in sys.stdin:
        words, env = json.loads(line)
        if not (child := os.fork()):
            run(session, words, env)
        tell(child)
        tell(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def tell(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def run(session: boto3.Session, words: list[str], env: dict[str, str]) -> None:
    os.environ.update(env)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = ["sm", *words]
    aws.session = lambda region=None, profile=None: session
    os._exit(cli.main())


class Runner:
    """Sends commands to the parent process."""

    def __init__(self, parent: subprocess.Popen[str], proxy: Proxy, env: dict[str, str]) -> None:
        self._parent, self._proxy, self._env = parent, proxy, env

    def killed_after_each_change(self, *words: str) -> list[str]:
        """Run a command again and again, killing it after each kind of change, until it ends by itself.

        Returns:
            The changes after which it was killed, in order.
        """
        seen: list[str] = []
        while code := self._run(words):
            assert code == -signal.SIGKILL, code
            seen.append(self._proxy.changes[-1])
        return seen

    def _run(self, words: tuple[str, ...]) -> int:
        known, child = Event(), 0

        def kill() -> None:
            assert known.wait(10)
            os.kill(child, signal.SIGKILL)

        self._proxy.after_change = kill
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([words, self._env]) + "\n")
        self._parent.stdin.flush()
        child = int(self._parent.stdout.readline())
        known.set()
        code = int(self._parent.stdout.readline())
        self._proxy.after_change = None
        return code


@contextmanager
def runner(proxy: Proxy, env: dict[str, str]) -> Iterator[Runner]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tests.support.killable_sm"]
    with subprocess.Popen(command, cwd=HERE, stdin=pipe, stdout=pipe, text=True) as parent:
        yield Runner(parent, proxy, env)


if __name__ == "__main__":
    main()
