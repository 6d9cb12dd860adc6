"""All settings: one table, read once from the environment into one frozen object.

Names beginning with ``SAGEMAKER_`` are the contract of the platform and of its other containers;
``TRIREME_`` names are this box's own. Where two names mean one thing, the first that is set wins.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from sm.errors import StartError
from sm.hardware import cores


def number(lowest: float, highest: float, cast: type = int) -> Callable[[str], Any]:
    """Return a parser for a number between two bounds, both included."""

    def parse(text: str) -> Any:
        try:
            value = cast(text)
        except ValueError:
            raise ValueError("is not a number") from None
        if not lowest <= value <= highest:
            raise ValueError(f"is not between {lowest} and {highest}")
        return value

    return parse


def boolean(text: str) -> bool:
    """Parse ``true`` or ``false``, in the usual spellings."""
    word = text.strip().lower()
    if word not in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        raise ValueError("is neither true nor false")
    return word in ("true", "1", "yes", "on")


def choice(*choices: str) -> Callable[[str], str]:
    """Return a parser for one of ``choices``, in any case."""

    def parse(text: str) -> str:
        if text.strip().lower() not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return text.strip().lower()

    return parse


def strategy(text: str) -> str:
    """Parse ``MULTI_RECORD`` or ``SINGLE_RECORD``; the API for transform jobs writes ``MultiRecord``."""
    choices = {"multirecord": "MULTI_RECORD", "singlerecord": "SINGLE_RECORD"}
    spelling = text.strip().lower().replace("_", "")
    if spelling not in choices:
        raise ValueError("is neither MULTI_RECORD nor SINGLE_RECORD")
    return choices[spelling]


def verbosity(text: str) -> int:
    """Parse 0 to 10. Users of the official container also write true and false."""
    value: int = number(0, 10)(text) if text.strip().isdigit() else int(boolean(text))
    return value


def script(text: str) -> str:
    """Parse the name of a Python file, with or without ``.py``."""
    name = text.strip().removesuffix(".py")
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError("is not the name of a Python file in code/, such as inference.py")
    return f"{name}.py"


def port_range(text: str) -> tuple[int, int]:
    """Parse ``A-B``, both included."""
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last) <= 65535):
        raise ValueError("is not a range of ports such as 9000-9100")
    return int(first), int(last)


def arguments(text: str) -> tuple[str, ...]:
    """Split arguments as a shell does."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"cannot be split into arguments ({error})") from None


#: The name of an S3 bucket, with an optional prefix after a slash.
BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?"


def matching(pattern: str, fault: str) -> Callable[[str], str]:
    """Return a parser of a text that matches a pattern as a whole."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(fault)
        return text

    return parse


def list_of(parse_entry: Callable[[str], object]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of entries that are separated by commas or spaces."""

    def parse(text: str) -> tuple[str, ...]:
        entries = tuple(text.replace(",", " ").split())
        for entry in entries:
            parse_entry(entry)
        return entries

    return parse


#: The place of captured payloads: an address in S3, or an absolute folder.
capture_place = matching(f"s3://{BUCKET}|/.*", "is neither s3://bucket/prefix nor an absolute folder")
#: Percents, each for all models or, after a name and ``=``, for one.
percents = list_of(lambda entry: number(0, 100, float)(entry.rpartition("=")[2]))
#: Origins as browsers send them: scheme, host, and a port if it is not the default.
origins = list_of(
    matching(
        r"https?://(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?",
        "is not a list of origins such as https://app.example.com,http://localhost:3000; "
        "* is not allowed, because it would admit every page of the web",
    )
)


def folders(text: str) -> tuple[Path, ...]:
    """Parse folders separated by colons."""
    return tuple(Path(part) for part in text.split(os.pathsep) if part)


def own_folder(text: str) -> Path:
    """Parse a folder, which may be below a home as ``~/name``."""
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise ValueError("names the home of a user who is not there") from None


