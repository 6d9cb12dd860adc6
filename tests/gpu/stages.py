"""The stages of the command: each a process with a time limit, its result kept, so that a second call goes on."""

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

from bench.tree import adopting, descendants
from tests.gpu.report import markdown

Outcome = Literal["passed", "failed", "not applicable"]
#: The file with every stage's result.
RESULTS = "gpu.json"
#: Seconds that a stopped stage has to end its own processes; the box drains for up to 25.
END_GRACE_S = 30.0


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``detail`` has figures, or the reason."""

    name: str
    outcome: Outcome
    detail: str = ""


@dataclass
class Result:
    """What a stage gave: checks, and figures of any kind for the tables."""

    checks: list[Check] = field(default_factory=list)
    figures: Any = None


@dataclass(frozen=True)
class Context:
    """Where a stage works. ``work`` lasts as long as the machine; ``seconds`` is for each measurement."""

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
        """The models that the box serves: pictures go in as bytes."""
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
    """``limit_s``: seconds after which it is ended. ``makes``: a path below ``work`` that others need."""

    name: str
    run: Callable[[Context], Result]
    limit_s: float
    makes: str = ""


class Results:
    """The results so far, on disk after each stage."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.stages: dict[str, Any] = json.loads(file.read_text())["stages"] if file.is_file() else {}

    def is_done(self, stage: Stage, work: Path) -> bool:
        made = not stage.makes or (work / stage.makes).exists()
        return made and self.stages.get(stage.name, {}).get("ended") == "whole"

    def keep(self, name: str, value: dict[str, Any]) -> None:
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
    """Run what is not done and fits before ``until`` (monotonic). True if nothing is left."""
    for stage in stages:
        if results.is_done(stage, work):
            continue
        left = until - time.monotonic()
        if left < min(stage.limit_s, 60.0):
            print(f"{stage.name}: {left:.0f} s are left, which is too little; run the same command again")
            return False
        began = time.monotonic()
        print(f"{stage.name} ...", flush=True)
        value = run_one(stage.name, min(stage.limit_s, left - 5), work, arguments)
        value["seconds"] = round(time.monotonic() - began, 1)
        results.keep(stage.name, value)
        for check in value["checks"]:
            print(f"  {check['outcome']:<14} {check['name']}: {check['detail']}"[:400], flush=True)
        if stage.makes and value["ended"] != "whole":
            print(f"{stage.name} did not end well, and the rest needs it")
            return False
    return True


def run_one(name: str, limit_s: float, work: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a stage as a process of its own; what it leaves behind is killed."""
    answer, log = work / f"{name}.result.json", work / f"{name}.log"
    answer.unlink(missing_ok=True)
    how = run_limited((sys.executable, "-m", "tests.gpu", *arguments, "--stage", name), limit_s, log)
    if answer.is_file():
        return {"ended": "whole", **json.loads(answer.read_text())}
    words = log.read_text(errors="replace")[-3000:]
    return {"ended": how, "log": words, "checks": [asdict(Check(name, "failed", f"{how}: {words[-600:]}"))]}


def run_limited(command: Sequence[str], limit_s: float, log: Path) -> str:
    """Run a command for at most ``limit_s`` and say how it ended; nothing that it started is left."""
    before = set(descendants(os.getpid()))
    with adopting(), log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(limit_s)
            return f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # an exception in the stage, so that it stops what it started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_GRACE_S)
            return f"took longer than {limit_s:.0f} s"
        finally:
            # A box has a session of its own. Whoever's parent ends becomes a child of this process.
            while left := set(descendants(os.getpid())) - before:
                for pid in left:
                    _end(pid)
                process.poll()


def write_result(name: str, result: Result, work: Path) -> None:
    answer = work / f"{name}.result.json"
    partial = answer.with_suffix(".partial")
    partial.write_text(
        json.dumps({"checks": [asdict(check) for check in result.checks], "figures": result.figures})
    )
    partial.replace(answer)


def _end(pid: int) -> None:
    """Kill a process, and forget it if it is a child."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
