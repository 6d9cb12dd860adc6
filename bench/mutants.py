"""How many small faults in the modules that matter most do their fast tests find?

    python -m venv build/mutants && build/mutants/bin/pip install 'cosmic-ray>=8.7,<9'
    build/mutants/bin/python bench/mutants.py [--faults 15] [MODULE ...]

cosmic-ray changes one operator, number or keyword of a module at a time, and runs the tests below. The sample
is the same for the same module: a changed module has another one. The working tree is changed while it runs,
and put back.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

#: Tests without a box, by module. A fault that only a box's tests find counts as not found.
TESTS = {
    "sm/router/request_flow.py": "tests/unit/router",
    "sm/router/admission.py": "tests/unit/router",
    "sm/model_processes/answer_guard.py": "tests/unit/model_processes tests/unit/triton/test_calls.py",
    "sm/triton/calls.py": "tests/unit/triton/test_calls.py",
    "sm/triton/retries.py": "tests/unit/triton/test_calls.py tests/unit/triton/test_triton_errors.py",
    "sm/triton/region_pool.py": "tests/unit/triton/test_region_pool.py",
    "sm/triton/wire.py": "tests/unit/triton/test_hpack.py tests/integration/triton/test_wire_against_h2.py",
    "sm/server/supervisor/process_manager.py": "tests/unit/server/supervisor",
    "extensions/trireme_extensions/convert/onnx_cpu/engines.py": (
        "tests/unit/extensions/convert/test_engine_choice.py"
    ),
    "sm/client/batches.py": "tests/unit/client/test_batches.py tests/unit/router/test_dispatch.py",
    "sm/server/access/keys.py": "tests/integration/access/test_keys.py",
}
CONFIGURATION = """[cosmic-ray]
module-path = "{module}"
timeout = 180.0
excluded-modules = []
test-command = "{python} -m pytest -x -q -p no:cacheprovider {tests}"
[cosmic-ray.distributor]
name = "local"
"""
#: Operators whose faults change nothing that runs: annotations (`X | None`), decorators for type checkers,
#: and `is` for `==` of the same enumeration.
SILENT = (
    "core/ReplaceBinaryOperator_BitOr_%",
    "core/RemoveDecorator",
    "core/ReplaceComparisonOperator_%Eq_Is%",
)


def try_faults(module: str, faults: int, python: str, folder: Path) -> tuple[int, int, list[str]]:
    """Return how many of ``faults`` sampled ones were found, how many were tried, and the others' places."""
    name = module.replace("/", "_")
    configuration, session = folder / f"{name}.toml", folder / f"{name}.sqlite"
    configuration.write_text(CONFIGURATION.format(module=module, python=python, tests=TESTS[module]))
    tool = str(Path(sys.executable).with_name("cosmic-ray"))
    subprocess.run([tool, "init", str(configuration), str(session)], check=True)
    with contextlib.closing(sqlite3.connect(session)) as database, database:
        for operator in SILENT:
            database.execute(
                "delete from work_items where job_id in"
                " (select job_id from mutation_specs where operator_name like ?)",
                [operator],
            )
        jobs = sorted(
            database.execute(
                "select start_pos_row, start_pos_col, operator_name, occurrence, mutation_specs.job_id"
                " from mutation_specs join work_items using (job_id)"
            )
        )
        sample = {job[-1] for job in random.Random(module).sample(jobs, min(faults, len(jobs)))}
        for *_, job in jobs:
            if job not in sample:
                database.execute("delete from work_items where job_id = ?", [job])
        database.execute("delete from mutation_specs where job_id not in (select job_id from work_items)")
    subprocess.run([tool, "exec", str(configuration), str(session)], check=True)
    with contextlib.closing(sqlite3.connect(session)) as database:
        rows = list(
            database.execute(
                "select test_outcome, operator_name, start_pos_row"
                " from work_results join mutation_specs using (job_id)"
            )
        )
    left = [f"{module}:{row} {operator}" for outcome, operator, row in rows if outcome == "SURVIVED"]
    return len(rows) - len(left), len(rows), sorted(left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", default=list(TESTS), metavar="MODULE")
    parser.add_argument("--faults", type=int, default=15, help="how many for each module")
    parser.add_argument("--python", default=".venv/bin/python", help="the interpreter of the tests")
    options = parser.parse_args()
    all_found = all_tried = 0
    with tempfile.TemporaryDirectory() as folder:
        for module in options.modules:
            found, tried, left = try_faults(module, options.faults, options.python, Path(folder))
            all_found, all_tried = all_found + found, all_tried + tried
            print(f"{module:45} {found:3} of {tried}", *left, sep="\n    ", flush=True)
    print(f"{'all':45} {all_found:3} of {all_tried}")


if __name__ == "__main__":
    main()
