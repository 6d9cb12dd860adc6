"""What a command line says of a model's process, and which load has failed when a process is dead."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from sm.model_processes.search import DEAD_GRACE_S, ImportWatch, Load, ModelProcess, ModelProcesses

REPOSITORY = Path("/run/models")
SCRIPT = "/run/models/cat/1/model.py"


@pytest.mark.parametrize(
    ("arguments", "model", "instance", "serves"),
    [
        (["stub", SCRIPT, "shm-1", "16", "9", "cat_0_0", ""], "cat", "cat_0_0", True),
        # A group of instances may have a name of its own.
        (["stub", SCRIPT, "shm-1", "16", "9", "group_0", ""], "cat", "", True),
        # It reads the configuration.
        (["stub", SCRIPT, "shm-1", "16", "9", "cat", ""], "cat", "", False),
        # A shell that will be the process of an instance.
        (["bash", "-c", f"export X=y; exec stub {SCRIPT} shm-1 cat_0_0"], "cat", "", False),
        (["tritonserver", "--model-repository=/run/models"], "", "", False),
        (["stub", "/run/other/cat/1/model.py", "cat_0_0"], "", "", False),
        ([""], "", "", False),
    ],
)
def test_a_command_line_names_its_model(arguments: Any, model: str, instance: str, serves: bool) -> None:
    process = ModelProcess(7, 1.0)
    process.identify(arguments, REPOSITORY)
    assert (process.model, process.instance, process.serves) == (model, instance, serves)
    # A shell becomes the process of an instance.
    process.identify(["stub", SCRIPT, "cat_0_0"], REPOSITORY)
    assert (process.model, process.serves) == ("cat", True)


class Watching(ModelProcesses):
    """A watch whose clock, dead processes and recorded models a test sets, in place of the kernel's."""

    dead: list[ModelProcess] = []
    recorded_models: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.now, self.scores = 100.0, list[tuple[set[str], int]]()
        self.import_watch = ImportWatch(self, lambda: self.now)

    def set_oom_score(self, models: Collection[str], score: int) -> None:
        self.scores.append((set(models), score))

    def load(self, model: str, began: float = 10.0) -> Load:
        load = Load(frozenset({model}), began)
        self.import_watch.begin(load)
        return load

    def judge_after(self, seconds: float) -> None:
        self.now += seconds
        self.import_watch.judge()


def dead_process(pid: int, model: str = "", ending: str = "exit code 3", born: float = 20.0) -> ModelProcess:
    return ModelProcess(pid, born, model, ending=ending, dead_since=100.0)


def test_only_the_load_whose_process_died_fails() -> None:
    box = Watching()
    box.dead = [dead_process(8, "one")]
    one, two = box.load("one"), box.load("two")
    box.judge_after(DEAD_GRACE_S / 2)
    assert not one.failure
    box.judge_after(DEAD_GRACE_S)
    assert one.failure
    assert not two.failure
    # The same dead process fails neither the next load of that name nor another one.
    box.import_watch.end(one)
    again = box.load("one", 30.0)
    box.judge_after(DEAD_GRACE_S)
    assert (again.failure, two.failure) == ("", "")


def test_unknown_dead_processes_fail_the_loads_in_whose_order_they_began() -> None:
    box = Watching()
    one, two = box.load("one"), box.load("two", 11.0)
    box.dead = [dead_process(8)]
    box.judge_after(DEAD_GRACE_S)
    assert (one.failure, two.failure) == ("", ""), "it may be of either"
    box.dead = [dead_process(9, ending="signal 11 (SIGSEGV)", born=21.0), dead_process(8)]
    box.judge_after(DEAD_GRACE_S)
    assert "exit code 3" in one.failure
    box.import_watch.end(one)
    box.judge_after(0)
    assert "SIGSEGV" in two.failure


def test_an_unknown_dead_process_fails_the_only_load_without_a_recorded_one() -> None:
    box = Watching()
    box.dead, box.recorded_models = [dead_process(8)], frozenset({"two"})
    one, two = box.load("one"), box.load("two", 11.0)
    box.judge_after(DEAD_GRACE_S)
    assert one.failure
    assert not two.failure


def test_a_model_is_the_first_that_the_kernel_kills_while_it_is_loaded() -> None:
    box = Watching()
    load = box.load("one")
    box.judge_after(0)
    assert box.scores == [({"one"}, 1000)]
    box.import_watch.end(load)
    assert box.scores[1:] == [({"one"}, 500)]
