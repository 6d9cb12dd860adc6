"""The model that is tuned, and the box that serves it, started again with each setting."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from google.protobuf import text_format

from sm.client.base import Triton
from sm.commands import selftest
from sm.commands.client_loading import NoTriton
from sm.commands.golden import differences
from sm.commands.local_boxes import ask
from sm.errors import CommandError
from sm.plugins.loading import load
from sm.repository import ensembles, models
from sm.repository.models import CODE, CONFIG
from sm.settings import Settings
from trireme_tools.check import discovery
from trireme_tools.check.client_checks import Sample
from trireme_tools.invoke import load_test
from trireme_tools.invoke.load_test import LoadTest, quantile
from trireme_tools.invoke.messages import InvokeRequest, NoReply
from trireme_tools.invoke.url import Url
from trireme_tools.tune import config_edit
from trireme_tools.tune.sweep import Batching, Point, Setting


@dataclass(frozen=True)
class TunedModel:
    """The model, its client and a request to measure with."""

    #: The name in Triton.
    name: str
    client: str
    #: The folder of the client, and the model repository.
    clients: Path
    repository: Path
    #: All models that the client calls, with the steps of ensembles.
    parts: tuple[str, ...]
    #: The text of its ``config.pbtxt``, and the parsed ``ModelConfig``.
    text: str
    config: Any
    #: The body of a request with the client's sample, and its golden result if there is one.
    body: bytes
    golden: Any = None

    @property
    def file(self) -> Path:
        return self.repository / self.name / CONFIG

    @property
    def takes_threads(self) -> bool:
        """True for the CPU target's Python model, whose engine has a parameter for its threads."""
        return self.config.backend != "onnxruntime" and any(self.file.parent.glob("*/engines.py"))


def find(name: str, part: str | None, settings: Settings) -> TunedModel:
    """Find the model that the client ``name`` calls. Raises :class:`CommandError`.

    ``part``: the model to tune if the client calls several.
    """
    source = discovery.find(name, settings)
    client = load(source, cast("Triton", NoTriton()), source.file.parent)
    repository = discovery.choose_models(source, client, settings)
    parts = parts_of(repository, client.required_models())
    model = choose_part(name, parts, part)
    file = repository / model / CONFIG
    try:
        text = file.read_text() if file.exists() else ""
        config = parse_config(text)
    except (OSError, ValueError) as error:
        raise CommandError(f"{file}: {error}") from None
    if config.HasField("ensemble_scheduling"):
        raise CommandError(
            f"{model!r} is an ensemble, which has no instances: tune one of its steps with --part, "
            f"such as {parts[-1]}."
        )
    body, golden = read_sample(name, source.file.parent / "sample")
    clients = source.file.parent.parent if source.has_folder else source.file.parent
    return TunedModel(model, name, clients, repository, parts, text, config, body, golden)


def choose_part(name: str, parts: tuple[str, ...], part: str | None) -> str:
    if part is None and len(parts) == 1:
        return parts[0]
    if part in parts:
        return str(part)
    names = ", ".join(parts) or "none"
    if part is not None:
        raise CommandError(f"{name!r} does not call a model {part!r}; it calls {names}.")
    raise CommandError(f"{name!r} calls {names}: name the one to tune with --part.")


def read_sample(name: str, folder: Path) -> tuple[bytes, Any]:
    """Return the body of a request, and the golden result if there is one."""
    payload = Sample.read(folder / "payload.json")
    golden = folder / "golden.json"
    result = Sample.read(golden) if golden.exists() else None
    return json.dumps({"modelname": name, "payload": payload}).encode(), result


def parts_of(repository: Path, required: tuple[str, ...]) -> tuple[str, ...]:
    """Return the models with the steps of those that are ensembles."""
    by_name = {model.name: model for model in models.read(repository)}
    parts = list(dict.fromkeys(required))
    for name in parts:  # which grows meanwhile
        steps = ensembles.steps(by_name[name]) if name in by_name else ()
        parts += [step for step in dict.fromkeys(steps) if step not in parts]
    return tuple(parts)


