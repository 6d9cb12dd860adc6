"""Errors that a script raises to choose its answer.

:func:`sm.plugins.toolkit.script_functions.to_trireme_error` translates them. The stand-in's codecs raise
subclasses that are also the box's own errors: if a script does not catch one, its caller gets the status and
the sentence.
"""

from __future__ import annotations

from sm import errors


class UnsupportedFormatError(Exception):
    """A content type that the script cannot read or write."""

    def __init__(self, content_type: str, **_: object) -> None:
        super().__init__(f"the script does not know the content type {content_type!r}")


class BaseInferenceToolkitError(Exception):
    """An error with a status that the script chose."""

    def __init__(self, status_code: int, message: str, phrase: str) -> None:
        self.status_code, self.message, self.phrase = status_code, message, phrase
        super().__init__(status_code, message, phrase)


class GenericInferenceToolkitError(BaseInferenceToolkitError):
    """The same with defaults."""

    def __init__(self, status_code: int, message: str | None = None, phrase: str | None = None) -> None:
        text = message or "Invalid Request"
        super().__init__(status_code, text, phrase or text)


class UnsupportedBody(UnsupportedFormatError, errors.UnsupportedType):
    """A body's content type that cannot be decoded."""

    def __init__(self, error: errors.UnsupportedType) -> None:
        errors.UnsupportedType.__init__(self, error.sentence)


class UnsupportedAnswer(UnsupportedFormatError, errors.NotAcceptable):
    """A content type in which nothing can be encoded."""

    def __init__(self, error: errors.NotAcceptable) -> None:
        errors.NotAcceptable.__init__(self, error.sentence)


class UnreadableBody(errors.BadInput, ValueError):
    """A body that does not match its content type. The toolkit raises some kind of ValueError."""


class UnwritableAnswer(errors.ClientFailed, TypeError, ValueError):
    """A value that the content type cannot express. The toolkit raises either of the two."""
