"""The payload types that clients build on. They are typed, so that a 422 names the wrong field."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, ClassVar

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
    PrivateAttr,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sm.client.nested_numbers import array_of
from sm.client.npy import read_npy
from sm.client.picture_header import PictureHeader, read_header
from sm.client.request_context import RequestContext
from sm.client.sessions import Session
from sm.decoded_base64 import DecodedBase64
from sm.errors import BadInput, WrongTensor

#: What the platform carries as custom attributes.
ATTRIBUTES = re.compile(r"[ -~]{0,1024}")

#: Of a tensor. NumPy 1 has 32, of which a model's batch dimension takes one.
MAX_DIMENSIONS = 31

#: A PNG of one white pixel.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQEAHLCMmQAAAABJRU5ErkJggg=="


class Payload(BaseModel):
    """What a caller sends for one record.

    A client adds fields. A field called ``parameters`` is filled from the invocation's own
    ``parameters`` object. Unknown fields, NaN and infinity are refused.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    #: The field that a payload which is a bare JSON string stands for, and a raw body too.
    main_field: ClassVar[str | None] = None
    #: The content types of a raw body this payload can be read from.
    content_types: ClassVar[tuple[str, ...]] = ()

    _request: RequestContext = PrivateAttr(default_factory=RequestContext)

    @property
    def version(self) -> str:
        """The model version asked for; empty for the server's choice."""
        return self._request.version

    @property
    def accept(self) -> str:
        """The content type the caller wants."""
        return self._request.accept

    @property
    def headers(self) -> dict[str, str]:
        """The caller's ``X-Amzn-SageMaker-*`` headers, names in lower case."""
        return self._request.headers

    @property
    def session(self) -> Session | None:
        """The stateful session that the request belongs to: a mapping of keys to bytes."""
        return self._request.session

    def answer_attributes(self, text: str) -> None:
        """Set the answer's ``X-Amzn-SageMaker-Custom-Attributes``; of several records' the last one's stay.

        Of a stream it must be done before the first part. ValueError for what the platform does not carry.
        """
        if not ATTRIBUTES.fullmatch(text):
            raise ValueError("custom attributes are at most 1,024 characters of visible ASCII")
        self._request.answer_headers["X-Amzn-SageMaker-Custom-Attributes"] = text

    def attach_request(
        self,
        version: str,
        accept: str,
        headers: dict[str, str],
        session: Session | None = None,
        answer: dict[str, str] | None = None,
        accept_named: bool = True,
    ) -> None:
        """Say how the record was asked for, and where the answer's headers go; the dispatcher does, once."""
        self._request = RequestContext(
            version, accept, headers, session, {} if answer is None else answer, accept_named
        )

    def may_have_caused(self, error: WrongTensor) -> bool:
        """Whether a tensor may be wrong because of what the caller sent, and not because of the client.

        Names are never the caller's. Numbers in fields of a client's own may decide a tensor's shape.
        """
        return error.fault == "shape"

    @classmethod
    def parameter_names(cls) -> frozenset[str]:
        """The names of the ``parameters`` that this payload takes."""
        declared = cls.model_fields.get("parameters")
        return frozenset(getattr(declared.annotation, "model_fields", ())) if declared else frozenset()

    @classmethod
    def fields_of_raw(cls, body: bytes) -> dict[str, Any]:
        """The fields that a raw body of one of ``content_types`` stands for."""
        if cls.main_field is None:
            raise BadInput(f"{cls.__name__} takes no raw body")
        return {cls.main_field: body}

    @classmethod
    def names_of(cls, field: str) -> tuple[str, ...]:
        """The keys under which a caller may send ``field``: its name first, then its aliases."""
        declared = cls.model_fields.get(field)
        alias = declared.validation_alias if declared else None
        choices = alias.choices if isinstance(alias, AliasChoices) else ()
        return (field, *(name for name in choices if isinstance(name, str) and name != field))

    @classmethod
    def field_of(cls, name: str) -> str:
        """The field that a caller's key ``name`` means; ``name`` itself where there is no such alias."""
        return next((field for field in cls.model_fields if name in cls.names_of(field)), name)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """pydantic describes the first name of a field alone: the aliases are added, one of them required."""
        described = handler.resolve_ref_schema(handler(schema))
        for field in cls.model_fields:
            names = cls.names_of(field)
            if len(names) > 1 and field in described.get("properties", {}):
                _describe_aliases(described, names)
        return described


def _describe_aliases(schema: JsonSchemaValue, names: tuple[str, ...]) -> None:
    first, *others = names
    properties: dict[str, Any] = {}
    for name, member in schema["properties"].items():
        properties[name] = member
        if name == first:
            for other in others:
                title = other.replace("_", " ").title()
                properties[other] = {**member, "title": title, "description": f"The same as `{first}`."}
    schema["properties"] = properties
    required = schema.get("required", [])
    if first in required:
        required.remove(first)
        if not required:
            del schema["required"]
        schema.setdefault("allOf", []).append({"oneOf": [{"required": [name]} for name in names]})


