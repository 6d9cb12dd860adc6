"""Examine a client: all checks in order, with a Triton of its own or against a running box."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from sm.client.base import Client, TensorClient, Triton
from sm.commands.client_loading import NoTriton
from sm.errors import CommandError, TriremeError
from sm.plugins.checks import check
from sm.plugins.discovery import check_name
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource
from sm.settings import Settings
from trireme_tools.check import client_checks, discovery, isolated_load
from trireme_tools.check.calls import InProcessCaller, RemoteCaller
from trireme_tools.check.check_report import CheckSkipped, ClientReport, Finding
from trireme_tools.check.client_checks import CheckFailed, Sample
from trireme_tools.check.discovery import choose_models, find_box_clients
from trireme_tools.check.recording_triton import RecordingTriton
from trireme_tools.check.triton_server import triton

LOADS, NAMES, GOLDEN, UNTOUCHED = "loads alone", "names and shapes", "golden answer", "its input"
MUTATED, THREADS, MEMORY = "mutated payloads", "threads", "memory"
#: The note on checks that need the client in this process.
NEEDS_PROCESS = "checked without --url only: it needs the client in this process"


@dataclass(frozen=True)
class Examination:
    """One examination. ``note`` is called with each finding."""

    source: ClientSource
    settings: Settings
    note: Callable[[Finding], None]

    def run(self, url: str | None = None) -> ClientReport:
        """Make all checks; the rest is skipped if the client does not load."""
        report = ClientReport(self.source.name)
        for finding in self._findings(report, url):
            report.findings.append(finding)
            self.note(finding)
        return report

    def _findings(self, report: ClientReport, url: str | None) -> Iterator[Finding]:
        sample = Sample.of(self.source.file.parent / "sample")
        loading = run_check(LOADS, self._check_loading)
        yield loading
        if not loading.passed:
            yield Finding(NAMES, None, "not checked: the client does not load")
            return
        client = load(self.source, cast("Triton", NoTriton()), self.source.file.parent)
        if url:
            yield from self._check_remote(client, sample, report, url.rstrip("/"))
        else:
            yield from self._check_in_process(client, sample, report)

    def _check_loading(self) -> str:
        problem = isolated_load.find_problem(self.source)
        if problem:
            raise CheckFailed(problem)
        return "with no Triton and no network"

    def _check_in_process(self, client: Client, sample: Sample, report: ClientReport) -> Iterator[Finding]:
        repository = choose_models(self.source, client, self.settings)
        with triton(client.required_models(), repository, self.settings) as transport:
            recording = RecordingTriton(transport)
            recorded_client = load(self.source, recording, repository)
            if isinstance(client, TensorClient) and isinstance(recorded_client, TensorClient):
                recorded_client.model = client.model
            caller = InProcessCaller(recorded_client)
            tensors = run_check(NAMES, lambda: self._check_tensors(caller, recording, sample))
            yield tensors
            if not tensors.passed:
                return
            yield run_check(GOLDEN, lambda: client_checks.check_golden(caller, sample))
            yield run_check(UNTOUCHED, lambda: client_checks.check_payload_unchanged(caller.client, sample))
            yield run_check(MUTATED, lambda: client_checks.check_mutations(caller, caller.client, sample))
            yield run_check(THREADS, lambda: client_checks.check_threads(caller, sample))
            yield run_check(MEMORY, lambda: client_checks.check_memory(caller, recording, sample))
            report.stages = client_checks.measure_stages(caller, recording, sample)

    def _check_tensors(self, caller: InProcessCaller, recording: RecordingTriton, sample: Sample) -> str:
        for model in caller.client.required_models():
            for sentence in client_checks.find_mismatches(caller.client, recording.metadata(model)):
                raise CheckFailed(sentence)
        check_name(caller.client, self.source, find_box_clients(self.settings))
        check(caller.client, self.source, recording)
        return client_checks.check_tensors(caller, recording, sample)

    def _check_remote(
        self, client: Client, sample: Sample, report: ClientReport, url: str
    ) -> Iterator[Finding]:
        caller = RemoteCaller(url, client.name)
        tensors = run_check(NAMES, lambda: _check_remote_tensors(client, url))
        yield tensors
        if not tensors.passed:
            return
        yield run_check(GOLDEN, lambda: client_checks.check_golden(caller, sample))
        yield Finding(UNTOUCHED, None, NEEDS_PROCESS)
        yield run_check(MUTATED, lambda: client_checks.check_mutations(caller, client, sample))
        yield run_check(THREADS, lambda: client_checks.check_threads(caller, sample))
        yield Finding(MEMORY, None, NEEDS_PROCESS)
        report.stages = client_checks.mean_milliseconds(
            caller, sample, lambda: discovery.stages(url, client.name)
        )


def _check_remote_tensors(client: Client, url: str) -> str:
    if isinstance(client, TensorClient):
        client.model = discovery.model_of(url, client.name) or client.model
    for model in client.required_models():
        for sentence in client_checks.find_mismatches(client, discovery.metadata(url, model)):
            raise CheckFailed(sentence)
    return f"what it names is what {', '.join(client.required_models()) or 'no model'} has"


def run_check(name: str, ask: Callable[[], str]) -> Finding:
    """Return the finding of one check, even if it raises."""
    began = time.monotonic()
    passed: bool | None
    try:
        passed, sentence = True, ask()
    except CheckSkipped as skipped:
        passed, sentence = None, str(skipped)
    except (CheckFailed, CommandError) as broken:
        passed, sentence = False, str(broken)
    except TriremeError as error:
        passed, sentence = False, error.sentence
    return Finding(name, passed, sentence, time.monotonic() - began)
