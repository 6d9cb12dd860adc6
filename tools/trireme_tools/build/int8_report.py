"""The report about a graph in int8: its measure beside that of fp32, and the inputs that differ most."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trireme_tools.build.int8_cost import Quantized
from trireme_tools.build.measure import Answer, Input, Measure

#: The picture beside the report, the inputs in it, and the pixels of each.
DIFFERENCES, SHOWN, TILE = "differences.jpg", 6, 240


def describe(
    quantized: Quantized, inputs: Sequence[Input], answers: Sequence[Answer], measure: Measure, picture: str
) -> list[str]:
    """Return the part of the report about int8. ``picture``: its file; empty for none."""
    rows = [("seen by the quantization", quantized.controlled, quantized.before, quantized.after)]
    if quantized.held_out_before is not None and quantized.held_out_after is not None:
        rows.append(("held out", quantized.held_out, quantized.held_out_before, quantized.held_out_after))
    if measure.is_precision:
        sides = [each.answer for each in inputs], answers
        half = [measure.precision(zip(inputs, side, strict=True))[1] for side in sides]
        rows.append(("all, mAP@0.5", len(inputs), half[0], half[1]))
    kept = ", ".join(f"`{name}`" for name in quantized.unquantized) or "none"
    return [
        f"**int8**, by {quantized.tool}, calibrated with {quantized.calibrated} inputs, at most "
        f"{quantized.max_drop:.1%} lost. Layers that stay in fp32: {kept}.",
        "",
        f"| inputs | number | {quantized.measure}, fp32 | int8 |",
        "|---|---|---|---|",
        *(f"| {name} | {count} | {before:.1%} | {after:.1%} |" for name, count, before, after in rows),
        "",
        *([f"![the inputs whose answers differ most]({picture})", ""] if picture else []),
    ]


def draw_differences(
    folder: Path, staged: Path, inputs: Sequence[Input], answers: Sequence[Answer], measure: Measure
) -> str:
    """Draw the pictures whose answers differ most, with the answer of either side; return the file's name.

    Empty if the inputs are no pictures, or nothing differs.
    """
    from PIL import Image, ImageDraw

    judged = [
        (measure.of([(each, answer)]) - measure.of([(each, each.answer)]), each, answer)
        for each, answer in zip(inputs, answers, strict=True)
    ]
    worst = sorted((row for row in judged if row[0] < 0 and row[1].file), key=lambda row: row[0])[:SHOWN]
    tiles = []
    for _, each, answer in worst:
        try:
            with Image.open(folder / each.file) as opened:
                picture = opened.convert("RGB")
        except OSError:
            continue
        picture.thumbnail((TILE, TILE))
        tile = Image.new("RGB", (TILE, TILE + 40), "white")
        tile.paste(picture)
        lines = f"{each.file}\nfp32: {measure.describe(each.answer)}\nint8: {measure.describe(answer)}"
        ImageDraw.Draw(tile).text((2, TILE + 2), lines, "black")
        tiles.append(tile)
    if not tiles:
        return ""
    sheet = Image.new("RGB", (TILE * len(tiles), TILE + 40), "white")
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (TILE * place, 0))
    sheet.save(staged / DIFFERENCES)
    return DIFFERENCES
