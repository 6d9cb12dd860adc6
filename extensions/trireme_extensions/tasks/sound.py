"""Tasks of sound: what a recording is of, and the words in it."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import re
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sm.client.base import TensorMetadata, Tensors
from sm.client.decode_budget import DECODED
from sm.client.described import Activation
from sm.client.payloads import Base64Bytes, Payload
from sm.client.results import Classes, Text
from sm.client.tensor_roles import UnsuitableModel, find_output, format_tensors, record_shape
from sm.errors import BadInput, StartError
from trireme_extensions.tasks.cleanup import clean_up
from trireme_extensions.tasks.task_file import Classifier, Task, TaskFile, Top

Samples = NDArray[np.float32]
#: How WAV, FLAC, OGG and MP3 begin. The library reads many more formats, which nobody needs here.
RECORDING = re.compile(rb"(?:RIFF|RIFX|RF64).{4}WAVE|fLaC|OggS|ID3|\xff[\xe0-\xff]", re.DOTALL)
#: Frames that are decoded at once, the channels of one, and the frames of a second.
BLOCK_FRAMES, MAX_CHANNELS, MAX_RATE = 2**16, 8, 192_000
#: Bytes of memory for each frame while it is decoded (blocks, whole, normalised), and while the rate changes.
DECODE_BYTES, RESAMPLE_BYTES = 16, 32
#: Formats whose header says how many frames there are; of others it may be an estimate.
COUNTED = ("WAV", "WAVEX", "RF64", "FLAC")
#: The bytes before the first chunk of a WAV, and those of a chunk's name and length.
WAV_START, CHUNK_START = 12, 8
#: Where RF64's first chunk has the length of the samples (64 bits), and the length that points there.
RF64_LENGTH, IN_RF64 = slice(28, 36), 0xFFFFFFFF
#: 0.1 s of silence, a WAV of 8 bits.
EXAMPLE_SOUND = base64.b64encode(
    b"RIFF\x44\x03\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x40\x1f\0\0\1\0\x08\0data\x20\x03\0\0"
    + b"\x80" * 800
).decode()


class SoundOptions(TaskFile):
    """Options for the recordings that a model takes, and for its labels or letters."""

    rate: int = Field(default=16_000, ge=1, le=MAX_RATE, description="Samples of a second.")
    normalise: bool = Field(default=True, description="Samples have the mean 0 and the variance 1.")
    max_seconds: float = Field(default=30, gt=0, le=3600, description="A longer recording is refused.")
    #: The activation of a classifier.
    activation: Activation = "auto"
    #: The token of a frame without a letter, and the one between words, for speech.
    blank: str = "<pad>"
    delimiter: str = "|"
    clean_up: bool = Field(default=False, description="Remove the spaces before marks and endings.")


class Sound(Payload):
    """A recording: WAV, FLAC, MP3 or OGG, in base64 or as a raw body."""

    main_field = "audio"
    content_types = ("audio/wav", "audio/x-wav", "audio/flac", "audio/mpeg", "audio/ogg")

    audio: Base64Bytes = Field(
        min_length=1, description="The recording's bytes in base64.", examples=[EXAMPLE_SOUND]
    )


class ClassifiedSound(Sound):
    """A recording to classify."""

    parameters: Top = Field(default_factory=Top)


class SoundTask(Task):
    """A client whose model reads the samples of a recording; several channels become one."""

    options = SoundOptions
    payload: ClassVar[type[Payload]] = Sound

    def setup(self) -> None:
        super().setup()
        metadata = self.metadata
        try:
            import soundfile  # noqa: F401  # the first recording would find out
        except ImportError:
            raise StartError("soundfile is missing: pip install 'trireme-serving[sound]'.") from None
        waves = {
            tensor.name: shape[0]
            for tensor in metadata.inputs.values()
            if tensor.datatype == "FP32" and (shape := record_shape(metadata, tensor, 1))
        }
        if len(waves) != 1 or metadata.inputs.keys() - waves.keys() - {"attention_mask"}:
            raise UnsuitableModel(
                f"{self.model!r} takes {format_tensors(metadata.inputs.values())}: one FP32 input of samples "
                "is expected, and at most an attention_mask. A model of spectrograms needs a client."
            )
        ((self.input, self.length),) = waves.items()
        self.has_mask = len(metadata.inputs) > 1
        length_s = self.length / self.settings.rate if self.length > 0 else math.inf
        self.max_seconds = min(self.settings.max_seconds, length_s)

    def preprocess(self, payload: Any) -> Tensors:
        """Return the samples, float32 [n], at the model's rate."""
        samples = read_recording(payload.audio, self.settings.rate, self.max_seconds)
        if self.settings.normalise:
            samples = (samples - samples.mean()) / np.sqrt(samples.var() + np.float32(1e-7))
        count = len(samples)
        samples = (
            np.pad(samples[: self.length], (0, max(0, self.length - count))) if self.length > 0 else samples
        )
        mask = {"attention_mask": (np.arange(len(samples)) < count).astype(np.int64)} if self.has_mask else {}
        return {self.input: samples, **mask}


class AudioClassification(SoundTask, Classifier):
    """``[{"label", "score"}]`` of a recording, the best first."""

    payload = ClassifiedSound
    result = Classes()