#: The most requests of one measurement; the time ends it before.
MAX_REQUESTS = 10**6
#: The share of a measurement's time for the uncounted warm-up before it.
WARM_UP_SHARE = 0.15
#: The parameter of the CPU target's models: see extensions/trireme_extensions/convert/onnx_cpu/model.py.
THREADS = "threads"
DIED = "Triton ended and was started again during the measurement"


class MeasurementInterrupted(Exception):
    """Ctrl-C during a measurement; the earlier points are kept."""


@dataclass
class TuningBox:
    """Runs one box at a time, with a copy of the model's configuration; its files are only read.

    Each setting needs a new box: to the supervisor, a model that is unloaded looks like one that died.
    """

    model: TunedModel
    settings: Settings
    #: Seconds of the slowest start, including the end of the previous box.
    slowest_start: float = 0.0
    #: The setting of the running box.
    started: Setting | None = None
    _url: str = ""
    _running: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        self.started = None
        self._running.close()

    def measure(self, setting: Setting, callers: int, seconds: float) -> Point:
        """Measure one point; a failure is in the point. Raises :class:`Interrupted` on Ctrl-C."""
        try:
            if setting != self.started:
                self._start(setting)
            restarts = self._triton_restarts()
            with closing(Url(self._url)) as target:
                self._send(target, callers, seconds * WARM_UP_SHARE)
                point = to_point(setting, callers, self._send(target, callers, seconds))
            # No request fails meanwhile, but some wait for the new Triton: these times say nothing.
            return replace(point, failure=DIED) if self._triton_restarts() > restarts else point
        except CommandError as error:
            return Point(setting, callers, failure=str(error))

    def _start(self, setting: Setting) -> None:
        began = time.monotonic()
        self.close()
        folder = Path(self._running.enter_context(tempfile.TemporaryDirectory(prefix="trireme-tune-")))
        link_repository(self.model, setting, folder)
        box = selftest.own_box(
            replace(self.settings, repository=folder),
            TRIREME_MODEL_REPOSITORY=str(folder),
            TRIREME_CLIENTS=str(self.model.clients),
            TRIREME_BROKEN_CLIENTS="skip",  # those of models that are not measured
            SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="",
            SAGEMAKER_MULTI_MODEL="false",
            TRIREME_DRAIN_SECONDS="1",
        )
        self._url = self._running.enter_context(box)
        self.slowest_start = max(self.slowest_start, time.monotonic() - began)
        self._check_answer()
        self.started = setting

    def _triton_restarts(self) -> int:
        """Return how often the running box has started its Triton again."""
        _, numbers = ask(self._url, f"/dashboard/data?since={time.time()}")
        return sum(row["restarts"] for row in numbers["box"]["processes"] if row["name"] == "triton")

    def _send(self, target: Url, callers: int, seconds: float) -> LoadTest:
        request = InvokeRequest(self.model.body, "application/json")
        load = load_test.measure(lambda: target.ask(request), MAX_REQUESTS, callers, seconds)
        if load.interrupted:
            raise MeasurementInterrupted
        return load

    def _check_answer(self) -> None:
        with closing(Url(self._url)) as target:
            reply = target.ask(InvokeRequest(self.model.body, "application/json"))
        if not reply.is_success:
            raise NoReply(f"the sample is answered with {reply.code}: {reply.sentence}")
        if self.model.golden is not None:
            differing = list(differences(reply.member("result"), self.model.golden))
            if differing:
                raise NoReply(f"the sample's answer is not the golden one: {differing[0]}")


def link_repository(model: TunedModel, setting: Setting, folder: Path) -> None:
    """Link all models that the client calls into ``folder``, the tuned one with ``setting``."""
    for name in (*model.parts, CODE):
        source = model.repository / name
        if name == model.name:
            (folder / name).mkdir()
            for path in source.iterdir():
                if path.name != CONFIG:
                    (folder / name / path.name).symlink_to(path)
            (folder / name / CONFIG).write_text(edit(model.text, setting))
        elif source.exists():
            (folder / name).symlink_to(source)


