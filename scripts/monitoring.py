#!/usr/bin/env python3
"""Writes what the chart ships for Prometheus and Grafana: alarms of docs/howto/watch.md, a dashboard of all metrics.

    scripts/monitoring.py            write helm/rein/files/alerts.yaml and dashboard.json
    scripts/monitoring.py --check    exit with 1 and name the files that differ

An alarm is a row of the tables below "Alarms" whose second cell begins with an expression. The chart replaces RELEASE with
labels that select one release, and RUNBOOKS with the URL of the docs.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = ROOT / "helm/rein/files"
WATCH = ROOT / "docs/howto/watch.md"
METRICS = ROOT / "docs/reference/metrics.md"
PROMETHEUS_UNITS = {"s": "s", "min": "m", "h": "h"}
GRAFANA_UNITS = {"seconds": "s", "bytes": "bytes", "tokens": "short", "": "short"}
COLUMNS, WIDTH, HEIGHT = 24, 8, 7


def plain(markdown):
    """Text of a cell without links and code marks."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "").replace("\\|", "|").strip()


def cells(row):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip())[1:-1]]


def anchor(heading):
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def selected(expression):
    """The expression for one release: each metric gets the placeholder RELEASE."""
    def matchers(match):
        inner = (match[2] or "{}")[1:-1]
        return f"{match[1]}{{RELEASE{',' + inner if inner else ''}}}"

    return re.sub(r"\b((?:rein|process)_\w+)(\{[^}]*\})?", matchers, expression)


# --- Alarms

def alarms():
    text = WATCH.read_text()
    text = text[text.index("## Alarms"):text.index("## When something dies")]
    first = re.search(r"Set three first: (.*?)\.", text, re.S)[1]
    critical = set(re.findall(r'"([^"]+)"', first))
    heading = ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        when = line.startswith("|") and len(cells(line)) == 4 and re.match(r"`([^`]*\b(?:rein|process)_[^`]*)`(?: for (\d+) (s|min|h)\b)?", cells(line)[1])
        if not when:
            continue
        name, _, meaning, todo = cells(line)
        place = re.search(r"\]\((#[^)]*)\)", todo)
        words = re.sub(r"[^\w ]", "", name).split()
        yield {
            "alert": "Rein" + "".join(word[0].upper() + word[1:] for word in words),
            "expr": selected(when[1].replace("\\|", "|")),
            **({"for": when[2] + PROMETHEUS_UNITS[when[3]]} if when[2] else {}),
            "labels": {"severity": "critical" if name in critical else "warning"},
            "annotations": {
                "summary": name,
                "description": f"{plain(meaning)} What to do: {plain(todo)}",
                "runbook_url": f"RUNBOOKS/howto/watch.md{place[1] if place else '#' + anchor(heading)}",
            },
        }


def alerts():
    lines = ["# Made by scripts/monitoring.py from docs/howto/watch.md.", "groups:", "  - name: rein", "    rules:"]
    for alarm in alarms():
        lines.append(f"      - alert: {alarm.pop('alert')}")
        for key, value in alarm.items():
            if isinstance(value, dict):
                lines.append(f"        {key}:")
                lines += [f"          {inner}: {json.dumps(text, ensure_ascii=False)}" for inner, text in value.items()]
            else:
                # RELEASE becomes text with double quotes.
                lines.append(f"        {key}: '{value}'")
    return "\n".join(lines) + "\n"


# --- Dashboard

def metrics():
    """(section, metric, type, labels, unit, meaning) of the table."""
    section = ""
    for line in METRICS.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        if line.startswith("| `"):
            name, kind, labels, unit, meaning = cells(line)
            yield section, name.strip("`"), kind, re.findall(r"`(\w+)`", labels), unit, plain(meaning)


def queries(name, kind, labels):
    """(expression, legend) of the lines of a panel."""
    of = f'{name}{{namespace="$namespace",service=~"$release-(router|workers|controller)"}}'
    if kind == "histogram":
        bucket = of.replace(name, f"{name}_bucket", 1)
        for quantile in (0.5, 0.9, 0.99):
            yield f"histogram_quantile({quantile}, sum by (le) (rate({bucket}[$__rate_interval])))", f"p{quantile * 100:g}"
        return
    # Every router reports every engine, and every controller the whole cluster.
    shared = name.startswith("rein_engine") or re.match(r"rein_controller_(groups|workers|routers)", name)
    by = ("max" if shared else "sum") + (f" by ({', '.join(labels)})" if labels else "")
    legend = " ".join(f"{{{{{label}}}}}" for label in labels) or name
    if kind == "counter":
        yield f"{by} (rate({of}[$__rate_interval]))", legend
    elif name in ("process_start_time_seconds", "rein_certificate_expiry_seconds"):
        yield of, "{{pod}} {{usage}}" if labels else "{{pod}}"
    else:
        yield f"{by} ({of})", legend


def panel(number, place, name, kind, labels, unit, meaning):
    x, y = place
    rate = kind == "counter"
    return {
        "id": number,
        "type": "timeseries",
        "title": name,
        "description": meaning,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": "ops" if rate and not unit else GRAFANA_UNITS[unit], "min": 0}, "overrides": []},
        "targets": [{"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend} for index, (expression, legend) in enumerate(queries(name, kind, labels))],
    }


def dashboard():
    panels, y, section = [], 0, None
    column = 0
    for of, name, kind, labels, unit, meaning in metrics():
        if of != section:
            section, y, column = of, y + (HEIGHT if column else 0), 0
            panels.append({"id": len(panels) + 1, "type": "row", "title": of, "collapsed": False, "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}, "panels": []})
            y += 1
        panels.append(panel(len(panels) + 1, (column * WIDTH, y), name, kind, labels, unit, meaning))
        column += 1
        if column * WIDTH == COLUMNS:
            column, y = 0, y + HEIGHT
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        {"name": "namespace", "type": "query", "datasource": {"type": "prometheus", "uid": "$datasource"}, "query": "label_values(rein_build_info, namespace)", "refresh": 2},
        {"name": "release", "type": "query", "datasource": {"type": "prometheus", "uid": "$datasource"}, "query": 'label_values(rein_build_info{namespace="$namespace"}, service)', "regex": "(.*)-router", "refresh": 2},
    ]
    board = {"title": "Rein", "uid": "rein", "tags": ["rein"], "schemaVersion": 39, "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "templating": {"list": variables}}
    head = json.dumps(board, ensure_ascii=False)[:-1]
    return head + ', "panels": [\n' + ",\n".join(json.dumps(one, ensure_ascii=False) for one in panels) + "\n]}\n"


def main():
    stale = []
    for path, text in ((FILES / "alerts.yaml", alerts()), (FILES / "dashboard.json", dashboard())):
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(ROOT)))
    if stale:
        raise SystemExit(f"out of date, run scripts/monitoring.py: {', '.join(stale)}")


if __name__ == "__main__":
    main()