class SpeechRecognition(SoundTask):
    """``{"text"}``: what is said. Serves a model that scores the tokens of each frame (CTC), as Wav2Vec2."""

    result = Text()

    def find_output(self) -> TensorMetadata:
        output, path = find_output(self.metadata, 2, ("logits",)), self.home / "vocab.json"
        try:
            vocabulary = {int(index): token for token, index in json.loads(path.read_bytes()).items()}
            self.blank = next(index for index, token in vocabulary.items() if token == self.settings.blank)
        except StopIteration:
            raise StartError(f"{path} has no token {self.settings.blank}, the blank in task.json.") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise StartError(f"{path} is not a vocabulary of tokens and numbers: {error}.") from None
        if output.shape[1] not in (-1, len(vocabulary)):
            raise StartError(f"{path} has {len(vocabulary)} tokens for {output.shape[1]} classes.")
        # Transformers' pipeline leaves out the blank alone: a model that says <s> is to be seen.
        self.tokens = {
            index: "" if token == self.settings.blank else token for index, token in vocabulary.items()
        }
        return output

    def postprocess(self, outputs: Tensors, payload: Any) -> dict[str, str]:  # noqa: ARG002
        logits = outputs[self.output.name]
        best = logits.reshape(-1, logits.shape[-1]).argmax(axis=1).tolist()
        # A token that goes on for several frames is one; a blank between two makes them two.
        text = "".join(self.tokens[index] for index, _ in itertools.groupby(best))
        text = text.replace(self.settings.delimiter, " ").strip()
        return {"text": clean_up(text) if self.settings.clean_up else text}


def read_recording(content: bytes, rate: int, max_seconds: float) -> Samples:
    """Decode a recording to one channel at a rate, float32 [n].

    Raises:
        BadInput: It is not a recording, or damaged, empty, or longer than ``max_seconds``.
    """
    import soundfile

    if not RECORDING.match(content):
        raise BadInput("the bytes are not a WAV, FLAC, MP3 or OGG recording")
    try:
        with soundfile.SoundFile(io.BytesIO(with_length(content))) as file:
            sent_rate: int = file.samplerate
            if file.channels > MAX_CHANNELS or not 0 < sent_rate <= MAX_RATE:
                raise BadInput(
                    f"the recording has {file.channels} channels of {sent_rate:,} samples a second; at most "
                    f"{MAX_CHANNELS} of {MAX_RATE:,} are read"
                )
            most = int(max_seconds * sent_rate)
            frames = min(file.frames, most) if file.format in COUNTED else most
            size = DECODE_BYTES * frames
            if sent_rate != rate:
                size += RESAMPLE_BYTES * (frames + frames * rate // sent_rate)
            # Silence of an hour may be a few kilobytes.
            with DECODED.reserve(size):
                samples = _decode(file, most, max_seconds)
                return samples if sent_rate == rate else resample(samples, sent_rate, rate)
    except soundfile.SoundFileError as error:
        reason = getattr(error, "error_string", error)  # the whole text has the address of the bytes
        raise BadInput(f"the recording is damaged: {reason}") from None


def with_length(content: bytes) -> bytes:
    """Write the length of the samples into a WAV that has 0 there: a program that writes to a pipe does not
    know it, and the samples go on to the end, as ffmpeg reads them.
    """
    kind = content[:4]
    if kind not in (b"RIFF", b"RIFX", b"RF64"):
        return content
    order: Literal["big", "little"] = "big" if kind == b"RIFX" else "little"
    at = WAV_START
    while content[at : at + 4] != b"data" and at + CHUNK_START <= len(content):
        length = int.from_bytes(content[at + 4 : at + CHUNK_START], order)
        at += CHUNK_START + length + length % 2
    samples = at + CHUNK_START
    if samples >= len(content):
        return content
    length = int.from_bytes(content[at + 4 : samples], order)
    place = RF64_LENGTH if kind == b"RF64" and length == IN_RF64 else slice(at + 4, samples)
    if any(content[place]):
        return content
    written = (len(content) - samples).to_bytes(place.stop - place.start, order)
    return content[: place.start] + written + content[place.stop :]


def _decode(file: Any, most: int, max_seconds: float) -> Samples:
    """Return the samples of an open recording, which may have so many frames at ``most``."""
    blocks, count = [], 0
    # Its header may claim any length: what is decoded counts.
    while len(block := file.read(BLOCK_FRAMES, "float32", always_2d=True)):
        count += len(block)
        if count > most:
            raise BadInput(f"the recording is longer than {max_seconds:g} s, which the model takes at most")
        blocks.append(block.mean(axis=1))
    if not count:
        raise BadInput("the recording is empty")
    samples: Samples = np.concatenate(blocks)
    if not np.isfinite(samples).all():
        raise BadInput("the recording has samples that are not numbers")
    return samples


def resample(samples: Samples, sent_rate: int, rate: int) -> Samples:
    """Change the rate by the spectrum: what the new rate cannot carry is cut off, so nothing folds back."""
    count = max(1, round(len(samples) * rate / sent_rate))
    resampled = np.fft.irfft(np.fft.rfft(samples), count) * (count / len(samples))
    return resampled.astype(np.float32)
