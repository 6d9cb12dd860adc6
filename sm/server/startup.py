"""Choose what the box serves, and check it before the start: repository, clients, access."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sm.errors import StartError
from sm.repository import models
from sm.repository.models import CodeFolder
from sm.run_state import Box, write_atomically
from sm.server.access import certificates, keys
from sm.settings import HERE, PACKAGE, Settings

#: The first Triton without a known hole. 2.71 closed the last of NVIDIA's bulletins; 2.70 to 2.72 can be
#: ended from an open port, which 2.73 mends (server pull request 8925): see docs/inside/known-holes.md.
WITHOUT_KNOWN_HOLES = (2, 73)
#: Where SageMaker unpacks a model.
PLATFORM_REPOSITORY = Path("/opt/ml/model")
#: Where ``make image MODELS=…`` copies models; served if the platform mounts none.
BAKED_REPOSITORY = Path("/opt/trireme/repository")
#: The image has the folder ``sm`` alone: it is neither a checkout nor installed from the wheel.
IS_IMAGE = PACKAGE.parent == HERE and not (HERE / "pyproject.toml").is_file()
#: How to come by a model, in a container and elsewhere.
NEXT_STEP = (
    "mount one (docker run -v REPOSITORY:/opt/ml/model:ro), build an image with it (make image MODELS=demo)"
    if IS_IMAGE
    else "run `make serve` in a checkout, or `sm demo`, for the demo"
)


def choose_repository(
    settings: Settings, platform: Path = PLATFORM_REPOSITORY, baked: Path = BAKED_REPOSITORY
) -> Path:
    """Choose the folder to serve: the one that is set, the platform's, or the image's if the platform's is
    empty.

    A platform folder with any visible file in it is used: it must be a repository, as other
    models must not answer in its place.
    """
    if settings.repository is not None:
        return settings.repository.absolute()
    return baked if baked.is_dir() and _is_empty(platform) else platform


def _is_empty(folder: Path) -> bool:
    """True if the folder does not exist or has no entry that is somebody's own."""
    try:
        return not any(models.is_own(path.name) for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # a later check names the file that cannot be read
        return False


def find_repository(
    settings: Settings, platform: Path = PLATFORM_REPOSITORY, baked: Path = BAKED_REPOSITORY
) -> Path:
    """Find the repository to serve. Raises :class:`StartError` if it has neither a model nor a client."""
    repository = choose_repository(settings, platform, baked)
    check_readable(repository)
    if (repository / "config.pbtxt").exists():
        raise StartError(
            f"Model directory needs to contain the top level folder: {repository} has a config.pbtxt itself."
        )
    if not models.names(repository) and CodeFolder.of(settings, repository).is_empty:
        raise StartError(
            f"There is no model in {repository} ({_why_empty(repository)}): {NEXT_STEP}, or "
            "set TRIREME_MODEL_REPOSITORY to a Triton model repository."
        )
    return repository


def _why_empty(repository: Path) -> str:
    if not repository.is_dir():
        return "which is not a folder"
    return (
        "no folder with a config.pbtxt or with a file that tells Triton what it is, such as 1/model.onnx, "
        "and no code/inference.py"
    )


def check_client_folders(settings: Settings) -> None:
    """Raise :class:`StartError` if ``TRIREME_CLIENTS`` names a folder that does not exist."""
    for folder in settings.clients:
        if folder != HERE / "clients" and not folder.is_dir():
            raise StartError(
                f"TRIREME_CLIENTS names {folder}, which is not a folder: correct the path or make the folder."
            )


def check_readable(repository: Path) -> None:
    """Raise :class:`StartError` for the first folder or file that this user may not read."""
    for path in unreadable(repository):
        raise StartError(
            f"{path} cannot be read by user {os.geteuid()}: make the models readable for everybody (chmod -R "
            "a+rX), or run the container as a user who may read them (docker run --user)."
        )


def unreadable(place: Path) -> Iterator[Path]:
    """Yield each folder and file that may not be read, at ``place`` and below. No link below is followed."""
    listing_errors: list[OSError] = []
    if os.path.isfile(place) and not os.access(place, os.R_OK):  # noqa: PTH113 - Path's raises in a locked folder
        yield place
    for parent, folders, files in os.walk(place, onerror=listing_errors.append):
        folders[:] = [name for name in folders if models.is_own(name)]
        # A folder that can be listed but not entered hides its files.
        if not os.access(parent, os.X_OK):
            yield Path(parent)
            continue
        for path in (Path(parent, name) for name in files if not name.startswith(".")):
            if not path.is_symlink() and not os.access(path, os.R_OK):
                yield path
    for error in listing_errors:
        if isinstance(error, PermissionError):
            yield Path(error.filename)


def prepare_access(settings: Settings, box: Box, triton: tuple[int, ...]) -> list[str]:
    """Copy certificate and keys into the run folder.

    Args:
        settings: The box's.
        box: Its record.
        triton: The server's version; empty if nobody knows it.

    Raises:
        StartError: They cannot be used, or everybody could reach a Triton with known holes.

    Returns:
        Warnings about settings that work but may surprise.
    """
    warnings = []
    try:
        if settings.tls_certificate and settings.tls_key:
            files = (settings.tls_certificate, settings.tls_key)
            warnings.append(certificates.install(certificates.read(*files), box.tls_folder, files))
        if settings.api_keys_file:
            content = keys.read_file(settings.api_keys_file)
            keys.parse(content, settings.api_keys_file)
            write_atomically(box.api_keys_copy, content)
    except certificates.CertificateError as error:
        raise StartError(f"TLS: {error}.") from None
    except keys.KeyFileError as error:
        raise StartError(f"TRIREME_API_KEYS_FILE: {error}.") from None
    openings = [
        name
        for name, is_open in (
            ("SAGEMAKER_TRITON_ALLOW_GRPC", settings.allow_grpc),
            ("SAGEMAKER_TRITON_ALLOW_METRICS", settings.allow_metrics),
            ("TRIREME_TRITON_PORTS", settings.triton_ports != "off"),
        )
        if is_open
    ]
    if openings and triton and triton < WITHOUT_KNOWN_HOLES:
        version = ".".join(map(str, triton))
        if settings.triton_ports == "all":
            raise StartError(
                f"TRIREME_TRITON_PORTS=all would let everybody reach Triton {version}, which has known "
                "security holes (docs/inside/known-holes.md): open loopback only, use a newer Triton, or set "
                "TRIREME_TRITON_PORTS=all-with-known-holes."
            )
        warnings += [
            f"{name}: the ports that it opens are of Triton {version}, which has known security holes"
            for name in openings
        ]
    if settings.tls or settings.api_keys_file:
        warnings += [
            f"{name}: the Triton ports that it opens have neither TLS nor API keys" for name in openings
        ]
    return list(filter(None, warnings))
