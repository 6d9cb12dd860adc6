"""Stages before anything is served: the machine, the restored graphs, the built models and TensorRT plans."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench import results
from bench.contestant import MODELS
from bench.gpu import weights
from bench.gpu.stages import Check, Context, Result
from bench.gpu.unpacking import WEIGHTS
from sm import hardware
from sm.repository.manifest import Manifest
from sm.repository.plans import find_trtexec
from sm.settings import HERE
from trireme_tools.prepare.recipes import Recipe

#: Modules that the machine must have, because no wheel of the bundle brings them.
REQUIRED_MODULES = (
    *("torch", "onnx", "onnxruntime", "cv2", "numpy", "PIL", "tokenizers", "transformers"),
    *("grpc", "google.protobuf", "prometheus_client", "requests", "rich", "h11", "click", "anyio"),
)
#: For one model, including its comparison.
BUILD_TIMEOUT_S = 200


def machine(context: Context) -> Result:
    """Describe the machine and its packages."""
    import torch

    smi = ask_gpu("name,memory.total,driver_version,compute_cap")
    packages = {name: _version(name) for name in ("torch", "onnx", "onnxruntime", "numpy", "tritonclient")}
    figures = {
        "gpu": smi or "none",
        **results.machine(),
        "packages": packages,
        "cuda": torch.version.cuda,
        "precision": context.precision,
        "short": context.short,
    }
    missing = [name for name in REQUIRED_MODULES if not _is_installed(name)]
    packages_check = Check(
        "the packages that the machine must have",
        "failed" if missing else "passed",
        f"not installed: {', '.join(missing)}" if missing else "all are installed",
    )
    gpu_check = Check(
        "a GPU that torch can use",
        "passed" if context.has_gpu else "not applicable",
        smi
        or "there is no nvidia-smi or no GPU: every check runs on the CPU, and the GPU's own rows are left out",
    )
    return Result([packages_check, gpu_check], figures)


def graphs(context: Context) -> Result:
    """Restore the graphs where ``sm build-model`` looks for a recipe's result."""
    weights_by_model = {}
    for model in MODELS:
        source = context.bundle / WEIGHTS / model
        target = context.cache / "models" / model / Recipe.load(HERE / "model" / model).key
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        weights_by_model[model] = weights.DESCRIPTIONS[weights.restore(source, target / "model.onnx")]
        for path in source.iterdir():
            if path.name not in weights.PACKED_FILES:
                shutil.copy(path, target / path.name)
        (context.files / "models").mkdir(parents=True, exist_ok=True)
        link = context.files / "models" / model
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return Result([], weights_by_model)


def programs(context: Context) -> Result:
    """Build every model for the torch target twice: for the box, and for services that send float32."""
    result = Result(figures={})
    for model in MODELS:
        builds: tuple[tuple[Path, tuple[str, ...]], ...] = (
            (context.repository, ()),
            (context.plain, ("--no-uint8", "--no-compare")),
        )
        for repository, options in builds:
            if repository == context.plain and model == "bert_base":
                shutil.rmtree(repository / model, ignore_errors=True)
                shutil.copytree(context.repository / model, repository / model)
                continue
            start = time.monotonic()
            if context.short and "--no-compare" not in options:
                options = (*options, "--no-compare")
            built = Manifest.read(repository / model / "1")
            # An earlier run may have built it.
            if built is None or built.precision != context.precision:
                error = build(context, model, "torch", repository, "--precision", context.precision, *options)
            else:
                error = ""
            seconds = time.monotonic() - start
            if error:
                raise RuntimeError(f"{model}: {error}")
            if not context.has_gpu:
                _set_kind_cpu(repository / model / "config.pbtxt")
            manifest = Manifest.read(repository / model / "1")
            assert manifest is not None
            name = (
                f"{model}, torch, {context.precision}{', float32 inputs' if '--no-uint8' in options else ''}"
            )
            result.figures[name] = json.loads(manifest.model_dump_json())
            result.checks.append(
                Check(
                    f"built: {name}",
                    "passed",
                    f"{manifest.accuracy or 'not compared with its source'}; {seconds:.0f} s",
                )
            )
    return result


def plans(context: Context) -> Result:
    """Build and inspect TensorRT plans if TensorRT is installed, and check that a plan of another GPU is refused."""
    names = [f"{model}: a TensorRT plan" for model in MODELS] + [
        "a plan of another GPU is refused with a sentence"
    ]
    reason = None
    if not context.has_gpu:
        reason = "there is no GPU"
    elif not importlib.util.find_spec("tensorrt") and find_trtexec() is None:
        reason = "neither the Python package tensorrt nor trtexec is on this machine"
    if reason:
        return Result([Check(name, "not applicable", reason) for name in names])
    result, out = Result(figures={}), context.work / "plans"
    for model, name in zip(MODELS, names, strict=False):
        shapes = ("--shapes", "input_ids=1x16,4x64,8x128") if model == "bert_base" else ("--batch", "1:4:8")
        options = ("--precision", "fp16", "--timing-cache", str(context.work / "timing.cache"), *shapes)
        error = build(context, model, "tensorrt", out, *options)
        manifest = None if error else Manifest.read(out / model / "1")
        detail = error or (manifest.model_dump_json() if manifest else "no manifest")
        result.checks.append(Check(name, "failed" if error or not manifest else "passed", detail[:600]))
    result.checks.append(_check_plan_of_another_gpu(out, names[-1]))
    return result


def build(context: Context, model: str, target: str, out: Path, *options: str) -> str:
    """Run ``sm build-model``. Returns its error, or an empty string if it built the model."""
    words = ("build-model", model, "--target", target, "--out", str(out), *options)
    completed = subprocess.run(
        (sys.executable, "-m", "sm.cli", *words),
        env={**os.environ, "TRIREME_CACHE": str(context.cache)},
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_TIMEOUT_S,
    )
    return completed.stderr.strip()[-800:] if completed.returncode else ""


def _check_plan_of_another_gpu(out: Path, name: str) -> Check:
    for model in MODELS:
        file = out / model / "1" / "manifest.json"
        if not file.is_file():
            continue
        manifest = Manifest.read(file.parent)
        if manifest is None or manifest.gpu is None:
            continue
        foreign_manifest = manifest.model_copy(update={"gpu": hardware.Gpu(manifest.gpu.name, "5.2")})
        sentence = foreign_manifest.find_misfit(hardware.Hardware.find())
        return Check(
            name, "passed" if sentence and "5.2" in sentence else "failed", sentence or "it was accepted"
        )
    return Check(name, "not applicable", "no plan was built")


def _set_kind_cpu(config: Path) -> None:
    """Without a GPU, a bare Triton refuses KIND_GPU. The box itself would run the model on the CPU."""
    config.write_text(config.read_text().replace("KIND_GPU", "KIND_CPU"))


def ask_gpu(fields: str) -> str:
    """Return these fields of all GPUs, or nothing where there is none."""
    command = ("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False
