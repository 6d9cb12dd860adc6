"""The payload types that clients build on, and how base64 and ``.npy`` are read.

Payloads are typed, so that a 422 can name the wrong field. ``.npy`` is read without ``np.load``, which also
opens archives and pickles, allocates whatever the header claims, and raises anything from ``TokenError`` to
``BadZipFile``.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

import numpy as np
import pybase64
from numpy.typing import NDArray
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sm.client.picture_header import PictureHeader, read_header
from sm.client.sessions import Session
from sm.errors import BadInput, StartError, WrongTensor
from sm.http.messages import BOM


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """The facts of its request that a payload knows."""

    #: The model version that the caller named; empty for the server's choice.
    version: str = ""
    #: The content type that the caller accepts.
    accept: str = "application/json"
    #: The caller's ``X-Amzn-SageMaker-*`` headers, names in lower case.
    headers: dict[str, str] = field(default_factory=dict)
    session: Session | None = None
    #: Headers of the answer, which the client sets while it works.
    answer_headers: dict[str, str] = field(default_factory=dict)
    #: The caller's Accept header; empty if there is none.
    accept_header: str = ""

    @property
    def count(self) -> int:
        """How many records the request has."""
        return 1


Description = TypeVar("Description", bound=BaseModel)


def read_description(kind: type[Description], path: Path) -> Description:
    """Read a JSON file of a model's folder.

    Raises:
        StartError: The file cannot be read or a field is wrong; the sentence names both.
    """
    try:
        return kind.model_validate_json(path.read_bytes().removeprefix(BOM))
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise StartError(f"{path}: {field}: {first['msg']}.") from None


#: Custom attributes that SageMaker accepts: up to 1,024 visible ASCII characters.
ATTRIBUTES = re.compile(r"[ -~]{0,1024}")

#: In ``content_types``: a raw body of any type.
ANY_TYPE = "*/*"

#: The dimensions of a tensor in a payload, at most. NumPy 1 allows 32, and the batch dimension needs one.
MAX_DIMENSIONS = 31

#: Texts that callers send in place of base64, in the order in which they are looked for.
BASE64_FAULTS = (
    (re.compile(r"\A\s*[A-Za-z][A-Za-z0-9+.-]*://"), "it is an address; send the bytes themselves"),
    (re.compile(r"\Ab['\"]"), "it is the text of a Python bytes object; call decode() in place of str()"),
    (re.compile(r"\s"), "it has line breaks or spaces; send it in one line, as base64 -w0 writes it"),
    (re.compile(r"[^A-Za-z0-9+/=_-]"), "it has other characters than those of base64"),
    (re.compile(r"[_-]"), "it is in the URL-safe alphabet; send + and / in place of - and _"),
)

#: A PNG of 48 x 48 pixels, in base64: the sun over a meadow.
EXAMPLE_PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAADAAAAAwAgMAAAAqbBEUAAAACVBMVEWPxOj3yUg+fE8NAvZbAAAAUUlEQVR42mNgoCZghjFC"
    "xR4wMEHZjAwCDHAOCwMLgiPAwIjgODAwOMA5DAwMDMRyYJa+VmDYBpf5wPAfoewPwx8E5z/DB4bhABhXkR5UA88BAI7vCm6n"
    "BUGUAAAAAElFTkSuQmCC"
)


class Payload(BaseModel):
    """One record as a typed object. A client's payload inherits from it and adds fields.

    A field called ``parameters`` is filled from the ``parameters`` of the whole request. Unknown fields, NaN
    and infinity are errors of the caller (422).

    Example::

        class Question(Payload):
            main_field = "text"
            text: str = Field(max_length=1000)
            parameters: Options = Field(default_factory=Options)
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    #: The field that is filled from a bare JSON string or a raw body; None: neither is accepted.
    main_field: ClassVar[str | None] = None
    #: Content types of raw bodies that this payload can be read from, such as ``image/png``; ``*/*``
    #: stands for any but JSON.
    content_types: ClassVar[tuple[str, ...]] = ()
    #: True for :class:`BodyPayload`.
    takes_bodies: ClassVar[bool] = False
    #: True if it takes the word NaN, which JSON does not have (RFC 8259), as null: a missing value.
    reads_nan: ClassVar[bool] = False

    @cached_property
    def _request(self) -> RequestContext:
        """The context that :meth:`attach_request` sets. A private attribute of pydantic's would cost more."""
        return RequestContext()

    @cached_property
    def _length(self) -> int:
        """The length that the client's ``prepare`` returned."""
        return 0

    @property
    def version(self) -> str:
        """The model version that the caller named; empty for the server's choice."""
        return self._request.version

    @property
    def accept(self) -> str:
        """The content type that the caller accepts, such as ``application/json``."""
        return self._request.accept

    @property
    def headers(self) -> dict[str, str]:
        """The caller's ``X-Amzn-SageMaker-*`` headers, names in lower case."""
        return self._request.headers

    @property
    def session(self) -> Session | None:
        """The stateful session of the request, a mapping of text keys to bytes; None outside of one."""
        return self._request.session

    def answer_attributes(self, text: str) -> None:
        """Set the answer's ``X-Amzn-SageMaker-Custom-Attributes`` header.

        If several records of a request set it, the last one counts. A stream must set it before its first
        part.

        Args:
            text: At most 1,024 visible ASCII characters.

        Raises:
            ValueError: SageMaker does not accept the text.
        """
        if not ATTRIBUTES.fullmatch(text):
            raise ValueError("custom attributes are at most 1,024 characters of visible ASCII")
        self._request.answer_headers["X-Amzn-SageMaker-Custom-Attributes"] = text

    def attach_request(self, request: RequestContext) -> None:
        """Attach the record's request; it is called once, before the client."""
        self.__dict__["_request"] = request

    def may_have_caused(self, error: WrongTensor) -> bool:
        """Return True if a wrong tensor may be the caller's fault, so that the answer is 422 and not 500.

        The default is True for a wrong shape, because numbers in the payload may decide it. Names, datatypes
        and the number of rows in one call are the client's.
        """
        return error.fault == "shape"

    @classmethod
    def parameter_names(cls) -> frozenset[str]:
        """Return the names of the ``parameters`` that this payload accepts, aliases too."""
        field = cls.model_fields.get("parameters")
        fields: Mapping[str, FieldInfo] = getattr(field.annotation, "model_fields", {}) if field else {}
        return frozenset(name for own, info in fields.items() for name in keys_of(own, info))

    @classmethod
    def fields_of_raw(cls, body: bytes) -> dict[str, Any]:
        """Read the fields from a raw body of one of ``content_types``.

        The default puts the body into ``main_field``.

        Args:
            body: The request's body.

        Returns:
            Values by field name.

        Raises:
            sm.errors.BadInput: The body cannot be read.
        """
        if cls.main_field is None:
            raise BadInput(f"{cls.__name__} takes no raw body")
        return {cls.main_field: body}

    @classmethod
    def read_raw(cls, body: bytes, options: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG003
        """Read the fields from a raw body. The default is :meth:`fields_of_raw`.

        Args:
            body: The request's body; a text is in UTF-8, whatever its charset was.
            options: The parameters of its content type, such as ``header`` of CSV.
        """
        return cls.fields_of_raw(body)

    @classmethod
    def names_of(cls, field: str) -> tuple[str, ...]:
        """Return the keys under which a caller may send ``field``: its name first, then its aliases."""
        return keys_of(field, cls.model_fields.get(field))

    @classmethod
    def field_of(cls, name: str) -> str:
        """Return the field that a caller's key ``name`` fills; ``name`` itself if no field has that alias."""
        return next((field for field in cls.model_fields if name in cls.names_of(field)), name)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add the aliases of fields to the schema; pydantic describes the first name only."""
        described = handler.resolve_ref_schema(handler(schema))
        for name in cls.model_fields:
            names = cls.names_of(name)
            if len(names) > 1 and name in described.get("properties", {}):
                _describe_aliases(described, names)
        return described


def keys_of(field: str, info: FieldInfo | None) -> tuple[str, ...]:
    """Return a field's name, then its aliases."""
    alias = info.validation_alias if info else None
    choices = alias.choices if isinstance(alias, AliasChoices) else ()
    return (field, *(name for name in choices if isinstance(name, str) and name != field))


def _describe_aliases(schema: JsonSchemaValue, names: tuple[str, ...]) -> None:
    """Add a field's aliases behind it. If the field is required, exactly one of its names is."""
    field, *aliases = names
    properties: dict[str, Any] = {}
    for name, member in schema["properties"].items():
        properties[name] = member
        if name == field:
            for alias in aliases:
                title = alias.replace("_", " ").title()
                properties[alias] = {**member, "title": title, "description": f"The same as `{field}`."}
    schema["properties"] = properties
    required = schema.get("required", [])
    if field in required:
        required.remove(field)
        if not required:
            del schema["required"]
        schema.setdefault("allOf", []).append({"oneOf": [{"required": [name]} for name in names]})


def _from_base64(value: object, info: ValidationInfo) -> object:
    """Decode a JSON string of base64 or a data URL. Bytes of a raw body pass through."""
    if not isinstance(value, str):
        return value
    text = value.split(",", 1)[1] if value.startswith("data:") and "," in value else value
    try:
        # validate=True is both strict and, in pybase64, the faster path.
        return pybase64.b64decode(text, validate=True)
    except ValueError:
        field = f"payload.{info.field_name}"
        raise BadInput(f"{field}: is not valid base64: {_base64_fault(text)}", field=field) from None


def _base64_fault(text: str) -> str:
    """Describe what is wrong with a text that is not valid base64, and the next step."""
    for pattern, fault in BASE64_FAULTS:
        if pattern.search(text):
            return fault
    return "the end may be missing; send the bytes in standard base64 with its padding"


def takes_base64(kind: type[Payload], name: str) -> bool:
    """Return True if the field of this name is :data:`Base64Bytes`."""
    field = kind.model_fields.get(kind.field_of(name))
    return field is not None and any(
        isinstance(part, BeforeValidator) and part.func is _from_base64 for part in field.metadata
    )


Base64Bytes = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


class Parameters(BaseModel):
    """Options that a caller may set for a whole request, as ``parameters``.

    Unknown names, NaN and infinity are errors of the caller (422).

    Example::

        class Options(Parameters):
            top: int = Field(default=5, ge=1, le=100, description="How many classes to return.")
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ImagePayload(Payload):
    """A picture: JPEG, PNG or WebP, in base64 or as a raw body."""

    main_field = "image"
    content_types = ("image/jpeg", "image/png", "image/webp")

    #: The file's bytes. Callers may send the key ``img`` instead.
    image: Base64Bytes = Field(
        min_length=1,
        validation_alias=AliasChoices("image", "img"),
        description="The picture's bytes in base64.",
        examples=[EXAMPLE_PICTURE],
    )

    @cached_property
    def header(self) -> PictureHeader:
        """The format, size and orientation. Raises :class:`~sm.errors.BadInput` if it is not a picture."""
        return read_header(self.image)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the upright picture in pixels. Nothing is decoded for it."""
        return self.header.upright_size

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """The upright picture in full size: RGB uint8 [height, width, 3].

        Raises what :func:`~sm.client.decode` raises.
        """
        from sm.client.images import decode  # Only clients of pictures import OpenCV and Pillow.

        return decode(self.image, header=self.header)

    def pixels_at_least(self, width: int, height: int) -> NDArray[np.uint8]:
        """Decode the picture no larger than necessary.

        A JPEG is decoded at a half, a quarter or an eighth of its size if both sides stay long enough: of
        12 megapixels that takes less than half the time. Other pictures are decoded in full. :attr:`size`
        stays the original's, for boxes and drawing. Every call decodes again, so keep the result.

        Args:
            width: Pixels of the upright result, at least, if the picture has them.
            height: Pixels of the upright result, at least, if the picture has them.

        Returns:
            RGB uint8 [height, width, 3], upright.

        Raises:
            sm.errors.BadInput: The picture is damaged; see :func:`~sm.client.decode` for all errors.

        Example::

            def preprocess(self, payload: ImagePayload) -> Tensors:
                return {"input": self.preprocessing(payload.pixels_at_least(512, 512), payload.size)}
        """
        from sm.client.images import decode

        return decode(self.image, (width, height), self.header)

    def may_have_caused(self, error: WrongTensor) -> bool:  # noqa: ARG002
        """Return False: a picture may have any size, and the client decides the tensor's shape."""
        return False


class TextPayload(Payload):
    """A text, in UTF-8."""

    main_field = "text"
    content_types = ("text/plain",)

    text: str = Field(description="The text.")

    def may_have_caused(self, error: WrongTensor) -> bool:  # noqa: ARG002
        """Return False: a text may have any length, and the client decides the tensor's shape."""
        return False

    @classmethod
    def fields_of_raw(cls, body: bytes) -> dict[str, Any]:
        try:
            # Editors of Windows begin a file with a byte order mark, which is not part of the text.
            return {"text": body.decode("utf-8-sig")}
        except UnicodeDecodeError:
            raise BadInput("the body is not UTF-8 text; encode it as UTF-8") from None


class BodyPayload(Payload):
    """The unchanged body of a request, of any content type; also JSON that is not a dispatch request."""

    content_types = (ANY_TYPE,)
    takes_bodies = True

    body: bytes
    content_type: str
    #: True if the body is the ``payload`` of a dispatch request, so that the result goes into its answer.
    dispatched: bool = False

    @property
    def accept_header(self) -> str:
        """The caller's whole Accept header, of which :attr:`accept` is the best; empty if there is none."""
        return self._request.accept_header

    def may_have_caused(self, error: WrongTensor) -> bool:
        """Return True for shapes and datatypes, which the body may state; names are the client's."""
        return error.fault in ("shape", "datatype")


class TensorPayload(Payload):
    """A tensor, as nested JSON lists or a raw ``.npy`` body."""

    main_field = "tensor"
    content_types = ("application/x-npy",)

    #: Nested lists of numbers, or the array of a ``.npy`` body.
    tensor: Any = Field(description="Nested lists of numbers.", examples=[[[0.5, 1.0]]])

    @cached_property
    def array(self) -> NDArray[Any]:
        """The tensor with the dtype that NumPy infers; a client casts it to its model's dtype.

        Raises:
            sm.errors.BadInput: It is not a regular array of numbers, or has more than 31 dimensions.
        """
        if isinstance(self.tensor, np.ndarray):
            array = self.tensor
        else:
            try:
                array = array_of(self.tensor, NUMBERS)
            except ValueError:
                array = np.asarray(None)
        if array.dtype.kind not in "biuf":
            raise BadInput("the tensor is not a regular array of numbers")
        if array.ndim > MAX_DIMENSIONS:
            raise BadInput(f"the tensor has {array.ndim} dimensions; at most {MAX_DIMENSIONS} are accepted")
        return array

    def may_have_caused(self, error: WrongTensor) -> bool:
        """Return True for a wrong shape, and for a wrong datatype if the client did not cast the tensor."""
        if error.fault == "datatype":
            from_caller = (self.tensor, self.__dict__.get("array"))
            return any(isinstance(array, np.ndarray) and array.dtype == error.dtype for array in from_caller)
        return error.fault == "shape"

    @classmethod
    def fields_of_raw(cls, body: bytes) -> dict[str, Any]:
        return {"tensor": read_npy(body)}


NPY_MAGIC = b"\x93NUMPY"
#: NumPy's readers by the version of the format. The third is for names of fields that no tensor has.
NPY_HEADERS: dict[tuple[int, int], Callable[..., Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
#: Bytes of a header. That of 32 dimensions has less than 500. A wrong one goes through Python's tokenizer.
MAX_NPY_HEADER_BYTES = 4000
#: The largest dimension. NumPy multiplies all dimensions, also if one is 0 and the array is empty.
MAX_SIDE = 2**31


def read_npy(body: bytes) -> NDArray[Any]:
    """Parse a ``.npy`` body into a writable array.

    Raises:
        BadInput: The body is not a ``.npy`` file, holds objects, or is shorter than its header says.
    """
    try:
        return _read_npy(body)
    except Exception:  # NumPy raises anything for a damaged header, TokenError for one
        raise BadInput("the body is not a .npy array (archives and arrays of objects are refused)") from None


def _read_npy(body: bytes) -> NDArray[Any]:
    stream = io.BytesIO(body)
    read_header = NPY_HEADERS[np.lib.format.read_magic(stream)]  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        # Odd escapes and old type names of a caller need no line in the log.
        warnings.simplefilter("ignore")
        shape, fortran_order, dtype = read_header(stream, max_header_size=MAX_NPY_HEADER_BYTES)
    if not all(type(size) is int and 0 <= size <= MAX_SIDE for size in shape):
        raise ValueError("no shape")
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError("no plain array")
    count, start = math.prod(shape), stream.tell()
    if count * dtype.itemsize > len(body) - start:
        raise ValueError("truncated")
    # An empty array of the shape (9, 9, 0) is 81 empty lists in JSON: its size in lists is bounded too.
    if not count and math.prod(filter(None, shape)) > len(body):
        raise ValueError("no shape")
    flat = np.frombuffer(body, dtype, count, start) if count else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran_order else "C").copy(order="K")


def write_npy(value: object) -> bytes:
    """Encode an array, or a value that can become one, as ``.npy``."""
    stream = io.BytesIO()
    np.save(stream, np.asarray(value), allow_pickle=False)
    return stream.getvalue()


#: Bytes of an array of strings. NumPy reserves the longest string's size for every element, four bytes a
#: character: one string of a megabyte among a million numbers would take terabytes.
MAX_TEXT_BYTES = 2**26


#: The Python types that a tensor's numbers have in JSON, and the types of arrays of one of them alone.
NUMBERS = frozenset({int, float, bool})
DTYPES: Mapping[type, Any] = {int: np.int64, float: np.float64}


def array_of(value: object, only: Set[type] = frozenset()) -> NDArray[Any]:
    """Return ``np.array(value)``. NumPy itself takes seven times as long for lists of short lists.

    Args:
        value: Nested lists, or an item.
        only: The types that items may be of; empty for any.

    Raises:
        ValueError: The lists differ in length or depth, an item may not be in them, or NumPy refuses it, or
            their strings take more than :data:`MAX_TEXT_BYTES`.
    """
    level, shape = [value], []
    if type(value) is list:
        level, shape = value, [len(value)]
    while (kinds := set(map(type, level))) == {list}:
        lists = cast("list[list[object]]", level)
        if len(lengths := set(map(len, lists))) > 1:
            raise ValueError("the lists differ in length")
        shape += lengths
        level = list(chain.from_iterable(lists))
    if list in kinds or (only and not kinds <= only):
        raise ValueError("an item may not be among the others")
    if str in kinds:
        longest = max(len(item) for item in level if isinstance(item, str))
        if 4 * longest * len(level) > MAX_TEXT_BYTES:
            raise ValueError("the array of these strings would take too much memory")
    if len(kinds) == 1 and (dtype := DTYPES.get(*kinds)):  # in half the time
        with suppress(OverflowError):
            return np.fromiter(level, dtype, len(level)).reshape(shape)
    return np.array(level).reshape(shape)
