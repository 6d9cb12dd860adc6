"""Choose what runs a graph on this processor: ONNX Runtime or OpenVINO, and in which precision.

Copied into the model repository beside ``model.py``, so it imports nothing of the box. The candidates have an
order: that of the manifest, which a build has measured, else :func:`candidates`'. The first that answers the
golden inputs beside the graph within the tolerance is taken. It does so in a process of its own, so a crash
costs only that candidate. Nothing is timed: boxes of one kind of machine make one choice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

#: ONNX Runtime prints nothing but fatal errors: it raises the others, and its lines are not JSON.
FATAL = 4
GRAPH, WEIGHTS, GOLDEN = "model.onnx", "model.onnx.data", "golden.npz"
#: The graph in int8, in OpenVINO's form, if the build made one (``--precision int8``).
INT8_GRAPH = "model.int8.xml"
#: Where choices are kept, below the cache's folder.
KEPT = Path("engines", "cpu")
CPUINFO = Path("/proc/cpuinfo")
#: Instructions that make a precision worth trying, as /proc/cpuinfo names them on x86 and on ARM.
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
INTEL = "GenuineIntel"
INT8 = {"avx2", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}
PACKAGES = ("onnxruntime", "openvino")
MANIFEST = "manifest.json"
#: Seconds of processor time in which a candidate loads the graph and runs the golden inputs, so that a busy
#: machine decides as an idle one does; and seconds after which one that does nothing is ended.
TRIAL_CPU_S, TRIAL_TIMEOUT_S = 120, 240.0
#: Bytes that a run of a graph may take: so many, and a multiple of its files. One of a kilobyte may ask for
#: all memory.
TRIAL_BYTES, FILE_SHARE = 2**32, 4
#: The error for other answers than the golden ones, whose text says what differs.
MISMATCH = "Mismatch"
#: After an error in OpenVINO, ONNX Runtime answers for so long; compiling takes half a second.
RETRY_S = 60.0


class Candidate(NamedTuple):
    """An engine in a precision."""

    engine: str
    precision: str

    def __str__(self) -> str:
        return f"{self.engine} {self.precision}"


FP32 = Candidate("onnxruntime", "fp32")
#: The names of all, for a comparison of all that a processor can run.
ALL = (
    *("openvino int8", "openvino bf16", "onnxruntime bf16"),
    *("openvino fp32", "onnxruntime fp32"),
)


@dataclass(frozen=True)
class Wanted:
    """The engine and precision that the model's configuration and ``TRIREME_PRECISION`` allow."""

    engine: str = "auto"
    precision: str = "auto"
    #: Allowed difference of scores; of other outputs, the mean error relative to their largest number.
    tolerance: float = 0.01
    #: True if a batch's records are run one by one: the model takes batches, and Triton makes none.
    by_record: bool = False

    @classmethod
    def read(cls, config: Mapping[str, Any], environment: Mapping[str, str]) -> Wanted:
        """Read the parameters of ``config.pbtxt``; ``TRIREME_PRECISION=fp32`` overrides them."""
        said = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
        if environment.get("TRIREME_PRECISION", "").strip().lower() == "fp32":
            return cls("onnxruntime", "fp32")
        is_batch_made = "dynamic_batching" in config or "sequence_batching" in config
        return cls(
            said.get("engine", cls.engine),
            said.get("precision", cls.precision),
            float(said.get("tolerance", cls.tolerance)),
            int(config.get("max_batch_size", 0)) > 0 and not is_batch_made,
        )

    def parameters(self) -> dict[str, str]:
        """Return what differs from the defaults, for ``config.pbtxt``."""
        default = asdict(Wanted())
        return {name: str(value) for name, value in asdict(self).items() if value != default[name]}


@dataclass(frozen=True)
class Choice:
    """The engine of a model, and why it was chosen."""

    engine: str = FP32.engine
    precision: str = FP32.precision
    why: str = ""
    #: The worst difference of a score to the golden outputs; None if nothing was compared.
    difference: float | None = None
    #: Why candidates were left out, a sentence each.
    faults: tuple[str, ...] = ()
    #: True if something is missing that a faster choice needs.
    lacks: bool = False

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.engine, self.precision)

    def describe(self, model: str) -> str:
        """Return the line for the log."""
        parts = [f"{model}: {self.candidate}"]
        if self.difference is not None:
            parts.append(f"worst score difference {100 * self.difference:.1f} %")
        return "; ".join([", ".join(parts), *filter(None, (self.why, *self.faults))])


