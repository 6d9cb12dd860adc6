"""What a script raises to choose its answer. :func:`sm.toolkit.handler.translated` makes it the box's own."""

from __future__ import annotations


class UnsupportedFormatError(Exception):
    """A content type that the script does not take, or cannot give."""

    def __init__(self, content_type: str) -> None:
        super().__init__(f"the script does not know the content type {content_type!r}")


class BaseInferenceToolkitError(Exception):
    """An error with a status of the script's choice."""

    def __init__(self, status_code: int, message: str, phrase: str) -> None:
        self.status_code, self.message, self.phrase = status_code, message, phrase
        super().__init__(status_code, message, phrase)


class GenericInferenceToolkitError(BaseInferenceToolkitError):
    """The same, with what is not said filled in."""

    def __init__(self, status_code: int, message: str | None = None, phrase: str | None = None) -> None:
        said = message or "Invalid Request"
        super().__init__(status_code, said, phrase or said)
