"""Text to text in Triton's python backend, decoupled: each token leaves when it is there.

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
from t5 import END, MOST, T5, Refused
from tokenizers import Tokenizer

#: Tokens of an answer where the request says nothing.
USUAL = 64
#: Answers that are made side by side, so that a short one does not wait for a long one.
AT_ONCE = 4


class TritonPythonModel:
    """``text`` STRING [1] and, if wanted, ``max_tokens`` INT32 [1] to any number of ``token`` STRING [1]."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.t5 = T5(folder / args["model_version"])
        self.crew = ThreadPoolExecutor(AT_ONCE)

    def execute(self, requests: list[Any]) -> None:
        """Answers are sent by the crew: Triton may bring the next request meanwhile."""
        for request in requests:
            self.crew.submit(self.answer, request, request.get_response_sender())

    def answer(self, request: Any, sender: Any) -> None:
        """However it ends, the last that is sent says that it is the last: else the caller waits for ever."""
        error = None
        try:
            for count, piece in enumerate(self.pieces(*asked(request))):
                if sender.is_cancelled():
                    triton.Logger.log_info(f"the caller went away after {count} tokens")
                    break
                sender.send(triton.InferenceResponse([triton.Tensor("token", text(piece))]))
        except Refused as refused:
            error = failed(str(refused), triton.TritonError.INVALID_ARG)
        except Exception as fault:
            triton.Logger.log_error(traceback.format_exc())
            error = failed(f"{type(fault).__name__}: {fault}", triton.TritonError.INTERNAL)
        if error:
            sender.send(error)
        sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def pieces(self, words: str, most: int) -> Iterator[str]:
        """The answer in parts: joined they are the text."""
        ids = np.array([self.tokenizer.encode(words).ids])
        said: list[int] = []
        written = ""
        for token in self.t5.answer(ids, np.ones_like(ids), most):
            if token[0] == END:
                return
            said.append(int(token[0]))
            # What a word piece looks like depends on those before it.
            whole = self.tokenizer.decode(said)
            yield whole[len(written) :]
            written = whole

    def finalize(self) -> None:
        self.crew.shutdown(cancel_futures=True)


def asked(request: Any) -> tuple[str, int]:
    """The text and the most tokens of its answer; :class:`Refused` names what cannot be."""
    try:
        words = triton.get_input_tensor_by_name(request, "text").as_numpy()[0].decode()
    except UnicodeDecodeError:
        raise Refused("text is not UTF-8") from None
    if not words.strip():
        raise Refused("text is empty")
    given = triton.get_input_tensor_by_name(request, "max_tokens")
    most = USUAL if given is None else int(given.as_numpy()[0])
    if not 1 <= most <= MOST:
        raise Refused(f"max_tokens is {most}; it is from 1 to {MOST}")
    return words, most


def text(piece: str) -> Any:
    return np.array([piece.encode()], dtype=object)


def failed(reason: str, code: int) -> Any:
    """A response that is an error."""
    return triton.InferenceResponse(output_tensors=[], error=triton.TritonError(reason, code))
