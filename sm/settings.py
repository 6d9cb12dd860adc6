"""All settings: one table, read once from the environment into one frozen object.

Names beginning with ``SAGEMAKER_`` are the contract of the platform and of its other containers;
``TRIREME_`` names are this box's own. Where two names mean one thing, the first that is set wins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from sm.errors import StartError
from sm.values import (
    arguments,
    buckets,
    choice,
    folders,
    number,
    origins,
    port_range,
    script,
    shown,
    strategy,
    truth,
    verbosity,
)

HERE = Path(__file__).resolve().parent.parent
#: The largest body in MiB, and the same in batch transform.
PAYLOAD_MB, BATCH_PAYLOAD_MB = 25.0, 100.0
#: In MiB what "of any size", as batch transform's 0 has it, means here.
LARGEST_MB = 2048.0
#: Seconds: what the platform gives an invocation of batch transform.
BATCH_TIMEOUT = 3600.0
#: Records of one request in batch transform, where a body of 100 MiB may be all short lines.
BATCH_MAX_RECORDS = 10_000_000
#: The toolkit's own default for a user's script.
PROGRAM = "inference.py"
T = TypeVar("T")


def setting(names: str, read: Callable[[str], T], default: T, help_text: str) -> T:
    """One row of the table. A default of None or an empty tuple may be worked out at start."""
    row = {"names": tuple(names.split()), "read": read, "help": help_text}
    return field(default=default, metadata=row)


def cores() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Settings:
    """What the box runs with. Build one with :meth:`read`."""

    port: int = setting("SAGEMAKER_BIND_TO_PORT", number(1, 65535), 8080, "The one public port.")
    safe_ports: tuple[int, int] | None = setting(
        "SAGEMAKER_SAFE_PORT_RANGE", port_range, None, "A-B: Triton's ports are drawn from it."
    )
    ping_mode: str = setting(
        "SAGEMAKER_TRITON_OVERRIDE_PING_MODE",
        choice("ready", "live"),
        "",
        "What /ping asks of Triton: that all models are ready, or that it lives; live in multi-model mode, "
        "ready otherwise, if not set.",
    )
    repository: Path | None = setting(
        "TRIREME_MODEL_REPOSITORY",
        Path,
        None,
        "Triton's model repository; if not set, /opt/ml/model, or where that is empty the image's own.",
    )
    clients: tuple[Path, ...] = setting(
        "TRIREME_CLIENTS", folders, (HERE / "clients",), "Folders of client plugins, separated by colons."
    )
    broken_clients: str = setting(
        "TRIREME_BROKEN_CLIENTS",
        choice("stop", "skip"),
        "stop",
        "A client that cannot load stops the start, or is left out and reported.",
    )
    multi_model: bool = setting(
        "SAGEMAKER_MULTI_MODEL",
        truth,
        False,
        "Multi-model mode: start with no model; POST /models loads, DELETE /models/<name> unloads.",
    )
    archives: Path = setting(
        "TRIREME_MODEL_ARCHIVES",
        Path,
        Path("/opt/ml/models"),
        "Multi-model mode: archives are loaded from below this folder only.",
    )
    disable_namespacing: bool = setting(
        "SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING",
        truth,
        False,
        "Multi-model mode: a model whose name in Triton is taken is a 409, instead of getting another name.",
    )
    load_gpu_limit: float | None = setting(
        "SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT",
        number(0, 1, float),
        None,
        "Multi-model mode: no model is loaded while more than this fraction of a GPU's memory is in use.",
    )
    default_model: str = setting(
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
        str,
        "",
        "The model of a request that names none; the sole one if not set.",
    )
    workers: int = setting(
        "SAGEMAKER_MODEL_SERVER_WORKERS MODEL_SERVER_WORKERS",
        number(1, 256),
        0,
        "Router processes; one per core if not set.",
    )
    threads: int = setting("TRIREME_THREADS", number(1, 256), 8, "Threads of each router process.")
    queue: int = setting(
        "TRIREME_QUEUE",
        number(0, 100_000),
        32,
        "Invocations that may wait beyond the threads; further ones get 429.",
    )
    receive_timeout: float = setting(
        "TRIREME_RECEIVE_TIMEOUT",
        number(1, 3600, float),
        10.0,
        "Seconds for a request's head to arrive, and then for each further piece of its body; a connection "
        "that is slower is closed.",
    )
    timeout: float = setting(
        "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS SAGEMAKER_MODEL_SERVER_TIMEOUT MODEL_SERVER_TIMEOUT",
        number(0.1, 86400, float),
        60.0,
        "Seconds an invocation may take, at the front and behind; in batch transform 3600 if not set.",
    )
    batch: bool = setting(
        "SAGEMAKER_BATCH", truth, False, "Batch transform: larger bodies and more time, unless those are set."
    )
    batch_strategy: str = setting(
        "SAGEMAKER_BATCH_STRATEGY",
        strategy,
        "",
        "Whether batch transform sends many records at a time; shown by /execution-parameters if set.",
    )
    max_transforms: int = setting(
        "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS",
        number(0, 100_000),
        0,
        "Requests that batch transform sends at once, one a thread if not set: see /execution-parameters.",
    )
    stream_timeout: float = setting(
        "TRIREME_STREAM_TIMEOUT",
        number(0.1, 86400, float),
        480.0,
        "Seconds a streamed answer may take; no less than any other.",
    )
    startup_timeout: int = setting(
        "SAGEMAKER_STARTUP_TIMEOUT", number(1, 3600), 480, "Seconds Triton may take to load the models."
    )
    drain: float = setting(
        "TRIREME_DRAIN_SECONDS",
        number(0, 3600, float),
        25.0,
        "Seconds running invocations get after SIGTERM.",
    )
    max_payload_mb: float | None = setting(
        "SAGEMAKER_MAX_PAYLOAD_IN_MB",
        number(0, 2048, float),
        None,
        "The largest body in MiB, over it is 413; 25, in batch transform 100, if not set; with 0, 2048.",
    )
    max_request_size: int | None = setting(
        "SAGEMAKER_MAX_REQUEST_SIZE",
        number(1, 2**31),
        None,
        "The largest body in bytes; wins over the one in MiB.",
    )
    max_records: int = setting(
        "TRIREME_MAX_RECORDS",
        number(1, 10**9),
        100_000,
        "Records or JSON lines in one request, over it is 413; in batch transform 10000000 if not set.",
    )
    decode_memory_mb: float | None = setting(
        "TRIREME_DECODE_MEMORY_MB",
        number(1, 2**20, float),
        None,
        "MiB of memory for decoded pictures and large JSON in each worker; a quarter of the memory divided "
        "among the workers, at least 256, if not set.",
    )
    default_accept: str = setting(
        "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT",
        str,
        "application/json",
        "The answer's type for a request that accepts anything.",
    )
    program: str = setting(
        "SAGEMAKER_PROGRAM",
        script,
        PROGRAM,
        "The script with model_fn and the other functions of the SageMaker inference toolkit, in code/.",
    )
    submit_directory: Path | None = setting(
        "SAGEMAKER_SUBMIT_DIRECTORY",
        Path,
        None,
        "The script's folder; code/ beside the models if not set or not there.",
    )
    install_requirements: bool = setting(
        "TRIREME_INSTALL_REQUIREMENTS",
        truth,
        False,
        "Install code/requirements.txt at start: from code/wheels where it is there, else as pip is set up.",
    )
    sessions: bool = setting(
        "SAGEMAKER_ENABLE_STATEFUL_SESSIONS", truth, False, "Stateful sessions: see docs/run/platform.md."
    )
    sessions_expiration: float = setting(
        "SAGEMAKER_SESSIONS_EXPIRATION", number(1, 31_536_000, float), 1200.0, "Seconds that a session lasts."
    )
    sessions_path: Path | None = setting(
        "SAGEMAKER_SESSIONS_PATH",
        Path,
        None,
        "Where sessions are kept; in /dev/shm, removed with the box, if not set.",
    )
    max_sessions: int = setting(
        "TRIREME_MAX_SESSIONS",
        number(1, 1_000_000),
        10_000,
        "Sessions that may be open at once; another is a 429 until one is closed or expires.",
    )
    s3_buckets: tuple[str, ...] = setting(
        "TRIREME_S3_BUCKETS",
        buckets,
        (),
        "Buckets that payloads may be read from and results written to: name or name/prefix, commas between.",
    )
    s3_threads: int = setting(
        "TRIREME_S3_THREADS",
        number(1, 256),
        16,
        "Requests with payloads or results in S3 that each router process serves at once, on threads of "
        "their own; further ones get 429.",
    )
    s3_timeout: float = setting(
        "TRIREME_S3_TIMEOUT",
        number(0.1, 86400, float),
        30.0,
        "Seconds that S3 may take for one object, within the invocation's time; then 503.",
    )
    local_endpoints: bool = setting(
        "TRIREME_LOCAL_ENDPOINTS",
        truth,
        True,
        "Serve /endpoints/<name>/invocations, as boto3 asks with endpoint_url.",
    )
    shared_memory: bool = setting(
        "TRIREME_SHARED_MEMORY", truth, True, "Send large tensors through shared memory."
    )
    shared_memory_mb: float | None = setting(
        "TRIREME_SHARED_MEMORY_MB",
        number(1, 2**20, float),
        None,
        "Shared memory for tensors in MiB, all workers; a third of what /dev/shm has free if not set.",
    )
    triton_ports: str = setting(
        "TRIREME_TRITON_PORTS",
        choice("off", "loopback", "all"),
        "off",
        "Triton's own HTTP, gRPC and metrics on 8000, 8001 and 8002: on loopback, or on all addresses.",
    )
    triton_http_port: int = setting(
        "SAGEMAKER_TRITON_HTTP_PORT",
        number(1, 65535),
        0,
        "Triton's HTTP port; if not set 8000 with TRIREME_TRITON_PORTS, else a free one on loopback.",
    )
    triton_grpc_port: int = setting(
        "SAGEMAKER_TRITON_GRPC_PORT",
        number(1, 65535),
        0,
        "Triton's gRPC port; if not set 8001 where it is open to callers, else a free one on loopback.",
    )
    allow_grpc: bool = setting(
        "SAGEMAKER_TRITON_ALLOW_GRPC", truth, False, "Open Triton's gRPC port to callers from outside."
    )
    triton_metrics_port: int = setting(
        "SAGEMAKER_TRITON_METRICS_PORT",
        number(1, 65535),
        0,
        "Triton's metrics port; if not set 8002 where it is open to callers, else a free one on loopback.",
    )
    allow_metrics: bool = setting(
        "SAGEMAKER_TRITON_ALLOW_METRICS", truth, False, "Open Triton's metrics port to callers from outside."
    )
    inference_type: str = setting(
        "SAGEMAKER_TRITON_INFERENCE_TYPE",
        choice("infer", "generate", "generate_stream"),
        "infer",
        "What Triton does with a JSON body on /invocations that is for no client.",
    )
    triton_threads: int = setting(
        "SAGEMAKER_TRITON_THREAD_COUNT", number(1, 1024), 8, "Triton's HTTP threads."
    )
    triton_copy_threads: int = setting(
        "SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT",
        number(0, 1024),
        0,
        "Threads of Triton that copy tensors.",
    )
    triton_log_verbose: int = setting("SAGEMAKER_TRITON_LOG_VERBOSE", verbosity, 0, "Triton's verbosity.")
    triton_log_info: bool = setting("SAGEMAKER_TRITON_LOG_INFO", truth, True, "Triton's information lines.")
    triton_log_warning: bool = setting("SAGEMAKER_TRITON_LOG_WARNING", truth, True, "Triton's warnings.")
    triton_log_error: bool = setting("SAGEMAKER_TRITON_LOG_ERROR", truth, True, "Triton's error lines.")
    triton_shm_default: int = setting(
        "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE",
        number(2**20, 2**40),
        16 * 2**20,
        "Shared memory of each python-backend instance in bytes.",
    )
    triton_shm_growth: int = setting(
        "SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE",
        number(2**16, 2**40),
        2**20,
        "How much of it is added at a time.",
    )
    triton_arguments: tuple[str, ...] = setting(
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS", arguments, (), "Appended to Triton's command line."
    )
    triton_server: Path | None = setting(
        "TRIREME_TRITON_SERVER", Path, None, "The tritonserver binary; the image's or the wheel's if not set."
    )
    build_engines: str = setting(
        "TRIREME_BUILD_ENGINES",
        choice("never", "missing"),
        "never",
        "A TensorRT plan for another GPU stops the start, or is built anew into the cache first.",
    )
    without_gpu: str = setting(
        "TRIREME_WITHOUT_GPU",
        choice("cpu", "error"),
        "cpu",
        "Where there is no GPU, models whose config.pbtxt says KIND_GPU run on the CPU, or are an error.",
    )
    load_timeout: float = setting(
        "TRIREME_LOAD_TIMEOUT",
        number(1, 3600, float),
        300.0,
        "Multi-model mode: seconds that Triton may take to load one archive; then the load is a 504.",
    )
    nginx: str = setting(
        "TRIREME_NGINX",
        choice("auto", "on", "off"),
        "auto",
        "The front: nginx if it is there, required, or gunicorn alone.",
    )
    tls_certificate: Path | None = setting(
        "TRIREME_TLS_CERTIFICATE",
        Path,
        None,
        "A certificate and its chain in PEM: TLS is served, and /ping alone without it.",
    )
    tls_key: Path | None = setting(
        "TRIREME_TLS_KEY", Path, None, "The certificate's private key in PEM, without a passphrase."
    )
    tls_port: int = setting(
        "TRIREME_TLS_PORT", number(1, 65535), 8443, "The port with TLS, where there is a certificate."
    )
    http2: bool = setting("TRIREME_HTTP2", truth, False, "Offer HTTP/2 on the port with TLS.")
    api_keys_file: Path | None = setting(
        "TRIREME_API_KEYS_FILE",
        Path,
        None,
        "A file of hashed API keys: every request but /ping and the page at / needs one of them.",
    )
    rate_limit: float = setting(
        "TRIREME_RATE_LIMIT",
        number(0, 1_000_000, float),
        0.0,
        "Requests per second that each API key may make, over it 429; 0 for no limit.",
    )
    rate_burst: int = setting(
        "TRIREME_RATE_BURST",
        number(0, 1_000_000),
        0,
        "Requests that a key may make at once after a pause; with 0, those of one second.",
    )
    cors_origins: tuple[str, ...] = setting(
        "TRIREME_CORS_ORIGINS",
        origins,
        (),
        "Origins whose web pages may call the box from a browser, commas between.",
    )
    restarts: int = setting(
        "TRIREME_RESTARTS",
        number(0, 1000),
        5,
        "Times in five minutes that a process is started again before the box gives up.",
    )
    log_level: str = setting(
        "SAGEMAKER_CONTAINER_LOG_LEVEL",
        choice("debug", "info", "warning", "error", "10", "20", "30", "40"),
        "info",
        "The least level that is logged.",
    )
    log_format: str = setting(
        "TRIREME_LOG_FORMAT",
        choice("auto", "json", "text"),
        "auto",
        "JSON lines, or text (auto: text on a terminal).",
    )
    cache: Path = setting(
        "TRIREME_CACHE",
        Path,
        Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "trireme",
        "Downloads and built demo models.",
    )

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """Read every variable; :class:`StartError` names the first with a bad value, and the value."""
        values = read_all(cls, environment)
        if values.get("batch"):
            values.setdefault("timeout", BATCH_TIMEOUT)
            values.setdefault("max_records", BATCH_MAX_RECORDS)
        return cls(**values).checked()

    def checked(self) -> Settings:
        """Rules that join two variables."""
        if self.safe_ports:
            low, high = self.safe_ports
            for name in ("triton_http_port", "triton_grpc_port", "triton_metrics_port"):
                value = getattr(self, name)
                if value and not low <= value <= high:
                    raise StartError(
                        f"{names_of(name)[0]}={value} is outside SAGEMAKER_SAFE_PORT_RANGE={low}-{high}."
                    )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise StartError("TRIREME_TLS_CERTIFICATE and TRIREME_TLS_KEY belong together: set both or none.")
        if self.tls and self.tls_port == self.port:
            raise StartError(
                f"TRIREME_TLS_PORT={self.tls_port} is the port without TLS too, which stays for /ping: "
                "set it to another, or set SAGEMAKER_BIND_TO_PORT."
            )
        if self.http2 and not self.tls:
            raise StartError("TRIREME_HTTP2=true needs TLS: set TRIREME_TLS_CERTIFICATE and TRIREME_TLS_KEY.")
        if (self.rate_limit or self.rate_burst) and self.api_keys_file is None:
            raise StartError(
                "TRIREME_RATE_LIMIT and TRIREME_RATE_BURST are per API key: set TRIREME_API_KEYS_FILE."
            )
        return self

    @property
    def tls(self) -> bool:
        """Whether there is a port with TLS."""
        return self.tls_certificate is not None

    @property
    def ping(self) -> str:
        """What ``/ping`` asks of Triton: ``ready`` or ``live``."""
        return self.ping_mode or ("live" if self.multi_model else "ready")

    @property
    def max_body(self) -> int:
        """The largest body in bytes."""
        usual = BATCH_PAYLOAD_MB if self.batch else PAYLOAD_MB
        payload = usual if self.max_payload_mb is None else self.max_payload_mb or LARGEST_MB
        return self.max_request_size or int(payload * 2**20)

    @property
    def longest_stream(self) -> float:
        """Seconds a streamed answer may take."""
        return max(self.timeout, self.stream_timeout)

    @property
    def worker_count(self) -> int:
        return self.workers or cores()

    @property
    def request_threads(self) -> int:
        """Requests that a router process serves at once, those with S3 on threads of their own."""
        return self.threads + (self.s3_threads if self.s3_buckets else 0)

    @property
    def level(self) -> str:
        """The least logged level as a word; the SageMaker toolkits also use numbers."""
        return {"10": "debug", "20": "info", "30": "warning", "40": "error"}.get(
            self.log_level, self.log_level
        )


def read_all(kind: Any, environment: Mapping[str, str], secret: Collection[str] = ()) -> dict[str, Any]:
    """What is set of a dataclass of :func:`setting`; :class:`StartError` shows no value of ``secret``."""
    values: dict[str, Any] = {}
    for row in fields(kind):
        name = source(row.metadata["names"], environment)
        if name is None:
            continue
        try:
            values[row.name] = row.metadata["read"](environment[name])
        except ValueError as error:
            told = name if name in secret else f"{name}={environment[name]!r}"
            raise StartError(f"{told} {error}.") from None
    return values


def source(names: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    """The first of ``names`` that is set to something."""
    return next((name for name in names if environment.get(name, "") != ""), None)


def names_of(field_name: str) -> tuple[str, ...]:
    """The variables that set a field."""
    names: tuple[str, ...] = next(row.metadata["names"] for row in fields(Settings) if row.name == field_name)
    return names


def table(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Every setting with its current value and where that came from, for people to read."""
    current = Settings.read(environment)
    rows = []
    for row in fields(Settings):
        name = source(row.metadata["names"], environment)
        rows.append(
            {
                "name": " ".join(row.metadata["names"]),
                "value": shown(getattr(current, row.name)),
                "source": name or "default",
                "help": row.metadata["help"],
            }
        )
    return rows


def markdown(rows: list[dict[str, str]]) -> list[str]:
    """The rows as the table of the documentation; paths of this machine are shortened."""
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    short = {f"{HERE}/": "", caches: "~/.cache", str(Path.home()): "~"}
    lines = ["| variable | default | effect |", "|---|---|---|"]
    for row in rows:
        first, *others = row["name"].split()
        value = row["value"]
        for path, shorter in short.items():
            value = value.replace(path, shorter)
        also = f" Also read from {', '.join(f'`{name}`' for name in others)}." if others else ""
        lines.append(f"| `{first}` | {f'`{value}`' if value else ''} | {row['help']}{also} |")
    return lines