def format_value(value: object) -> str:
    """Format a value as a user would type it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return (os.pathsep if any(isinstance(part, Path) for part in value) else " ").join(map(str, value))
    return str(value)


#: The installed package ``sm``.
PACKAGE = Path(__file__).resolve().parent
#: The folder with nginx.conf, clients, model and examples: the top of a checkout and of the image. A wheel
#: has them inside the package, see [tool.hatch] in pyproject.toml.
HERE = PACKAGE / "_data" if (PACKAGE / "_data").is_dir() else PACKAGE.parent
#: The default limit of a body in MiB, and that in batch transform.
DEFAULT_PAYLOAD_MB, DEFAULT_BATCH_PAYLOAD_MB = 25.0, 100.0
#: The limit of a body in MiB if the setting is 0, which means "any size" in batch transform.
MAX_PAYLOAD_MB = 2048.0
#: Seconds that the platform gives an invocation of batch transform.
BATCH_TIMEOUT_S = 3600.0
#: Records of one request; and in batch transform, where a body of 100 MiB may be all short lines.
MAX_RECORDS, BATCH_MAX_RECORDS = 100_000, 10_000_000
#: Seconds that Triton may take to load one archive or version.
MAX_LOAD_S = 300.0
#: CloudWatch's namespace of the box's metrics.
EMF_NAMESPACE = "Trireme"
#: The toolkit's own default for a user's script.
PROGRAM = "inference.py"
#: The beginning of the names of the box's own settings.
OWN_PREFIX = "TRIREME_"
ON_DEMAND = "on-demand"
#: Triton's option for its response cache.
CACHE_OPTION = "--cache-config"
ALL_WITH_HOLES = "all-with-known-holes"
#: The usual ports of Triton's HTTP, gRPC and metrics, and the fields that set others.
DEFAULT_HTTP, DEFAULT_GRPC, DEFAULT_METRICS = 8000, 8001, 8002
PORT_SETTINGS = ("triton_http_port", "triton_grpc_port", "triton_metrics_port")
#: How similar (0 to 1) an unknown name must be to a setting's to count as misspelled. Kubernetes sets names
#: such as TRIREME_PORT for a service that is called trireme.
MIN_SIMILARITY = 0.87
T = TypeVar("T")


def setting(names: str, read: Callable[[str], T], default: T) -> T:
    """Return one row of the table. ``names``: variables, separated by spaces. ``read`` parses their value.

    If the default is None or empty, the box may compute the value at start. The comment above a row is what
    ``sm settings`` says of it.
    """
    return field(default=default, metadata={"names": tuple(names.split()), "read": read})


def user_cache() -> Path:
    """Return the folder of the user's caches; below the temporary folder if there is no home to write to.

    A container's user may have no home, or one on a read-only file system.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        if os.environ.get("XDG_CACHE_HOME") or can_be_written(folder):
            return folder
    except RuntimeError:  # HOME is not set, and /etc/passwd does not list the user
        pass
    try:
        return Path(tempfile.gettempdir()) / ".cache"
    except OSError:  # the start reports it
        return Path("/tmp/.cache")  # noqa: S108


def can_be_written(folder: Path) -> bool:
    """True if this user may write into a folder, or make it where it is not there yet."""
    existing = next(filter(os.path.lexists, (folder, *folder.absolute().parents)), Path("/"))
    return os.access(existing, os.W_OK | os.X_OK)


