"""The stages of the command. Each runs as a process with a time limit and saves its result for the next run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.gpu.report import markdown
from bench.tree import adopting, descendants

Outcome = Literal["passed", "failed", "not applicable"]
#: The file with the results of all stages.
RESULTS = "gpu.json"
#: For a stopped stage to end its own processes: a box drains for up to 25 s.
END_GRACE_S = 30.0


@dataclass(frozen=True)
class Check:
    """One check of a stage. ``detail`` has figures, or the reason."""

    name: str
    outcome: Outcome
    detail: str = ""


@dataclass
class Result:
    """The result of a stage: checks, and figures of any kind for the tables."""

    checks: list[Check] = field(default_factory=list)
    figures: Any = None


@dataclass(frozen=True)
class Context:
    """The folders and options of a stage. ``seconds`` is the length of each measurement."""

    bundle: Path
    work: Path
    out: Path
    short: bool
    seconds: float
    precision: str
    has_gpu: bool

    @property
    def cache(self) -> Path:
        return self.work / "cache"

    @property
    def repository(self) -> Path:
        """The models that the box serves. They take pictures as uint8."""
        return self.work / "repository"

    @property
    def plain(self) -> Path:
        """The same models for services that send float32."""
        return self.work / "plain"

    @property
    def files(self) -> Path:
        return self.work / "files"


@dataclass(frozen=True)
class Stage:
    """``limit_s`` is its time limit; ``makes`` is a path below ``work`` that later stages need."""

    name: str
    run: Callable[[Context], Result]
    limit_s: float
    makes: str = ""


class Results:
    """The results so far, written to disk after each stage."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.stages: dict[str, Any] = json.loads(file.read_text())["stages"] if file.is_file() else {}

    def is_done(self, stage: Stage, work: Path) -> bool:
        has_output = not stage.makes or (work / stage.makes).exists()
        return has_output and self.stages.get(stage.name, {}).get("ended") == "whole"

    def save(self, name: str, value: dict[str, Any]) -> None:
        self.stages[name] = value
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps({"stages": self.stages}, indent=1))
        partial.replace(self.file)
        self.file.with_suffix(".md").write_text(markdown(self.stages))

    @property
    def checks(self) -> list[dict[str, str]]:
        return [check for stage in self.stages.values() for check in stage.get("checks", ())]


def run_all(
    stages: Sequence[Stage], results: Results, work: Path, arguments: Sequence[str], until: float
) -> bool:
    """Run the stages that are not done and fit before ``until`` (monotonic). True if all are done."""
    for stage in stages:
        if results.is_done(stage, work):
            continue
        left_s = until - time.monotonic()
        if left_s < min(stage.limit_s, 60.0):
            print(f"{stage.name}: {left_s:.0f} s are left, which is too little; run the same command again")
            return False
        start = time.monotonic()
        print(f"{stage.name} ...", flush=True)
        value = run_one(stage.name, min(stage.limit_s, left_s - 5), work, arguments)
        value["seconds"] = round(time.monotonic() - start, 1)
        results.save(stage.name, value)
        for check in value["checks"]:
            print(f"  {check['outcome']:<14} {check['name']}: {check['detail']}"[:400], flush=True)
        if stage.makes and value["ended"] != "whole":
            print(f"{stage.name} did not end well, and the rest needs it")
            return False
    return True


def run_one(name: str, limit_s: float, work: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a stage as a process of its own, and kill what it leaves behind."""
    result_file, log = work / f"{name}.result.json", work / f"{name}.log"
    result_file.unlink(missing_ok=True)
    ending = run_limited((sys.executable, "-m", "bench.gpu", *arguments, "--stage", name), limit_s, log)
    if result_file.is_file():
        return {"ended": "whole", **json.loads(result_file.read_text())}
    log_tail = log.read_text(errors="replace")[-3000:]
    return {
        "ended": ending,
        "log": log_tail,
        "checks": [asdict(Check(name, "failed", f"{ending}: {log_tail[-600:]}"))],
    }


def run_limited(command: Sequence[str], limit_s: float, log: Path) -> str:
    """Run a command for at most ``limit_s``, and kill everything that it started. Returns how it ended."""
    descendants_before = set(descendants(os.getpid()))
    with adopting(), log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(limit_s)
            return f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # raises in the stage, which then stops what it started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_GRACE_S)
            return f"took longer than {limit_s:.0f} s"
        finally:
            # A box has its own session. A process whose parent ends becomes a child of this one.
            while left := set(descendants(os.getpid())) - descendants_before:
                for pid in left:
                    _end(pid)
                process.poll()


def write_result(name: str, result: Result, work: Path) -> None:
    result_file = work / f"{name}.result.json"
    partial = result_file.with_suffix(".partial")
    partial.write_text(
        json.dumps({"checks": [asdict(check) for check in result.checks], "figures": result.figures})
    )
    partial.replace(result_file)


def _end(pid: int) -> None:
    """Kill a process, and reap it if it is a child."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
