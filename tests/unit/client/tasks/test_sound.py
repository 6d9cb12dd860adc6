"""Tasks of sound hear in recordings what transformers' own preprocessing and decoding make of the same graph."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import soundfile
from numpy.typing import NDArray
from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor

from sm.client.base import TensorClient
from sm.client.tasks.sound import read_recording, resample
from sm.errors import BadInput, StartError
from tests.support.task_models import PITCHES, load_task, tones, write_sound_model

SPEECH, SOUNDS = "automatic-speech-recognition", "audio-classification"


def recording(
    samples: NDArray[Any], rate: int = 16_000, format: str = "WAV", subtype: str | None = None
) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype)
    return file.getvalue()


def ask(client: TensorClient, **payload: Any) -> Any:
    return client.inference(client.payload.model_validate(payload))


@pytest.fixture
def speech(tmp_path: Path) -> TensorClient:
    return load_task(write_sound_model(tmp_path / "speech", SPEECH), task=SPEECH)


@pytest.mark.parametrize("format", ["WAV", "FLAC", "MP3", "OGG"])
@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
def test_a_recording_of_every_format_and_rate_says_the_same(
    speech: TensorClient, format: str, rate: int
) -> None:
    assert ask(speech, audio=recording(tones("abba cab", rate), rate, format)) == {"text": "abba cab"}


def test_speech_and_labels_equal_those_of_transformers_pipeline(tmp_path: Path) -> None:
    samples = tones("abc ba") + np.random.default_rng(5).normal(0, 0.2, len(tones("abc ba"))).astype(
        np.float32
    )
    sent = recording(samples, subtype="FLOAT")
    for task in (SPEECH, SOUNDS):
        folder = write_sound_model(tmp_path / "sound", task)
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        extracted = Wav2Vec2FeatureExtractor.from_pretrained(folder)(samples, sampling_rate=16_000)
        (logits,) = session.run(None, {"input_values": np.stack(extracted["input_values"])})
        if task == SPEECH:
            text = Wav2Vec2CTCTokenizer.from_pretrained(folder).decode(logits[0].argmax(axis=1))
            assert ask(load_task(folder, task=task), audio=sent) == {"text": text}
            continue
        (folder / "labels.txt").write_text("\n".join(PITCHES))
        expected = np.exp(logits[0]) / np.exp(logits[0]).sum()
        answer = ask(load_task(folder, task=task), audio=sent)
        assert [row["label"] for row in answer] == [list(PITCHES)[at] for at in np.argsort(-expected)]
        assert [row["score"] for row in answer] == pytest.approx(sorted(expected, reverse=True), abs=1e-5)


def test_several_channels_become_one() -> None:
    left = np.linspace(-1, 1, 50, dtype=np.float32)
    stereo = recording(np.stack([left, np.zeros_like(left)], axis=1), subtype="FLOAT")
    np.testing.assert_allclose(read_recording(stereo, 16_000, 1), left / 2, atol=1e-6)


@pytest.mark.parametrize(("sent", "rate"), [(8_000, 16_000), (44_100, 16_000), (48_000, 16_000)])
def test_a_tone_keeps_its_pitch_at_another_rate(sent: int, rate: int) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(sent) / sent).astype(np.float32)
    expected = np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
    np.testing.assert_allclose(resample(tone, sent, rate), expected, atol=1e-5)


def test_what_the_new_rate_cannot_carry_does_not_fold_back() -> None:
    high = np.sin(2 * np.pi * 15_000 * np.arange(48_000) / 48_000).astype(np.float32)
    assert np.abs(resample(high, 48_000, 16_000)).max() < 1e-3


WHOLE = recording(tones("ab"), format="FLAC")


@pytest.mark.parametrize(
    "sent",
    [
        b"not a recording",
        b"RIFF\x24\0\0\0WAVE",
        WHOLE[:60] + bytes(200),
        recording(np.zeros(0, np.float32)),
        recording(np.array([0, np.nan], np.float32), subtype="FLOAT"),
        recording(np.zeros((9, 9), np.float32)),
        recording(np.zeros(9, np.float32), 400_000),
        # Three hours, in a file of less than 1 MB.
        recording(np.zeros(3 * 3600 * 1000, np.float32), 1000, "FLAC"),
    ],
    ids=["text", "header", "cut", "empty", "nan", "channels", "rate", "hours"],
)
def test_a_bad_recording_is_a_400(speech: TensorClient, sent: bytes) -> None:
    with pytest.raises(BadInput):
        ask(speech, audio=sent)


def test_a_model_of_fixed_length_gets_silence_behind_a_short_recording(tmp_path: Path) -> None:
    folder = write_sound_model(tmp_path / "sound", SOUNDS)
    (folder / "model.onnx").write_bytes(fixed(folder / "model.onnx", 16_000))
    client = load_task(folder, task=SOUNDS, normalise=False)
    assert ask(client, audio=recording(tones("a")), parameters={"top": 1})[0]["label"] == "1"  # no labels.txt
    with pytest.raises(BadInput):
        ask(client, audio=recording(tones("abcabc")))


def fixed(graph: Path, samples: int) -> bytes:
    import onnx

    model = onnx.load(graph)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = samples
    content: bytes = model.SerializeToString()
    return content


@pytest.mark.parametrize("vocabulary", [["a"], {"<pad>": 0, "a": 1}, {"a": 1}])
def test_a_vocabulary_that_does_not_fit_stops_the_start(tmp_path: Path, vocabulary: Any) -> None:
    folder = write_sound_model(tmp_path / "speech", SPEECH)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(StartError, match=r"vocab\.json|<pad>"):
        load_task(folder, task=SPEECH)
