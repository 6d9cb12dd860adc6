"""The list of skips that CI accepts. Any other skipped test fails CI."""

from __future__ import annotations

from collections.abc import Mapping

#: The beginning of a skip's reason, and why CI may skip the test.
KNOWN_SKIPS = {
    "torch, scikit-learn and XGBoost are not installed": "1 GB of libraries; make test-all runs these tests",
    "torch and transformers are not installed": "1 GB of libraries; make test-all runs the recipe",
    "torch==": "6 GB of other systems; make test-all compares answers with theirs",
    "torch, transformers and Ultralytics cannot be installed": "machines without a network or torch's wheels",
    "torch is not installed": "1 GB; the exporting tests run where a team has it",
    "torchvision is not installed": "needs torch",
    "the wheel's stubs lose strings on NumPy 2": "a defect of that wheel; the test runs with NumPy 1",
    "this Triton's stub takes any NumPy": "only the wheel's needs NumPy 1, and Python 3.13 has no wheel of that",
    "there is no debian-host here": "it makes fresh Debian roots; test.yml has the same in containers",
    "this machine has a GPU": "the test describes a machine without one",
    "this machine has one file system only": "needs two file systems",
    "promtool is not installed": "Debian's package prometheus; .ci/run installs it where it can",
    "there is no node here": "CI machines without Node.js",
    "there is no podman": "CI machines without a container host",
    "no Podman here": "CI machines without a container host",
    "there is no localhost/lab/tritonserver": "machines that cannot make a stand-in for NVIDIA's image",
    "there is no localhost/debian-arm64": "machines that do not emulate arm64",
    "not there: ": "tests/contract on a container of others; our own boxes must have every row",
    "could not be asked: ": "the same, where the container does not say enough of itself",
}


def unknown_skips(reasons: Mapping[str, str]) -> dict[str, str]:
    """Return the skipped tests, by node id, whose reason is not in the list."""
    return {test: reason for test, reason in reasons.items() if not reason.startswith(tuple(KNOWN_SKIPS))}
