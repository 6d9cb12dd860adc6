from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sm.client import Client, Parameters, Payload, Table


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    article: str = Field(max_length=40, examples=["pen"], description="What is bought.")
    pieces: int = Field(ge=1, le=99, examples=[1])


class Options(Parameters):
    currency: Literal["EUR", "USD"] = Field("EUR", description="Of the prices.")
    discount: float = Field(0.0, ge=0, le=1, description="Share of the price.")
    rounded: bool = Field(False, description="To whole units.")


class Order(Payload):
    lines: list[Line] = Field(min_length=1, description="What is ordered.")
    weights: list[float] = Field(default=[], description="In kilograms.")
    note: str | None = Field(None, max_length=80)
    parameters: Options = Options()


class Orders(Client):
    """The price of an order."""

    payload = Order
    result = Table(items="rows")

    def inference(self, payload: Order) -> dict[str, object]:
        options = payload.parameters
        price = 2.0 * (1 - options.discount)
        rows = [
            {"article": line.article, "pieces": line.pieces, "price": price * line.pieces}
            for line in payload.lines
        ]
        return {"rows": rows, "currency": options.currency, "weight": sum(payload.weights)}
