"""Text to text in Triton's python backend, decoupled: each token is sent as soon as it is generated.

Runs in an environment of its own (``../requirements.txt``), so it imports nothing of the box.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton
from t5 import END, MAX_ANSWER_TOKENS, T5, BadInput
from tokenizers import Tokenizer

#: Tokens of an answer if the request does not set ``max_tokens``.
DEFAULT_TOKENS = 64
#: Answers that are generated at the same time, so that a short one does not wait for a long one.
MAX_CONCURRENT_ANSWERS = 4


class TritonPythonModel:
    """Takes ``text`` STRING [1] and optionally ``max_tokens`` INT32 [1]; gives many ``token`` STRING [1]."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.t5 = T5(folder / args["model_version"])
        self.executor = ThreadPoolExecutor(MAX_CONCURRENT_ANSWERS)

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests to threads and return, so that Triton can deliver the next ones meanwhile."""
        for request in requests:
            self.executor.submit(self.send_answer, request, request.get_response_sender())

    def send_answer(self, request: Any, sender: Any) -> None:
        """Send the parts of an answer and, in any case, the final flag: the caller waits for it."""
        error = None
        try:
            for count, part in enumerate(self.generate_text(*read_request(request))):
                if sender.is_cancelled():
                    triton.Logger.log_info(f"the caller went away after {count} tokens")
                    break
                sender.send(triton.InferenceResponse([triton.Tensor("token", to_tensor_data(part))]))
        except BadInput as mistake:
            error = error_response(str(mistake), triton.TritonError.INVALID_ARG)
        except Exception as failure:
            triton.Logger.log_error(traceback.format_exc())
            error = error_response(f"{type(failure).__name__}: {failure}", triton.TritonError.INTERNAL)
        if error:
            sender.send(error)
        sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def generate_text(self, prompt: str, max_tokens: int) -> Iterator[str]:
        """Yield the answer in parts; joined they are the whole text."""
        ids = np.array([self.tokenizer.encode(prompt).ids])
        tokens: list[int] = []
        sent = ""
        for token in self.t5.generate(ids, np.ones_like(ids), max_tokens):
            if token[0] == END:
                return
            tokens.append(int(token[0]))
            # Decode all tokens: the text of a word piece depends on those before it.
            text = self.tokenizer.decode(tokens)
            yield text[len(sent) :]
            sent = text

    def finalize(self) -> None:
        self.executor.shutdown(cancel_futures=True)


def read_request(request: Any) -> tuple[str, int]:
    """Return the text and the maximum of tokens. Raises :class:`BadInput`."""
    try:
        text = triton.get_input_tensor_by_name(request, "text").as_numpy()[0].decode()
    except UnicodeDecodeError:
        raise BadInput("text is not UTF-8") from None
    if not text.strip():
        raise BadInput("text is empty")
    tensor = triton.get_input_tensor_by_name(request, "max_tokens")
    max_tokens = DEFAULT_TOKENS if tensor is None else int(tensor.as_numpy()[0])
    if not 1 <= max_tokens <= MAX_ANSWER_TOKENS:
        raise BadInput(f"max_tokens is {max_tokens}; it is from 1 to {MAX_ANSWER_TOKENS}")
    return text, max_tokens


def to_tensor_data(text: str) -> Any:
    return np.array([text.encode()], dtype=object)


def error_response(reason: str, code: int) -> Any:
    return triton.InferenceResponse(output_tensors=[], error=triton.TritonError(reason, code))
