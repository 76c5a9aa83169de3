#!/usr/bin/env python3
"""Draws docs/benchmarks/plots/NAME.svg from docs/benchmarks/data/NAME.csv.

    scripts/plot_benchmarks.py            draw all
    scripts/plot_benchmarks.py --check    exit with 1 and name the plots that differ from their data

A data file begins with `# title:`, `# unit:` and `# command:`, and may have `# scale: log`. Then comes a table: labels in the first
column, one series in each other column. An empty cell has no bar. The output depends on the data alone.
"""
import csv
import html
import math
import pathlib
import sys

DATA = pathlib.Path(__file__).resolve().parents[1] / "docs/benchmarks/data"
PLOTS = DATA.parent / "plots"
COLOURS = ["#3b76c4", "#d9822b", "#4a9d5b", "#8f63b8"]
WIDTH, LABELS, VALUES = 860, 280, 70
BAR, GAP, TOP = 15, 12, 64


def read(path):
    head, lines = {}, []
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            key, _, value = line[1:].partition(":")
            head[key.strip()] = value.strip()
        else:
            lines.append(line)
    columns, *rows = csv.reader(lines)
    if missing := {"title", "unit", "command"} - set(head):
        raise SystemExit(f"{path}: no line `# {sorted(missing)[0]}: ...`")
    return head, columns, rows


def length(value, largest, log):
    """A bar's length in pixels."""
    space = WIDTH - LABELS - VALUES
    return space * (math.log10(value + 1) / math.log10(largest + 1) if log else value / largest)


def draw(head, columns, rows):
    log, series = head.get("scale") == "log", columns[1:]
    largest = max(float(cell) for row in rows for cell in row[1:] if cell)
    unit = head["unit"] + (" (log scale)" if log else "")
    parts, y = [], TOP
    for label, *cells in rows:
        bars = [(i, float(cell)) for i, cell in enumerate(cells) if cell]
        middle = y + BAR * len(bars) / 2 + 4
        parts.append(f'<text x="{LABELS - 10}" y="{middle:.1f}" text-anchor="end">{html.escape(label)}</text>')
        for i, value in bars:
            size = length(value, largest, log)
            parts.append(f'<rect x="{LABELS}" y="{y}" width="{size:.1f}" height="{BAR - 2}" fill="{COLOURS[i]}"/>')
            parts.append(f'<text x="{LABELS + size + 5:.1f}" y="{y + BAR - 4}" class="value">{value:,g}</text>')
            y += BAR
        y += GAP
    x, legend = LABELS, []
    for i, name in enumerate(series):
        legend.append(f'<rect x="{x}" y="38" width="11" height="11" fill="{COLOURS[i]}"/><text x="{x + 16}" y="48">{html.escape(name)}</text>')
        x += 34 + 7 * len(name)
    title = html.escape(f"{head['title']}: {unit}")
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img" aria-label="{title}">',
        "<style>text { font: 13px system-ui, sans-serif; fill: #222 } .title { font-weight: 600 } .value { font-size: 11px }</style>",
        f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>',
        f'<text x="12" y="22" class="title">{title}</text>',
        *legend, *parts, "</svg>", ""])


def main():
    check, wrong = "--check" in sys.argv[1:], []
    for path in sorted(DATA.glob("*.csv")):
        plot, picture = PLOTS / f"{path.stem}.svg", draw(*read(path))
        if not plot.exists() or plot.read_text() != picture:
            wrong.append(plot.name)
            if not check:
                plot.write_text(picture)
    if check and wrong:
        raise SystemExit(f"plots differ from their data: {', '.join(wrong)}; run scripts/plot_benchmarks.py")


if __name__ == "__main__":
    main()