@dataclass(frozen=True)
class Settings:
    """The settings of the box. Create them with :meth:`read`."""

    #: The only public port.
    port: int = setting("SAGEMAKER_BIND_TO_PORT", number(1, 65535), 8080)
    #: A range of ports, A-B: the free ports for Triton are taken from it.
    safe_ports: tuple[int, int] | None = setting("SAGEMAKER_SAFE_PORT_RANGE", port_range, None)
    #: What /ping checks: ready (all models are ready) or live (Triton runs). If not set: live in multi-model
    #: mode, else ready.
    ping_mode: str = setting("SAGEMAKER_TRITON_OVERRIDE_PING_MODE", choice("ready", "live"), "")
    #: Triton's model repository: a folder, or s3://bucket/prefix/, a .tar.gz, s3://….tar.gz,
    #: https://….tar.gz[#sha256=…] or hf://owner/name[@revision], fetched into the cache; commas join several.
    #: If not set: /opt/ml/model, or the image's own repository if that folder is empty.
    repository: Path | None = setting("TRIREME_MODEL_REPOSITORY", Path, None)
    #: A folder as save_pretrained() and optimum write it, with config.json and model.onnx or onnx/model.onnx:
    #: served alone, by the class of its task, if TRIREME_MODEL_REPOSITORY is not set.
    model_id: str = setting("HF_MODEL_ID", str, "")
    #: The task of HF_MODEL_ID, if its config.json does not say it or another one is meant.
    task: str = setting("HF_TASK", str, "")
    #: Folders of client plugins, separated by colons.
    clients: tuple[Path, ...] = setting("TRIREME_CLIENTS", folders, (HERE / "clients",))
    #: What to do with a client that cannot load. stop: stop the start. skip: leave it out and report it, as a
    #: worker that is started again later always does.
    broken_clients: str = setting("TRIREME_BROKEN_CLIENTS", choice("stop", "skip"), "stop")
    #: Multi-model mode: start with no model. POST /models loads a model, DELETE /models/<name> unloads it.
    multi_model: bool = setting("SAGEMAKER_MULTI_MODEL", boolean, False)
    #: all: load every model of the repository at the start. on-demand: load a model when a request names it,
    #: and unload those that were used longest ago when memory runs short.
    models: str = setting("TRIREME_MODELS", choice("all", ON_DEMAND), "all")
    #: Models on demand: MiB of memory for Triton and its models. If not set: 70 % of the container's.
    model_memory_mb: int | None = setting("TRIREME_MODEL_MEMORY_MB", number(1, 10**9), None)
    #: Seconds between two looks whether models of the repository have changed: a new version replaces the old
    #: one while the box serves. 0: look only when sm push asks. If not set: models stay as they are.
    model_poll: float | None = setting("TRIREME_MODEL_POLL", number(0, 86400, float), None)
    #: Multi-model mode: load archives only from below this folder.
    archives: Path = setting("TRIREME_MODEL_ARCHIVES", Path, Path("/opt/ml/models"))
    #: Multi-model mode: answer 409 if the name of a model already exists in Triton, instead of giving the
    #: model another name.
    disable_namespacing: bool = setting("SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING", boolean, False)
    #: Multi-model mode: load no model while more than this fraction of a GPU's memory is in use.
    load_gpu_limit: float | None = setting("SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT", number(0, 1, float), None)
    #: The model for requests that name none. If not set: the only model, if there is one.
    default_model: str = setting("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", str, "")
    #: Router processes. If not set: one per core.
    workers: int = setting("SAGEMAKER_MODEL_SERVER_WORKERS MODEL_SERVER_WORKERS", number(1, 256), 0)
    #: Invocations of one model that each router process serves at once. For all models together, twice as
    #: many.
    threads: int = setting("TRIREME_THREADS", number(1, 256), 8)
    #: Invocations that may wait in each router process, each in its model's queue. Beyond it, the newest of
    #: the longest queue gets 429.
    queue: int = setting("TRIREME_QUEUE", number(0, 1000), 32)
    #: Seconds that an invocation may take, both in nginx and in the router. If not set: 3600 in batch
    #: transform.
    timeout: float = setting(
        "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS SAGEMAKER_MODEL_SERVER_TIMEOUT MODEL_SERVER_TIMEOUT",
        number(0.1, 86400, float),
        60.0,
    )
    #: Batch transform: allow larger bodies and more time, unless their own settings are set.
    batch: bool = setting("SAGEMAKER_BATCH", boolean, False)
    #: Whether batch transform sends several records in one request. /execution-parameters reports it if set.
    batch_strategy: str = setting("SAGEMAKER_BATCH_STRATEGY", strategy, "")
    #: Requests that batch transform sends at once. If not set: one per thread. /execution-parameters reports
    #: it.
    max_transforms: int = setting("SAGEMAKER_MAX_CONCURRENT_TRANSFORMS", number(0, 100_000), 0)
    #: Seconds that a streamed response may take, but never less than the timeout of other invocations.
    stream_timeout: float = setting("TRIREME_STREAM_TIMEOUT", number(0.1, 86400, float), 480.0)
    #: Seconds after which a stream ends whose caller takes nothing, or is more than 8 MiB behind its model.
    #: Half of it is the time for a request's head to arrive, and for each further piece of its body: a slower
    #: connection is closed. Without nginx it gets 408 first, and so does a body that after this time has come
    #: with less than 16 KiB a second.
    stream_stall: float = setting("TRIREME_STREAM_STALL_SECONDS", number(1, 86400, float), 20.0)
    #: Seconds that Triton may take to load the models; for one archive or version at most 300.
    startup_timeout: int = setting("SAGEMAKER_STARTUP_TIMEOUT", number(1, 3600), 480)
    #: Seconds that running invocations get to finish after SIGTERM.
    drain: float = setting("TRIREME_DRAIN_SECONDS", number(0, 3600, float), 25.0)
    #: The largest body in MiB; a larger one gets 413. If not set: 25, or 100 in batch transform. 0 means
    #: 2048.
    max_payload_mb: float | None = setting("SAGEMAKER_MAX_PAYLOAD_IN_MB", number(0, 2048, float), None)
    #: The largest body in bytes. If set, the limit in MiB is ignored.
    max_request_size: int | None = setting("SAGEMAKER_MAX_REQUEST_SIZE", number(1, 2**31), None)
    #: Memory in MiB for decoded pictures and large JSON in each worker. If not set: a quarter of the memory,
    #: divided among the workers, but at least 256. Each model leaves an eighth of it to the others.
    decode_memory_mb: float | None = setting("TRIREME_DECODE_MEMORY_MB", number(1, 2**20, float), None)
    #: The type of the response for a request that accepts any type.
    default_accept: str = setting("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", str, "application/json")
    #: The script in code/ with model_fn and the other functions of the SageMaker inference toolkit.
    program: str = setting("SAGEMAKER_PROGRAM", script, PROGRAM)
    #: The script's folder. If not set, or if it does not exist: code/ beside the models.
    submit_directory: Path | None = setting("SAGEMAKER_SUBMIT_DIRECTORY", Path, None)
    #: Install code/requirements.txt at start: from code/wheels if that folder exists, else as pip is
    #: configured.
    install_requirements: bool = setting("TRIREME_INSTALL_REQUIREMENTS", boolean, False)
    #: Enable stateful sessions: see docs/run/platform.md.
    sessions: bool = setting("SAGEMAKER_ENABLE_STATEFUL_SESSIONS", boolean, False)
    #: Seconds until a session expires.
    sessions_expiration: float = setting(
        "SAGEMAKER_SESSIONS_EXPIRATION", number(1, 31_536_000, float), 1200.0
    )
    #: The folder for session data. If not set: a folder in /dev/shm, removed when the box stops.
    sessions_path: Path | None = setting("SAGEMAKER_SESSIONS_PATH", Path, None)
    #: The most sessions that may be open at once, nine of ten of them one caller's. A further one gets 429
    #: until another is closed or expires.
    max_sessions: int = setting("TRIREME_MAX_SESSIONS", number(1, 1_000_000), 10_000)
    #: Keep payloads and answers there, as SageMaker's Data Capture does: s3://bucket/prefix, or a folder. See
    #: docs/run/security.md.
    capture: str = setting("TRIREME_CAPTURE", capture_place, "")
    #: The share of invocations to keep, and that of some models: 10,resnet=50,bert_base=0.
    capture_percent: tuple[str, ...] = setting("TRIREME_CAPTURE_PERCENT", percents, ("100",))
    #: Shared memory in MiB for the tensors of all workers; 0: tensors are sent over gRPC. If not set: a third
    #: of the free space in /dev/shm.
    shared_memory_mb: float | None = setting("TRIREME_SHARED_MEMORY_MB", number(0, 2**20, float), None)
    #: Open Triton's own HTTP, gRPC and metrics ports, 8000, 8001 and 8002. loopback: on the loopback address
    #: only. all: on all addresses. all-with-known-holes: the same for a Triton that has known security holes.
    triton_ports: str = setting(
        "TRIREME_TRITON_PORTS", choice("off", "loopback", "all", ALL_WITH_HOLES), "off"
    )
    #: Triton's HTTP port. If not set: 8000 with TRIREME_TRITON_PORTS, else a free port on loopback.
    triton_http_port: int = setting("SAGEMAKER_TRITON_HTTP_PORT", number(1, 65535), 0)
    #: Triton's gRPC port. If not set: 8001 if it is open to callers, else a free port on loopback.
    triton_grpc_port: int = setting("SAGEMAKER_TRITON_GRPC_PORT", number(1, 65535), 0)
    #: Open Triton's gRPC port to outside callers.
    allow_grpc: bool = setting("SAGEMAKER_TRITON_ALLOW_GRPC", boolean, False)
    #: Triton's metrics port. If not set: 8002 if it is open to callers, else a free port on loopback.
    triton_metrics_port: int = setting("SAGEMAKER_TRITON_METRICS_PORT", number(1, 65535), 0)
    #: Open Triton's metrics port to outside callers.
    allow_metrics: bool = setting("SAGEMAKER_TRITON_ALLOW_METRICS", boolean, False)
    #: The Triton extension that handles a JSON body on /invocations that no client handles.
    inference_type: str = setting(
        "SAGEMAKER_TRITON_INFERENCE_TYPE", choice("infer", "generate", "generate_stream"), "infer"
    )
    #: Shared memory in bytes of each instance of a Python model, at first; it grows on demand. Together they
    #: take at most half of what is free in /dev/shm: with less, the start logs both numbers.
    triton_shm_default: int = setting(
        "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE", number(2**20, 2**40), 16 * 2**20
    )
    #: Arguments that are appended to Triton's command line.
    triton_arguments: tuple[str, ...] = setting("SAGEMAKER_TRITON_ADDITIONAL_ARGS", arguments, ())
    #: MiB of memory for Triton's cache of answers, for ensembles whose config.pbtxt has response_cache; 0: no
    #: cache. See docs/run/response-cache.md.
    response_cache_mb: int = setting("TRIREME_RESPONSE_CACHE_MB", number(0, 10**6), 0)
    #: The tritonserver binary. If not set: the one of the image or of the wheel.
    triton_server: Path | None = setting("TRIREME_TRITON_SERVER", Path, None)
    #: What to do with a TensorRT plan for another GPU. never: stop the start. missing: build the plan again,
    #: into the cache, before the start.
    build_engines: str = setting("TRIREME_BUILD_ENGINES", choice("never", "missing"), "never")
    #: The arithmetic of models on the CPU target. auto: the engine that the processor has instructions for,
    #: if its answers are within the model's tolerance. fp32: ONNX Runtime in fp32 for all.
    precision: str = setting("TRIREME_PRECISION", choice("auto", "fp32"), "auto")
    #: auto: use nginx if installed. on: require it. off: gunicorn only.
    nginx: str = setting("TRIREME_NGINX", choice("auto", "on", "off"), "auto")
    #: A certificate and its chain in PEM. If set, the box serves TLS on its own port, and only /ping without
    #: TLS.
    tls_certificate: Path | None = setting("TRIREME_TLS_CERTIFICATE", Path, None)
    #: The certificate's private key in PEM, without a passphrase.
    tls_key: Path | None = setting("TRIREME_TLS_KEY", Path, None)
    #: The port with TLS, if there is a certificate.
    tls_port: int = setting("TRIREME_TLS_PORT", number(1, 65535), 8443)
    #: A file of hashed API keys. If set, every request except /ping and the page at / needs a key.
    api_keys_file: Path | None = setting("TRIREME_API_KEYS_FILE", Path, None)
    #: Requests per second for each API key; more get 429. 0: no limit.
    rate_limit: float = setting("TRIREME_RATE_LIMIT", number(0, 1_000_000, float), 0.0)
    #: Origins whose web pages may call the box from a browser, separated by commas.
    cors_origins: tuple[str, ...] = setting("TRIREME_CORS_ORIGINS", origins, ())
    #: Seconds that a request waits for a Triton or a model that is replaced, within its own time. 0: it gets
    #: 503 at once.
    wait_seconds: float = setting("TRIREME_WAIT_SECONDS", number(0, 3600, float), 20.0)
    #: Seconds without an answer after which a Python model is loaded again, if it has a request whose time is
    #: over. If not set: the time of a request.
    model_timeout: float | None = setting("TRIREME_MODEL_TIMEOUT_SECONDS", number(0.1, 86400, float), None)
    #: Restarts of a process within five minutes before the box gives up.
    restarts: int = setting("TRIREME_RESTARTS", number(0, 1000), 5)
    #: The lowest level that is logged.
    log_level: str = setting(
        "SAGEMAKER_CONTAINER_LOG_LEVEL",
        choice("debug", "info", "warning", "error", "10", "20", "30", "40"),
        "info",
    )
    #: json: JSON lines. text: plain text. auto: text on a terminal, else JSON.
    log_format: str = setting("TRIREME_LOG_FORMAT", choice("auto", "json", "text"), "auto")
    #: The fraction of successful requests that are logged. Errors and slow requests are always logged.
    log_sample: float = setting("TRIREME_LOG_SAMPLE", number(0, 1, float), 1.0)
    #: Metrics for CloudWatch as lines of the log, every 15 s, in its embedded metric format. auto: on
    #: SageMaker.
    emf: str = setting("TRIREME_EMF", choice("auto", "on", "off"), "auto")
    #: The endpoint's name, as the dimension Endpoint of these metrics. sm deploy --alarms sets it.
    endpoint_name: str = setting("TRIREME_ENDPOINT_NAME", str, "")
    #: The folder for downloads, built models and plans, and choices of engines. A user without a home that
    #: can be written has it below the temporary folder.
    cache: Path = setting("TRIREME_CACHE", own_folder, (user_cache() / "trireme").absolute())

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """Read every variable; :class:`StartError` names the first with a bad value, and the value."""
        values = read_all(cls, environment)
        if values.get("batch"):
            values.setdefault("timeout", BATCH_TIMEOUT_S)
        if values.get("models") == ON_DEMAND:
            values["multi_model"] = True
        return cls(**values).validate()

    def validate(self) -> Settings:
        """Check the rules that involve two settings. Raises :class:`StartError`."""
        if self.safe_ports:
            low, high = self.safe_ports
            for name, port in zip(PORT_SETTINGS, self.requested_ports, strict=True):
                if port and not low <= port <= high:
                    raise StartError(
                        f"{names_of(name)[0]}={port} is outside SAGEMAKER_SAFE_PORT_RANGE={low}-{high}: set "
                        "it to a port of the range."
                    )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise StartError("TRIREME_TLS_CERTIFICATE and TRIREME_TLS_KEY belong together: set both or none.")
        if self.tls and self.tls_port == self.port:
            raise StartError(
                f"TRIREME_TLS_PORT={self.tls_port} is the port without TLS too, which stays for /ping: "
                "set it to another, or set SAGEMAKER_BIND_TO_PORT."
            )
        if self.model_poll is not None and self.multi_model:
            raise StartError("TRIREME_MODEL_POLL is for a box that loads all models at its start.")
        if self.response_cache_mb and self.has_own_cache:
            raise StartError(
                f"TRIREME_RESPONSE_CACHE_MB and {CACHE_OPTION} are both set, and Triton has one cache: leave "
                "one of them out."
            )
        if self.multi_model and self.caches_responses:
            raise StartError(
                "Triton's response cache is for a box that loads all models at its start: it keeps the "
                "answers of a model that is unloaded, and would give them to the next of that name. Leave "
                f"out {CACHE_OPTION if self.has_own_cache else 'TRIREME_RESPONSE_CACHE_MB'}."
            )
        if self.rate_limit and self.api_keys_file is None:
            raise StartError("TRIREME_RATE_LIMIT is per API key: set TRIREME_API_KEYS_FILE.")
        return self

    @property
    def tls(self) -> bool:
        """True if there is a port with TLS."""
        return self.tls_certificate is not None

    @property
    def origin(self) -> str:
        """The address of the box for callers on its machine."""
        return f"https://localhost:{self.tls_port}" if self.tls else f"http://localhost:{self.port}"

    @property
    def caches_responses(self) -> bool:
        """True if Triton has a response cache."""
        return self.has_own_cache or self.response_cache_mb > 0

    @property
    def has_own_cache(self) -> bool:
        """True if Triton's own arguments start a response cache, such as Redis."""
        return any(argument.startswith(CACHE_OPTION) for argument in self.triton_arguments)

    @property
    def triton_is_open(self) -> bool:
        """True if Triton's own ports are open on all addresses."""
        return self.triton_ports in ("all", ALL_WITH_HOLES)

    @property
    def grpc_is_open(self) -> bool:
        """True if others than the box may call Triton's gRPC."""
        return self.allow_grpc or self.triton_ports != "off"

    @property
    def requested_ports(self) -> tuple[int, int, int]:
        """The ports of Triton's HTTP, gRPC and metrics that are asked for; 0 for any.

        A port that is open to callers has Triton's usual number, unless there is a safe range.
        """
        any_port, are_open = self.safe_ports is None, self.triton_ports != "off"
        return (
            self.triton_http_port or (DEFAULT_HTTP if are_open else 0),
            self.triton_grpc_port or (DEFAULT_GRPC if are_open or (self.allow_grpc and any_port) else 0),
            self.triton_metrics_port
            or (DEFAULT_METRICS if are_open or (self.allow_metrics and any_port) else 0),
        )

    @property
    def ping(self) -> str:
        """The state of Triton that ``/ping`` needs: ``ready`` or ``live``."""
        return self.ping_mode or ("live" if self.multi_model else "ready")

    @property
    def max_body(self) -> int:
        """The largest body in bytes."""
        default = DEFAULT_BATCH_PAYLOAD_MB if self.batch else DEFAULT_PAYLOAD_MB
        payload = default if self.max_payload_mb is None else self.max_payload_mb or MAX_PAYLOAD_MB
        return self.max_request_size or int(payload * 2**20)

    @property
    def max_records(self) -> int:
        """The most records or JSON lines in one request."""
        return BATCH_MAX_RECORDS if self.batch else MAX_RECORDS

    @property
    def load_timeout(self) -> float:
        """Seconds that Triton may take to load one archive or version; the platform gives 360."""
        return min(MAX_LOAD_S, self.startup_timeout)

    @property
    def receive_timeout(self) -> float:
        """Seconds for a request's head to arrive, and then for each further piece of its body."""
        return self.stream_stall / 2

    @property
    def longest_stream(self) -> float:
        """Seconds that a streamed answer may take."""
        return max(self.timeout, self.stream_timeout)

    @property
    def worker_count(self) -> int:
        return self.workers or cores()

    @property
    def max_invocations(self) -> int:
        """Invocations that a router process accepts at once: twice its threads run, the others wait."""
        return 2 * self.threads + self.queue

    @property
    def max_threads(self) -> int:
        """Threads that a router process may have for requests.

        Beside invocations there are WebSockets, one less than threads, and requests that do not queue: those
        for Triton's own routes, and those that are being read or rejected.
        """
        return self.max_invocations + 2 * self.threads

    @property
    def level(self) -> str:
        """The lowest level that is logged, as a word; the SageMaker toolkits also use numbers."""
        return {"10": "debug", "20": "info", "30": "warning", "40": "error"}.get(
            self.log_level, self.log_level
        )


