#!/usr/bin/env python3
"""Draws the chart of README.md from bench/results/gpu-speculation.json, using only Python's standard library.

    bench/chart.py [--out FILE]

Shows decoding with and without a draft model by the number of concurrent sequences, and the physical limit of decoding without one.
"""

import argparse
import json
import pathlib
from xml.sax.saxutils import escape

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
RUN = "Llama-3.3-70B + 1B, fp8"
BATCHES = [1, 4, 16, 64]

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 92, 102
STEP = 40  # tokens per second between two grid lines
BAR = 42
COLOURS = {"plain": "#8c96a3", 0.6: "#7fb2e5", 0.85: "#1f6fb5", "limit": "#c0392b", "ink": "#1b1f24", "grid": "#e3e6ea"}
LABELS = {"plain": "without a draft", 0.6: "1B draft that agrees on 60 % of tokens", 0.85: "on 85 %"}
LIMIT_LABEL = "limit without a draft: memory and matrix units, as measured in the same run"


def read_rows():
    """{(agreement, batch): row} of the runs in which the draft length is chosen automatically."""
    results = json.loads((RESULTS / "gpu-speculation.json").read_text())
    rows = results["runs"][RUN]["figures"]["rows"]
    chosen = {(row["agreement"], row["batch"]): row for row in rows if row["draft_len"] == 0}
    return results, chosen


def figures(rows, batch):
    """Tokens per second of one sequence: without a draft, its limit, and with each draft."""
    plain = rows[0.85, batch]
    return {
        "plain": plain["plain_tokens_per_s"] / batch,
        "limit": plain["plain_tokens_per_s"] / plain["share_of_step_limit"] / batch,
        0.6: rows[0.6, batch]["draft_tokens_per_s"] / batch,
        0.85: rows[0.85, batch]["draft_tokens_per_s"] / batch,
    }


class Svg:
    def __init__(self):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{COLOURS["ink"]}">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        ]

    def rect(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')

    def line(self, x1, y1, x2, y2, colour, extra=""):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {extra}/>')

    def text(self, x, y, words, anchor="middle", extra=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {extra}>{escape(words)}</text>')

    def done(self):
        return "\n".join([*self.parts, "</svg>", ""])


def draw():
    results, rows = read_rows()
    groups = {batch: figures(rows, batch) for batch in BATCHES}
    highest = max(max(group.values()) for group in groups.values())
    top = STEP * (int(highest / STEP) + 1)
    floor = HEIGHT - BOTTOM

    def y_of(value):
        return floor - (floor - TOP) * value / top

    svg = Svg()
    svg.text(LEFT, 24, "Llama-3.3-70B in fp8 on one NVIDIA H200, prompts of 512 tokens", "start", 'font-size="16" font-weight="bold"')
    x = LEFT
    for name in ("plain", 0.6, 0.85):
        svg.rect(x, 38, 12, 12, COLOURS[name])
        svg.text(x + 18, 49, LABELS[name], "start")
        x += 30 + 6.9 * len(LABELS[name])
    svg.line(LEFT, 66, LEFT + 12, 66, COLOURS["limit"], 'stroke-width="2.5"')
    svg.text(LEFT + 18, 71, LIMIT_LABEL, "start")

    for value in range(0, top + 1, STEP):
        svg.line(LEFT, y_of(value), WIDTH - RIGHT, y_of(value), COLOURS["grid"])
        svg.text(LEFT - 8, y_of(value) + 4, str(value), "end")
    svg.text(20, (TOP + floor) / 2, "tokens per second of each sequence", extra=f'transform="rotate(-90 20 {(TOP + floor) / 2})"')

    width = (WIDTH - LEFT - RIGHT) / len(BATCHES)
    for i, batch in enumerate(BATCHES):
        left = LEFT + width * i + (width - 3 * BAR) / 2
        for j, name in enumerate(("plain", 0.6, 0.85)):
            value = groups[batch][name]
            svg.rect(left + BAR * j + 1, y_of(value), BAR - 2, floor - y_of(value), COLOURS[name])
            svg.text(left + BAR * (j + 0.5), y_of(value) - 5, f"{value:.0f}", extra='font-size="12"')
        limit = y_of(groups[batch]["limit"])
        svg.line(left - 4, limit, left + BAR + 1, limit, COLOURS["limit"], 'stroke-width="2.5"')
        svg.text(left + 1.5 * BAR, floor + 20, str(batch))
    svg.line(LEFT, floor, WIDTH - RIGHT, floor, COLOURS["ink"])
    svg.text((LEFT + WIDTH - RIGHT) / 2, floor + 42, "sequences at a time")
    notes = [
        "Made-up weights of the models' shapes, whose next tokens are known: every token was checked.",
        f"{results['origin']}; commands and all rows: bench/results/gpu-speculation.md",
    ]
    for i, note in enumerate(notes):
        svg.text(LEFT, HEIGHT - 28 + 16 * i, note, "start", 'font-size="11" fill="#59636e"')
    return svg.done()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "speculation.svg")
    arguments = parser.parse_args()
    arguments.out.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
