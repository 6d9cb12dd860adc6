from pydantic import Field

from sm.client import Base64Bytes, Client, Payload


class AnyFile(Payload):
    main_field = "content"
    content_types = ("*/*",)

    content: Base64Bytes = Field(description="The file.")


class Weigh(Client):
    """How many bytes a file has."""

    payload = AnyFile

    def setup(self) -> None:
        self.sizes = self.metrics.histogram(
            "file_bytes", "Bytes of a file.", labels={"kind": ("text",)}, buckets=(10, 1000)
        )

    def inference(self, payload: AnyFile) -> dict[str, object]:
        self.sizes.labels(kind="text" if payload.content.isascii() else "binary").observe(
            len(payload.content)
        )
        return {"bytes": len(payload.content)}