def read_all(
    settings_class: Any, environment: Mapping[str, str], secret: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values that the environment sets for a dataclass of :func:`setting`, by field.

    Raises:
        StartError: A value is invalid. The message shows it, unless ``secret`` contains the variable.
    """
    values: dict[str, Any] = {}
    for row in fields(settings_class):
        name = source(row.metadata["names"], environment)
        if name is None:
            continue
        try:
            values[row.name] = row.metadata["read"](environment[name])
        except ValueError as error:
            assignment = name if name in secret else f"{name}={environment[name]!r}"
            raise StartError(f"{assignment} {error}.") from None
    return values


def source(names: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    """Return the first of ``names`` that is set and not empty."""
    return next((name for name in names if environment.get(name, "") != ""), None)


def find_misspelled(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable whose name is nearly that of a setting of this box."""
    known = [
        name for row in fields(Settings) for name in row.metadata["names"] if name.startswith(OWN_PREFIX)
    ]
    unknown = (name for name in environment if name.startswith(OWN_PREFIX) and name not in known)
    return [
        f"{name} is not a setting: do you mean {close[0]}? sm settings lists them all"
        for name in sorted(unknown)
        if (close := difflib.get_close_matches(name, known, 1, MIN_SIMILARITY))
    ]


def names_of(field_name: str) -> tuple[str, ...]:
    """Return the variables that set a field."""
    names: tuple[str, ...] = next(row.metadata["names"] for row in fields(Settings) if row.name == field_name)
    return names


def help_texts(settings: type = Settings) -> dict[str, str]:
    """Return the comment above each field of a table of settings."""
    rows = re.findall(r"((?:    #: .*\n)+)    (\w+): ", inspect.getsource(settings))
    return {name: " ".join(comment.replace("#: ", "").split()) for comment, name in rows}
