"""Check what protects the box before it starts: the certificate, the API key file, Triton's own ports."""

from __future__ import annotations

from sm.errors import StartError
from sm.run_state import Box
from sm.server.access import certificates, keys
from sm.server.access.checker import save_copy
from sm.settings import Settings
from sm.triton.quirks import WITHOUT_KNOWN_HOLES


def prepare(settings: Settings, box: Box, triton: tuple[int, ...]) -> list[str]:
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
            save_copy(box.api_keys_copy, content)
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
        if settings.triton_ports == "all" and not settings.triton_holes_accepted:
            raise StartError(
                f"TRIREME_TRITON_PORTS=all would let everybody reach Triton {version}, which has known "
                "security holes (docs/inside/known-holes.md): open loopback only, use a newer Triton, or set "
                "TRIREME_TRITON_HOLES_ACCEPTED=true."
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
