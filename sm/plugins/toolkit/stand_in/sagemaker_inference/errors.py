"""What a script raises to choose its answer.

:func:`sm.plugins.toolkit.script_functions.to_trireme_error` makes it the box's own.

The codecs of the stand-in raise these too, as kinds that are the box's own errors as well: where a script
does not catch one, its caller gets the status and the sentence.
"""

from __future__ import annotations

from sm import errors


class UnsupportedFormatError(Exception):
    """A content type that the script does not take, or cannot give."""

    def __init__(self, content_type: str, **_: object) -> None:
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


class UnsupportedBody(UnsupportedFormatError, errors.UnsupportedType):
    """A body's content type that cannot be decoded."""

    def __init__(self, error: errors.UnsupportedType) -> None:
        errors.UnsupportedType.__init__(self, error.sentence)


class UnsupportedAnswer(UnsupportedFormatError, errors.NotAcceptable):
    """A content type in which nothing can be encoded."""

    def __init__(self, error: errors.NotAcceptable) -> None:
        errors.NotAcceptable.__init__(self, error.sentence)


class UnreadableBody(errors.BadInput, ValueError):
    """A body that is not what its content type says. The toolkit raises some kind of ValueError."""


class UnwritableAnswer(errors.ClientFailed, TypeError, ValueError):
    """A value that has no form in its content type. The toolkit raises either of the two."""
