"""Translate Triton's errors: the caller's error, and whether Triton has finished with the request.

A text of Triton's has the caller's words in it: the request's id, names of tensors, what a model quotes. So a
text means something only if it has the code and the whole form of one of :data:`RULES`, from its beginning to
its end. Whatever else a text says, it is a model's or a caller's own, and its code alone decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from grpc import StatusCode as Code

from sm.errors import (
    BadInput,
    DeadlinePassed,
    Interrupted,
    ModelFailed,
    NotFound,
    NotReady,
    OutOfMemory,
    Overloaded,
    Refused,
    TriremeError,
    Unavailable,
    UnknownModel,
    Unsupported,
)
from sm.invocation import current


@dataclass(eq=False)
class Failed(Exception):
    """A call that failed."""

    #: The class of the caller's error.
    kind: type[TriremeError]
    #: The caller's error message.
    sentence: str
    #: True if Triton has finished the request, so that its region may be reused.
    finished: bool
    #: True if Triton does not know the region: it was restarted.
    lost_region: bool = False
    #: True if an output was larger than its room in the region.
    overflowed: bool = False
    #: The model instance whose process Triton gave up on; "" if Triton did not name it, None if there is
    #: none.
    stalled: str | None = None
    #: The model that Triton does not have or does not run; None if it names none.
    subject: str | None = None
    #: The code that Triton answered with; None if it was not Triton.
    code: Code | None = None
    text: str = ""

    @property
    def error(self) -> TriremeError:
        """The caller's error, a new one each time.

        A stored error, raised while this exception is handled, would form a reference cycle with it. The
        request's region would then stay in use until the garbage collector runs.
        """
        return self.kind(self.sentence)

    def of(self, model: str, seconds: float) -> Failed:
        """Return this failure as that of a call of ``model`` which took ``seconds``.

        A model may quote what Triton says of another model, or that a process does not respond.
        """
        is_quoted = self.subject not in (None, model) or (self.stalled is not None and seconds < STALL_S)
        return self.quoted() if is_quoted else self

    def quoted(self) -> Failed:
        """Return this failure as one in which a model said Triton's words."""
        return self if self.code is None else _translate_code(self.code, self.text)


#: Seconds that Triton waits for a sign of life before it gives up on a model's process, less its timer's
#: inaccuracy. A call that ends sooner was ended by the model.
STALL_S = 0.9


@dataclass(frozen=True)
class ErrorRule:
    """The meaning of a text. The first rule that fits is used."""

    #: The codes with which Triton says it; empty for any. A stream has UNKNOWN for all answers of a model,
    #: HTTP's ``generate`` 400.
    codes: tuple[Code, ...]
    #: The whole text, without the ensembles around the model. The group ``subject`` is the model that it is
    #: about, ``instance`` the instance whose process does not respond. Only one part of a form may have any
    #: length, or a caller's text makes it slow.
    text: re.Pattern[str]
    kind: type[TriremeError]
    #: Empty for Triton's own text.
    sentence: str = ""
    #: False if Triton may still write an answer.
    finished: bool = True
    lost_region: bool = False
    overflowed: bool = False


def _said(*forms: str) -> re.Pattern[str]:
    return re.compile("|".join(forms), re.DOTALL)


#: In place of a status that says nothing: a model answered.
MODEL_ANSWERED = 0
#: gRPC's codes for the statuses of Triton's HTTP; UNKNOWN is what a stream has.
HTTP_CODES = {
    MODEL_ANSWERED: Code.UNKNOWN,
    400: Code.INVALID_ARGUMENT,
    404: Code.NOT_FOUND,
    408: Code.DEADLINE_EXCEEDED,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    501: Code.UNIMPLEMENTED,
    503: Code.UNAVAILABLE,
}
#: Codes with which a text may be a model's answer.
ANSWERED = (Code.INTERNAL, Code.UNKNOWN, Code.INVALID_ARGUMENT)