def _from_base64(value: object) -> object:
    """A JSON string to bytes, also as a data URL; bytes (a raw body) pass through."""
    if isinstance(value, DecodedBase64):
        return value.content
    if not isinstance(value, str):
        return value
    text = value.split(",", 1)[1] if value.startswith("data:") and "," in value else value
    try:
        # validate=True is both strict and, in pybase64, the faster path.
        return pybase64.b64decode(text, validate=True)
    except ValueError:
        raise BadInput("the value is not valid base64") from None


def takes_decoded_base64(kind: type[Payload], name: str) -> bool:
    """Whether a field is :data:`Base64Bytes`."""
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
    """What a caller may set for a whole request. Unknown names, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ImagePayload(Payload):
    """A picture: JPEG, PNG or WebP, in base64 or as a raw body."""

    main_field = "image"
    content_types = ("image/jpeg", "image/png", "image/webp")

    #: A caller may send it as ``img`` too.
    image: Base64Bytes = Field(
        min_length=1,
        validation_alias=AliasChoices("image", "img"),
        description="The picture's bytes in base64.",
        examples=[DOT],
    )

    @cached_property
    def header(self) -> PictureHeader:
        """What stands before the picture's pixels. :class:`~sm.errors.BadInput` if it is no picture."""
        return read_header(self.image)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, upright. Nothing is decoded for it."""
        return self.header.upright_size

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """RGB uint8 [height, width, 3], upright, full size. :class:`~sm.errors.BadInput` for no picture."""
        from sm.client.images import decode  # OpenCV and Pillow: only who looks at pictures waits for them

        return decode(self.image, header=self.header)

    def pixels_at_least(self, width: int, height: int) -> NDArray[np.uint8]:
        """RGB uint8 [height, width, 3], upright, and no larger than necessary.

        A JPEG is decoded to a half, a quarter or an eighth of its size where both sides stay at least
        ``width`` and ``height``: of 12 megapixels that takes less than half the time. Other pictures come in
        full. :attr:`size` stays the original's, for boxes and drawing. Every call decodes: keep the result.
        """
        from sm.client.images import decode

        return decode(self.image, (width, height), self.header)

    def may_have_caused(self, error: WrongTensor) -> bool:  # noqa: ARG002
        """No: a picture may have any size, and the client makes the tensor of it."""
        return False


class TextPayload(Payload):
    """A text, in UTF-8."""

    main_field = "text"
    content_types = ("text/plain",)

    text: str = Field(description="The text.")

    def may_have_caused(self, error: WrongTensor) -> bool:  # noqa: ARG002
        """No: a text may have any length, and the client makes the tensor of it."""
        return False

    @classmethod
    def fields_of_raw(cls, body: bytes) -> dict[str, Any]:
        try:
            return {"text": body.decode("utf-8")}
        except UnicodeDecodeError:
            raise BadInput("the body is not UTF-8 text") from None


class BodyPayload(Payload):
    """The whole body as it came, of any content type; JSON too, unless it is a whole dispatch request."""

    content_types = ("*/*",)

    body: bytes
    content_type: str
    #: Whether the body is the ``payload`` of a dispatch request: the result has to stand in its answer.
    dispatched: bool = False

    @property
    def accept_named(self) -> bool:
        """Whether the caller asked for :attr:`accept`; False where it is the box's default."""
        return self._request.accept_named

    def may_have_caused(self, error: WrongTensor) -> bool:
        """Of the tensors that a body may hold the shape and the datatype are the caller's."""
        return error.fault != "name"


class TensorPayload(Payload):
    """A tensor, as nested JSON lists or a raw ``.npy`` body."""

    main_field = "tensor"
    content_types = ("application/x-npy",)

    tensor: Any = Field(description="Nested lists of numbers.", examples=[[[0.5, 1.0]]])

    @cached_property
    def array(self) -> NDArray[Any]:
        """The tensor as NumPy has it; a client casts it to what its model takes."""
        if isinstance(self.tensor, np.ndarray):
            array = self.tensor
        else:
            try:
                array = array_of(self.tensor)
            except ValueError:
                array = np.asarray(None)
        if array.dtype.kind not in "biuf":
            raise BadInput("the tensor is not a regular array of numbers")
        if array.ndim > MAX_DIMENSIONS:
            raise BadInput(f"the tensor has {array.ndim} dimensions; at most {MAX_DIMENSIONS} are accepted")
        return array

    def may_have_caused(self, error: WrongTensor) -> bool:
        """The shape is the caller's, and the datatype too unless the client has changed it."""
        if error.fault == "datatype":
            sent = (self.tensor, self.__dict__.get("array"))
            return any(isinstance(array, np.ndarray) and array.dtype == error.dtype for array in sent)
        return error.fault == "shape"

    @classmethod
    def fields_of_raw(cls, body: bytes) -> dict[str, Any]:
        return {"tensor": read_npy(body)}
