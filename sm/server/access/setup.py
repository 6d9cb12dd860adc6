"""Check and copy the certificate and the API key file before the box starts."""

from __future__ import annotations

from sm.errors import StartError
from sm.run_state import Box
from sm.server.access import certificates, keys
from sm.server.access.checker import save_copy
from sm.settings import Settings


def prepare(settings: Settings, box: Box) -> list[str]:
    """Copy certificate and keys into the run folder. Raises :class:`StartError` if they cannot be used.

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
    if settings.tls or settings.api_keys_file:
        warnings += [
            f"{name}: the Triton ports that it opens have neither TLS nor API keys"
            for name, open_port in (
                ("SAGEMAKER_TRITON_ALLOW_GRPC", settings.allow_grpc),
                ("SAGEMAKER_TRITON_ALLOW_METRICS", settings.allow_metrics),
                ("TRIREME_TRITON_PORTS", settings.triton_ports != "off"),
            )
            if open_port
        ]
    return list(filter(None, warnings))