UNREACHABLE = "Triton is not there; it is starting or being started again"
ENDING = "the worker is ending"
LATE = "the invocation's time ended while Triton ran the model"
#: The beginning of a text about a request, which may have an id of any characters.
ID = r"(?:\[request id: .*\] )?"
#: The beginning of a text about a Python model's exception; the exception's type follows.
PYTHON_FAILED = r"Failed to process the request\(s\) for model (?:instance )?'([^']*)', message: "
#: Types of Python's exceptions for a lack of memory: Python's own, NumPy's, and that of PyTorch and CuPy.
MEMORY_ERRORS = r"(?:MemoryError|_ArrayMemoryError|OutOfMemoryError)(?::.*)?"
#: The forms in which Triton, its backends and their libraries say that memory is short.
MEMORY = (
    MEMORY_ERRORS,
    # The box's own models report their engines' exceptions.
    r"\w+: \[ONNXRuntimeError\] : [0-9]+ : .*(?:[Ff]ailed to allocate memory|bad.alloc).*",
    r"RuntimeError: Exception from src/.*(?:[Ff]ailed to allocate|bad.alloc|[Oo]ut of memory).*",
    r"Failed to (?:increase the shared memory pool size|create new mapped region for the grown).*",
    r"(?i:failed|unable) to allocate "
    r"(?:(?:[\w-]+ ){0,3}memory|[0-9]+ bytes|buffer for output|contiguous buffer).*",
    r"CUDA (?:runtime )?error: out of memory.*",
    r"(?:onnx runtime error [0-9]+|PyTorch execute failure): .*"
    r"(?:[Oo]ut of memory|[Ff]ailed to allocate memory|can't allocate memory|bad_alloc).*",
    r"[\w ]{0,40}TensorRT[\w ]{0,40}: .*(?:[Oo]ut of memory|OutOfMemory|OUT_OF_MEMORY).*",
)