class OnnxRuntime:
    """A session with one pool of threads that sleep while there is nothing to do: models share the cores."""

    def __init__(self, graph: Path, precision: str, threads: int) -> None:
        import onnxruntime

        chosen = onnxruntime.SessionOptions()
        chosen.intra_op_num_threads = threads
        chosen.inter_op_num_threads = 1
        chosen.log_severity_level = FATAL
        chosen.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if precision == "bf16":
            chosen.add_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16", "1")
        self.session = onnxruntime.InferenceSession(str(graph), chosen, providers=["CPUExecutionProvider"])
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]

    def takes(self, wanted: Sequence[str], feed: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """True if its answer is that of fp32."""
        return True

    def run(self, wanted: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        outputs: list[Any] = self.session.run(list(wanted), dict(feed))
        return outputs


def _beside(name: str) -> Any:
    """Import what a desk puts beside golden data; it has the same in the tools."""
    is_beside = importlib.util.find_spec(name)
    return importlib.import_module(name if is_beside else f"trireme_tools.build.{name}")


def load(candidate: Candidate, graph: Path, threads: int, by_record: bool = False) -> Any:
    """Load a graph into an engine."""
    if candidate.engine == FP32.engine:
        return OnnxRuntime(graph, candidate.precision, threads)
    # The weights must lie beside the graph itself; beside a link to it they are refused.
    file = graph.resolve()
    return _beside("openvino_engine").OpenVino(
        file.with_name(INT8_GRAPH) if candidate.precision == "int8" else file,
        threads,
        in_bf16=computes_bf16(candidate.precision, processor_flags()),
        by_record=by_record,
    )


class Guarded:
    """An engine, with ONNX Runtime in fp32 for what it computes otherwise (see ``exactness.py``).

    After an error of OpenVINO in a graph with free sizes its compiled model answers every further request
    with that error. So ONNX Runtime answers for a minute, and then the graph is compiled again.
    """

    def __init__(self, candidate: Candidate, graph: Path, threads: int, by_record: bool) -> None:
        self._arguments = candidate, graph, threads, by_record
        self._engine: Any = load(*self._arguments)
        self.inputs, self.outputs = self._engine.inputs, self._engine.outputs
        self.trust = self._engine.trust
        self._fallback: OnnxRuntime | None = None
        self._retry_at = 0.0

    def run(self, wanted: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        """Run one feed. Raises what ONNX Runtime raises."""
        if self.trust.takes(wanted, feed) and self._is_ready():
            try:
                return cast(list[Any], self._engine.run(wanted, feed))
            except Exception:  # OpenVINO's own class
                self._engine, self._retry_at = None, time.monotonic() + RETRY_S
        if self._fallback is None:
            _, graph, threads, _ = self._arguments
            self._fallback = OnnxRuntime(graph, FP32.precision, threads)
        return self._fallback.run(wanted, feed)

    def _is_ready(self) -> bool:
        if self._engine is None and time.monotonic() >= self._retry_at:
            self._engine = load(*self._arguments)
        return self._engine is not None


def open_engine(choice: Choice, graph: Path, threads: int, by_record: bool = False) -> tuple[Any, Choice]:
    """Load the chosen engine; fp32 on ONNX Runtime if that fails. Return it, and what it is."""
    candidate = choice.candidate
    if candidate.engine != "openvino":
        return load(candidate, graph, threads), choice
    try:
        guarded = Guarded(candidate, graph, threads, by_record)
        faults = (
            (*choice.faults, f"{FP32.engine} computes {guarded.trust}")
            if guarded.trust.wrong
            else choice.faults
        )
        return guarded, replace(choice, faults=faults)
    except Exception as error:
        fault = f"not {candidate}: {' '.join(str(error).split())[:200]}"
        return load(FP32, graph, threads), Choice(faults=(*choice.faults, fault), lacks=True)


def processor_flags(path: Path = CPUINFO) -> frozenset[str]:
    """Return the instructions of this processor and its maker, as the kernel names them, if it does."""
    found = dict[str, str]()
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value)
    return frozenset(" ".join(found.get(name, "") for name in ("vendor_id", "flags", "Features")).split())


def fast_bf16(flags: Collection[str]) -> set[str]:
    """Return the instructions with which bf16 is faster than fp32.

    Intel's need AMX, which many virtual machines hide: with its ``avx512_bf16`` alone ResNet-50 took 1.6
    times as long as in fp32, YOLOv5s 1.7 times and BERT in batches 2.5 times (``bench/reports/speed.md``).
    """
    found = BF16 & set(flags)
    return found if INTEL not in flags or "amx_bf16" in found else found - {"avx512_bf16"}


def computes_bf16(precision: str, flags: Collection[str]) -> bool:
    """True if a graph of this precision, or what is not quantized in one of int8, computes in bf16."""
    return bool({"bf16": BF16 & set(flags), "int8": fast_bf16(flags)}.get(precision))


def versions() -> dict[str, str]:
    """Return the versions of the engines that are installed."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def candidates(
    wanted: Wanted,
    flags: Collection[str],
    installed: Collection[str],
    machine: str = platform.machine(),
    *,
    is_quantized: bool = False,
    measured: Sequence[str] = (),
) -> list[Candidate]:
    """Return what this processor can run, the one to take first in front; fp32 on ONNX Runtime is the last.

    Args:
        measured: The manifest's order, the fastest first, for example ``openvino bf16``. Without it a reduced
            precision that the processor has fast instructions for comes first: ``openvino fp32`` only if the
            configuration names OpenVINO.
    """
    is_chosen = bool(measured) or wanted.precision == "bf16"
    has_bf16 = bool(BF16 & set(flags) if is_chosen else fast_bf16(flags))
    has_int8 = is_quantized and bool(INT8 & set(flags))
    possible = [
        *([Candidate("openvino", "int8")] if has_int8 else []),
        *([Candidate("openvino", "bf16")] if has_bf16 else []),
        *([Candidate("onnxruntime", "bf16")] if has_bf16 and machine == "aarch64" else []),
        *([Candidate("openvino", "fp32")] if measured or wanted.engine == "openvino" else []),
        FP32,
    ]
    if measured:
        possible = [each for name in measured for each in possible if str(each) == name]
        possible = possible[: possible.index(FP32)] if FP32 in possible else possible
    # fp32 promises the bits of ONNX Runtime, unless another engine was named.
    engine = "onnxruntime" if (wanted.engine, wanted.precision) == ("auto", "fp32") else wanted.engine
    allowed = [
        each
        for each in possible
        if each != FP32
        and each.engine in installed
        and engine in ("auto", each.engine)
        and wanted.precision in ("auto", each.precision)
    ]
    return [*allowed, FP32]


class Chooser:
    """Chooses for one model version.

    Args:
        folder: The version folder, with the graph and the golden data.
        wanted: What is allowed.
        cache: The folder of choices; None for none.
        flags: The processor's instructions.
        installed: Versions of the engines.
    """

    def __init__(
        self,
        folder: Path,
        wanted: Wanted,
        cache: Path | None = None,
        flags: Collection[str] | None = None,
        installed: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.wanted = folder, wanted
        self.flags = processor_flags() if flags is None else flags
        self.installed = versions() if installed is None else installed
        self.measured = read_measured(folder)
        is_quantized = (folder / INT8_GRAPH).is_file()
        self.candidates = candidates(
            wanted, self.flags, self.installed, is_quantized=is_quantized, measured=self.measured
        )
        self.cache = cache

    def choose(self) -> Choice:
        """Return the choice: that of the cache, or the first candidate that answers as it should."""
        if self.wanted.precision == "fp32" and self.candidates == [FP32]:
            return Choice(why="fp32 is asked for")
        if "openvino" not in self.installed:
            return Choice(why="OpenVINO is not installed", lacks=True)
        if self.candidates == [FP32]:
            return Choice(why=self._why(FP32))
        if not (self.folder / GOLDEN).is_file():
            return Choice(why=f"there is no {GOLDEN} to compare other engines with", lacks=True)
        with self._locked():
            return self.cached() or self._try_all()

    def _why(self, candidate: Candidate) -> str:
        """Return why a candidate comes first."""
        if self.wanted.engine == candidate.engine or self.wanted.precision == candidate.precision:
            return "config.pbtxt names it"
        if self.measured:
            return "the fastest by the manifest's order"
        instructions = sorted({"bf16": BF16, "int8": INT8}.get(candidate.precision, set()) & set(self.flags))
        if instructions:
            return f"the processor has {', '.join(instructions)}"
        return "no other precision is faster on this processor"

    def cached(self) -> Choice | None:
        """Return the choice that the cache has; None if it has none, or none that can be used."""
        try:
            read = json.loads((self._file()).read_bytes())
            choice = Choice(**{**read, "faults": tuple(read["faults"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return choice if choice.candidate in self.candidates else None

    def _try_all(self) -> Choice:
        """Return the first candidate that is good, and keep the choice if another start would make it too."""
        faults: list[str] = []
        is_final = True
        for candidate in self.candidates[:-1]:
            result = self.attempt(candidate)
            if "fault" not in result:
                choice = Choice(*candidate, self._why(candidate), result["difference"], tuple(faults))
                break
            faults.append(f"not {candidate}: {result['fault']}")
            is_final = is_final and not result.get("passing")
        else:
            choice = Choice(faults=tuple(faults))
        return self._remember(choice) if is_final else choice

    def attempt(self, candidate: Candidate) -> dict[str, Any]:
        """Run the golden data on a candidate in a child.

        Returns:
            The ``difference``, or a ``fault``; ``passing`` is true if it may come from what else the machine
            does: then it is not remembered.
        """
        python = shutil.which("python3") or sys.executable
        # One thread: the order of additions, and so the last digits, would differ with their number.
        arguments = [*candidate, str(self.folder), "1", json.dumps(asdict(self.wanted))]
        try:
            # The packages of this process, also those of a model's own environment.
            child = subprocess.run(
                [python, str(Path(__file__)), *arguments],
                capture_output=True,
                timeout=TRIAL_TIMEOUT_S,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"fault": f"no result after {TRIAL_TIMEOUT_S:.0f} s", "passing": True}
        except OSError as error:
            return {"fault": f"no process to try it in ({error.strerror})", "passing": True}
        if child.returncode == -signal.SIGXCPU:
            return {"fault": f"no result after {TRIAL_CPU_S} s of processor time"}
        if child.returncode:
            # The kernel kills a process where memory is short.
            is_passing = child.returncode == -signal.SIGKILL
            fault = f"the process that tried it ended with {child.returncode}"
            return {"fault": fault, "passing": is_passing}
        try:
            result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            return {"fault": "the process that tried it said nothing"}
        return result

    def _file(self) -> Path:
        """The cache's file for this graph, this processor and these versions."""
        if self.cache is None:
            raise FileNotFoundError
        # The graph's files by size and time: reading hundreds of megabytes would cost as much as a load.
        parts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self._graph_files()]
        digest = hashlib.sha256((self.folder / GOLDEN).read_bytes()).hexdigest()
        key = [parts, digest, sorted(self.flags), dict(self.installed), asdict(self.wanted), self.measured]
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
        return self.cache / f"{name}.json"

    def _graph_files(self) -> list[Path]:
        own = (MANIFEST, GOLDEN)
        files = (path for path in self.folder.iterdir() if path.is_file() and path.suffix != ".py")
        return sorted(path for path in files if path.name not in own)

    def _remember(self, choice: Choice) -> Choice:
        """Write the choice into the cache, if it can be written."""
        with contextlib.suppress(OSError):
            file = self._file()
            staged = file.with_name(f"{file.name}.{os.getpid()}")
            staged.write_text(json.dumps(asdict(choice)))
            staged.replace(file)
        return choice

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one instance of the model choose, while the others wait for what it writes."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                file = self._file()
                file.parent.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context(file.with_suffix(".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def graph_bytes(graph: Path) -> int:
    """Return the bytes of a graph and of the weights beside it."""
    with contextlib.suppress(OSError):
        return sum(file.stat().st_size for file in graph.parent.iterdir() if file.name.startswith("model."))
    return 0


@contextlib.contextmanager
def limited_memory(size: int) -> Iterator[None]:
    """Let this process take no more than ``size`` bytes of memory beside what it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes() + size
    if soft == resource.RLIM_INFINITY or limit < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """Return the memory of this process that RLIMIT_DATA counts."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields["VmData"].split()[0])


def read_measured(folder: Path) -> tuple[str, ...]:
    """Return the manifest's order of engines, the fastest first; empty if none was measured."""
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        order = json.loads((folder / MANIFEST).read_bytes())["engines"]
        return tuple(name for name in order if name in ALL)
    return ()


def attempt(candidate: Candidate, folder: Path, threads: int, wanted: Wanted) -> dict[str, Any]:
    """Run the golden data on a candidate in this process, and compare."""
    try:
        golden = _beside("golden_answers").Golden.read(folder / GOLDEN)
        runner = load(candidate, folder / GRAPH, threads, wanted.by_record)
        worst, count = 0.0, 0
        for index, feed in enumerate(golden.feeds):
            names = [name for name in golden.answers[index] if runner.takes([name], feed)]
            outputs = dict(zip(names, runner.run(names, feed), strict=True)) if names else {}
            worst, count = max(worst, golden.compare(index, outputs, wanted.tolerance)), count + len(names)
        if not count:
            return {"fault": f"it computes none of the golden inputs as {FP32.engine} does"}
    except Exception as error:
        kind, reason = type(error).__name__, " ".join(str(error).split())[:200]
        return {"fault": reason if kind == MISMATCH else f"{kind}: {reason}"}
    return {"difference": worst}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_CPU_S, TRIAL_CPU_S + 5))  # at the second, SIGKILL
    chosen = Candidate(*sys.argv[1:3])
    allowed = Wanted(**json.loads(sys.argv[5]))
    with limited_memory(TRIAL_BYTES + FILE_SHARE * graph_bytes(Path(sys.argv[3]) / GRAPH)):
        print(json.dumps(attempt(chosen, Path(sys.argv[3]), int(sys.argv[4]), allowed)))  # noqa: T201
