"""The address ``hf://``: what a repository of the Hugging Face hub has now. A row of ``sm.addresses``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fnmatch import fnmatch

from sm.errors import StartError
from sm.models.fetch.addresses import HUB, READ_TIMEOUT_S, Listing, checked, digest, read_https, shown
from sm.models.fetch.downloads import Remote

#: The graphs of a checkpoint, in the order of choice: one, or an encoder with its decoder.
GRAPHS = (
    ("model.onnx",),
    ("onnx/model.onnx",),
    ("encoder_model.onnx", "decoder_model.onnx"),
    ("onnx/encoder_model.onnx", "onnx/decoder_model.onnx"),
)


def list_hub(source: str) -> Listing:
    """List a repository of the Hugging Face hub, or what a start can serve of it."""
    try:
        from huggingface_hub import HfApi, get_token, hf_hub_url
    except ImportError:
        raise StartError(
            f"{shown(source)} needs huggingface_hub, which is not installed: pip install huggingface_hub."
        ) from None
    name, _, revision = source.removeprefix(HUB).partition("@")
    try:
        info = HfApi().model_info(
            name, revision=revision or None, files_metadata=True, timeout=READ_TIMEOUT_S
        )
    except Exception as error:  # the library's own classes, and those of its HTTP client
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StartError(f"{shown(source)} cannot be fetched: {shown(reason).rstrip('.')}.") from None
    found = info.siblings or []
    if not any(fnmatch(file.rfilename, "*/config.pbtxt") for file in found):
        wanted = set(checkpoint_files([file.rfilename for file in found]))
        found = [file for file in found if file.rfilename in wanted]
    # The folder has the name of the model.
    folder, token = name.rpartition("/")[2], get_token()
    secrets = {"Authorization": f"Bearer {token}"} if token else {}
    remotes = {}
    for file in found:
        # A commit's files never change.
        version = file.lfs.sha256 if file.lfs else str(file.blob_id)
        url = hf_hub_url(name, file.rfilename, revision=info.sha)
        read = functools.partial(read_https, url, "", secrets)
        remotes[f"{folder}/{file.rfilename}"] = Remote(digest(HUB, version), version, file.size or 0, read)
    return Listing(digest(HUB, name, str(info.sha)), checked(source, remotes), folder)


def checkpoint_files(names: Sequence[str]) -> list[str]:
    """Choose the files of a checkpoint that are fetched: one variant of its graph, its weights, descriptions.

    Weights beside a graph begin with its name: ``model.onnx_data``, ``model.onnx.data``.
    Without a graph, the weights that can be exported are chosen. Python code and pickles are never chosen.
    """
    graphs = next((graphs for graphs in GRAPHS if set(graphs) <= set(names)), ())
    weights = tuple(f"{graph}{mark}" for graph in graphs for mark in "._")
    return [
        name
        for name in names
        if name in graphs
        or name.endswith((".json", ".txt"))
        or (name.startswith(weights) if graphs else name.endswith(".safetensors"))
    ]


ROW = (HUB, list_hub)