#: Texts of the releases 2.51, 2.71 and 2.73 (August 2026). A rule may have a form of each release.
RULES = (
    ErrorRule(
        (Code.UNAVAILABLE,),
        _said(r"Request for unknown model: '(?P<subject>.*)' version [0-9]+ is not at ready state"),
        Refused,
    ),
    ErrorRule(
        (Code.NOT_FOUND, Code.INVALID_ARGUMENT),
        _said(
            r"Request for unknown model: '(?P<subject>.*)' "
            r"(?:(?:version [0-9]+ )?is not found|has no available versions)"
        ),
        UnknownModel,
    ),
    ErrorRule(
        (Code.NOT_FOUND, Code.INVALID_ARGUMENT),
        _said(
            # The routes of the trace's settings.
            r"Request for unknown model : .*",
            r"failed to get model version from specified version string '.*"
            r"version should be an integral value > 0",
        ),
        UnknownModel,
    ),
    ErrorRule(
        (Code.UNAVAILABLE,),
        _said(ID + "Exceeds maximum queue size"),
        Overloaded,
        "the model's queue in Triton is full",
    ),
    ErrorRule(
        (Code.UNAVAILABLE, *ANSWERED),
        _said("Request timeout expired"),
        DeadlinePassed,
        "the invocation's time ended in Triton's queue",
    ),
    ErrorRule(
        (Code.NOT_FOUND,),
        _said(r"Unable to find (?:system |cuda )?shared memory region: '.*'"),
        NotReady,
        "Triton lost its shared memory",
        lost_region=True,
    ),
    ErrorRule(
        ANSWERED,
        _said(
            r"shared memory size specified with the request for output '.*' \([0-9]+ bytes\) "
            r"should be at least [0-9]+ bytes to hold the results"
        ),
        ModelFailed,
        overflowed=True,
    ),
    # Triton, while it stops.
    ErrorRule(
        (Code.UNAVAILABLE, Code.CANCELLED),
        _said(
            "Server (?:not ready|exiting|shutdown)",  # 2.73 has no shutdown
            "Server is stopping, scheduler for model has stopped accepting new inference requests",
            r"GRPC server is shutting down and has stopped accepting new requests\.",  # not in 2.51
            "(?:CANCELLED|Cancelled)?",
        ),
        Interrupted,
        UNREACHABLE,
        finished=False,
    ),
    ErrorRule(
        ANSWERED,
        _said(
            ID + r"(?:in ensemble '[^']*', )*(?:Stub process (?:'(?P<instance>[^']*)' )?is not healthy|"
            r"Failed to obtain the health mutex)\.",
        ),
        Interrupted,
        "the model's process does not respond; it is started again",
        finished=False,
    ),
    ErrorRule(
        ANSWERED,
        _said(*MEMORY, *(PYTHON_FAILED + form for form in MEMORY)),
        OutOfMemory,
        finished=False,
    ),
    ErrorRule(
        (), _said(r"Failed to process the request(?:s\.|\(s\) for model |s? for model ).*"), ModelFailed
    ),
    # The box's own models, of an input that does not fit: a stream and ``generate`` lose the code.
    ErrorRule(
        (Code.UNKNOWN,),
        _said(
            r"InvalidArgument: \[ONNXRuntimeError\] : 2 : INVALID_ARGUMENT : .*", r"UnicodeDecodeError: .*"
        ),
        BadInput,
    ),
    # Triton's parser of JSON, which answers 500 over HTTP.
    ErrorRule(
        (Code.INTERNAL,),
        _said(
            r"failed to parse the request JSON buffer: .*",
            r"(?:Unable to (?:parse|set)|Failed to parse) '[a-z_]+'(?: field)?: .*",
            r"Unable to parse JSON bytes array: .*",
            r"failed to get request params\.: .*",
            r"parameter key '.*' was not found in the JSON",
            r"(?:Expected JSON object for|Converting) keyword: '.*' ?: attempt to .*",
            r"attempt to (?:get members|access (?:JSON|non-existing)) .*",
        ),
        BadInput,
    ),
)
#: The meaning of a text that fits no rule, by its code, and whether Triton has finished the request.
KINDS: dict[Code, tuple[type[TriremeError], bool]] = {
    Code.NOT_FOUND: (NotFound, True),
    Code.INVALID_ARGUMENT: (BadInput, True),
    Code.UNIMPLEMENTED: (Unsupported, True),
    Code.RESOURCE_EXHAUSTED: (Overloaded, False),
    Code.UNAVAILABLE: (Unavailable, False),
    Code.DEADLINE_EXCEEDED: (DeadlinePassed, False),
}

#: The beginning and the end of :data:`ID`.
REQUEST_ID, END_OF_ID = "[request id: ", "] "
#: The beginning of a text about a step of an ensemble.
ENSEMBLES = re.compile(r"(?:in ensemble '[^']*', )*")


def translate_status(code: Code | None, text: str) -> Failed:
    """Translate the status with which a call ended.

    Args:
        code: None if Triton refused the call itself and gives no code, as in a stream.
        text: Triton's.
    """
    said = ENSEMBLES.sub("", text, count=1)
    for rule in RULES:
        if rule.codes and code and code not in rule.codes:
            continue
        if match := rule.text.fullmatch(said):
            groups = match.groupdict()
            return Failed(
                rule.kind,
                rule.sentence or sentence(text),
                rule.finished,
                rule.lost_region,
                rule.overflowed,
                stalled=(groups["instance"] or "") if "instance" in groups else None,
                # An error of a step concerns the whole ensemble.
                subject=groups.get("subject") if said == text else None,
                code=code or Code.INVALID_ARGUMENT,
                text=text,
            )
    return _translate_code(code or Code.INVALID_ARGUMENT, text)


