"""The default functions as a class that scripts can subclass."""

from __future__ import annotations

from typing import Any

from . import decoder, encoder, errors, utils


class DefaultInferenceHandler:
    """Decodes and encodes; subclasses load a model and call it."""

    def default_model_fn(self, model_dir: str, context: Any = None) -> Any:
        raise NotImplementedError("the script has to have a model_fn(model_dir) that returns the model")

    def default_input_fn(self, input_data: Any, content_type: str, context: Any = None) -> Any:  # noqa: ARG002
        return decoder.decode(input_data, content_type)

    def default_predict_fn(self, data: Any, model: Any, context: Any = None) -> Any:
        raise NotImplementedError("the script has to have a predict_fn(data, model) that returns the result")

    def default_output_fn(self, prediction: Any, accept: str, context: Any = None) -> Any:  # noqa: ARG002
        """Return the encoded value and its content type: the first of ``accept`` that has an encoder."""
        for content_type in utils.parse_accept(accept):
            if content_type in encoder.SUPPORTED_CONTENT_TYPES:
                return encoder.encode(prediction, content_type), content_type
        raise errors.UnsupportedFormatError(accept)
