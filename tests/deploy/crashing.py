"""``sm`` in processes that can be killed. They are forked from one that has boto3 loaded: it saves seconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.process import BaseProcess

import boto3

from sm import cli
from sm.deploy import command
from tests.deploy.proxy import Proxy

SESSION = boto3.Session()
for service in ("s3", "sagemaker", "application-autoscaling", "cloudwatch", "ecr", "iam", "logs", "sts"):
    SESSION._session.get_service_model(service)


def run(words: tuple[str, ...], env: dict[str, str]) -> None:
    os.environ.update(env)
    sys.argv = ["sm", *words]
    command.aws.session = lambda region, profile: SESSION  # type: ignore[assignment]
    sys.exit(cli.main())


def killed_after_each_change(proxy: Proxy, env: dict[str, str], *words: str) -> list[str]:
    """Run it until it is not killed any more: once after each kind of change. The changes, in order."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    seen: list[str] = []
    while True:
        process: BaseProcess = context.Process(target=run, args=(words, env))
        proxy.kill, before = process.kill, len(proxy.killed)
        process.start()
        process.join(60)
        proxy.kill = None
        if process.exitcode == 0:
            return seen
        assert process.exitcode == -9 and len(proxy.killed) == before + 1, process.exitcode
        seen.append(proxy.changes[-1])