def _translate_code(code: Code, text: str) -> Failed:
    kind, finished = KINDS.get(code, (ModelFailed, False))
    said = LATE if kind is DeadlinePassed else sentence(text)
    return Failed(kind, said, finished, code=code, text=text)


#: Sentences of gRPC's own client about a connection, up to 1.85: beginnings, as the ends differ. A
#: model may say the same, so such a call is never known as one that was not sent.
CONNECTION = _said(
    r"(?:[Ff]ailed to connect|[Ss]ocket closed|Stream removed|recvmsg:|sendmsg:|Broken pipe|GOAWAY|EOF|"
    r"[\w ]{0,40}[Cc]onnection (?:reset|refused|aborted|closed)|[Kk]eepalive|[Pp]ing timeout|[Tt]ransport |"
    r"[Ee]ndpoint |Channel closed|Locally cancelled).*"
)


def translate_client_status(code: Code, text: str) -> Failed:
    """Translate the status of a call through gRPC's own client, which has the same codes as a server."""
    if code in (Code.UNAVAILABLE, Code.CANCELLED) and CONNECTION.fullmatch(text):
        return lost_connection(code)
    return translate_status(code, text)


def lost_connection(code: Code = Code.UNAVAILABLE, reason: str = "") -> Failed:
    """Return the failure of a call whose connection ended, or that the server reset with a code."""
    if code in (Code.UNAVAILABLE, Code.CANCELLED):
        return Failed(Interrupted, UNREACHABLE, finished=False)
    return _translate_code(code, reason)


def translate_http_status(status: int, text: str) -> Failed:
    """Translate an error from Triton's HTTP port to the same failure as over gRPC."""
    return translate_status(HTTP_CODES.get(status, Code.INTERNAL), text)


def without_request_id(text: str) -> str:
    """Return a text without the id of its request, which may have any characters in it.

    If the id is not known, what follows the last end of an id is taken.
    """
    if not text.startswith(REQUEST_ID):
        return text
    running = current()
    for known in (running.request_id if running else "", "<id_unknown>"):
        prefix = f"{REQUEST_ID}{known}{END_OF_ID}"
        if known and text.startswith(prefix):
            return text[len(prefix) :]
    return text[text.rfind(END_OF_ID) + len(END_OF_ID) :]


#: Places in the box's run folder; what follows is the model's own.
RUN_FOLDER = re.compile(r"/trireme-\w{8}/(?:archives/\w+/files/|models/|repository/)?")
#: Text that may be a path. A path with a space is cut in two.
WORD = re.compile(r"[^\s'\":(]+")
#: Names of shared memory: the box's and its Python models', and the Python backend's default. Whoever knows
#: one is a step nearer to reading it (CVE-2025-23320).
REGION_NAMES = re.compile(r"/?\b(?:trireme-[0-9a-f]|triton_python_backend_shm)[\w-]*")
PYTHON_FAILURE = re.compile(PYTHON_FAILED)
#: Characters of an error's sentence, and of the text that it is made from.
MAX_SENTENCE, MAX_TEXT = 500, 4000


def sentence(text: str) -> str:
    """Return Triton's text for a caller, without the request's id, the model instance and the traceback.

    The names of shared memory and the path of the run folder are left out.
    """
    text = without_request_id(text)[:MAX_TEXT].partition("\n\nAt:")[0]
    text = REGION_NAMES.sub("…", WORD.sub(lambda match: _without_run_folder(match[0]), text))
    if match := PYTHON_FAILURE.match(text):
        model = match[1]
        while model.rpartition("_")[2].isdecimal():
            model = model.rpartition("_")[0]
        text = f"model {model!r} failed: {text[match.end() :]}"
    return " ".join(text.split())[:MAX_SENTENCE]


def _without_run_folder(word: str) -> str:
    ends = [match.end() for match in RUN_FOLDER.finditer(word)]
    return word[: word.index("/")] + word[ends[-1] :] if ends else word
