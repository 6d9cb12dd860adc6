"""Short names of models, as callers of the reference gateway use them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

#: A model's name, which is also a folder and a part of a path.
NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}$"


class ShortName(BaseModel):
    """One model: Triton's names, and how a picture becomes its input."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Triton's name of the model, and its folder in the bucket.
    name: str = Field(pattern=NAME)
    input_name: str = Field(min_length=1)
    output_name: str = Field(min_length=1)
    #: Batch, channels, height and width; the batch is 1.
    input_shape: tuple[
        Literal[1], Literal[3], Annotated[int, Field(ge=1, le=4096)], Annotated[int, Field(ge=1, le=4096)]
    ]
    #: ``squash``: the whole picture in the input's height and width, its values divided by 255.
    #: ``preprocess.json``: as that file beside the model says.
    preprocessing: Literal["squash", "preprocess.json"] = "squash"


SHORT_NAMES = TypeAdapter(dict[Annotated[str, Field(pattern=NAME)], ShortName])


def short_names(text: str) -> Mapping[str, ShortName]:
    """Read short names, in their order, from JSON or from the path of a file with JSON."""
    try:
        content = text if text.lstrip().startswith("{") else Path(text).read_text()
    except OSError as error:
        raise ValueError(f"is neither JSON nor a file that can be read: {error.strerror}") from None
    try:
        names = SHORT_NAMES.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the JSON"
        raise ValueError(f"has a mistake in {field}: {first['msg']}") from None
    if not names:
        raise ValueError("has no name in it")
    return names