def to_point(setting: Setting, callers: int, load: LoadTest) -> Point:
    latencies = sorted(load.latencies)
    ((error, _),) = load.errors.most_common(1) or [("", 0)]
    sentence = load.sentences.get(error, "")
    return Point(
        setting,
        callers,
        answers=len(latencies),
        errors=load.errors.total(),
        seconds=load.seconds,
        p50=quantile(latencies, 0.5) if latencies else 0.0,
        p99=quantile(latencies, 0.99) if latencies else 0.0,
        error=sentence,
        failure="" if latencies else sentence or "no answer in time",
    )


def configure(config: Any, setting: Setting) -> Any:
    """Return a copy of a ``ModelConfig`` with this setting."""
    changed = type(config)()
    changed.CopyFrom(config)
    for group in changed.instance_group or [changed.instance_group.add()]:
        group.count = setting.instances
    if setting.batching is None:
        changed.ClearField("dynamic_batching")
    else:
        changed.dynamic_batching.SetInParent()
        changed.dynamic_batching.preferred_batch_size[:] = setting.batching.preferred_sizes
        changed.dynamic_batching.max_queue_delay_microseconds = setting.batching.delay_us
    if setting.threads != setting_of(config).threads:
        changed.parameters[THREADS].string_value = str(setting.threads or "")
    return changed


def setting_of(config: Any) -> Setting:
    """Return the setting of a ``ModelConfig``; Triton's default is one instance."""
    counts = [group.count or 1 for group in config.instance_group]
    batching = config.dynamic_batching if config.HasField("dynamic_batching") else None
    threads = config.parameters[THREADS].string_value if THREADS in config.parameters else ""
    return Setting(
        counts[0] if counts else 1,
        batching and Batching(tuple(batching.preferred_batch_size), batching.max_queue_delay_microseconds),
        int(threads) if threads.isdecimal() else 0,
    )


def edit(text: str, setting: Setting) -> str:
    """Write a setting into the text of a ``config.pbtxt``; return the same text if it has it already.

    Raises :class:`CommandError` if the text cannot be edited safely.
    """
    try:
        config = parse_config(text)
        if setting_of(config) == setting:
            return text
        edited = config_edit.set_instance_count(text, setting.instances)
        if setting.batching is None:
            edited = config_edit.remove_batching(edited)
        else:
            edited = config_edit.set_batching(
                edited, setting.batching.preferred_sizes, setting.batching.delay_us
            )
        if setting.threads != setting_of(config).threads:
            edited = config_edit.set_parameter(edited, THREADS, str(setting.threads or ""))
        if parse_config(edited) == configure(config, setting):
            return edited
        reason = "the edited text would have another meaning"
    except ValueError as error:
        reason = str(error)
    raise CommandError(f"config.pbtxt cannot be edited: {reason}. Write it by hand: {setting}.")


def edit_backend(text: str, backend: str) -> str:
    """Write a backend into the text of a ``config.pbtxt``.

    Raises :class:`CommandError` if the text cannot be edited safely.
    """
    expected = parse_config(text)
    expected.backend = backend
    try:
        edited = config_edit.set_backend(text, backend)
        if parse_config(edited) == expected:
            return edited
        reason = "the edited text would have another meaning"
    except ValueError as error:
        reason = str(error)
    raise CommandError(f'config.pbtxt cannot be edited: {reason}. Write it by hand: backend: "{backend}".')


def parse_config(text: str) -> Any:
    """Parse the text of a ``ModelConfig``. Raises ValueError with the fault."""
    try:
        return text_format.Parse(text, models.protobuf().ModelConfig())
    except text_format.ParseError as error:
        raise ValueError(f"it is not a Triton configuration: {error}.") from None
