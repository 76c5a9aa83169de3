#!/usr/bin/env python3
"""Writes the generated parts of the chart helm/rein.

    scripts/chart.py            write them
    scripts/chart.py --check    exit with 1 and name the files that differ

files/alerts.yaml and the tables of docs/howto/watch.md: the alarms of helm/alarms.toml. The chart replaces RELEASE with labels that select one release,
RUNBOOKS with the URL of the docs, and AWAKE with models that are not scaled to zero.
files/dashboard.json: all metrics of docs/reference/metrics.md.
values.schema.json: the options of commands, from docs/reference/cli.md.
docs/reference/chart-values.md: the values, from values.schema.json and values.yaml.
"""
import json
import pathlib
import re
import sys
import tomllib

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
CHART = ROOT / "helm/rein"
SCHEMA = CHART / "values.schema.json"
CLI = ROOT / "docs/reference/cli.md"
VALUES_PAGE = ROOT / "docs/reference/chart-values.md"
ALARMS = ROOT / "helm/alarms.toml"
HINTS = ROOT / "helm/hints.toml"
HINT = "no value of this chart"
WATCH = ROOT / "docs/howto/watch.md"
METRICS = ROOT / "docs/reference/metrics.md"
SPOKEN_UNITS = {"s": "s", "m": "min", "h": "h"}
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
        awake = ",AWAKE" if match[1] == "rein_engines" else ""
        return f"{match[1]}{{RELEASE{awake}{',' + inner if inner else ''}}}"

    return re.sub(r"\b((?:rein|process)_\w+)(\{[^}]*\})?", matchers, expression)


# --- Alarms

def alarms():
    return tomllib.loads(ALARMS.read_text())["alarm"]


def rule(alarm):
    words = re.sub(r"[^\w ]", "", alarm["name"]).split()
    place = re.search(r"\]\((#[^)]*)\)", alarm["do"])
    yield "alert", "Rein" + "".join(word[0].upper() + word[1:] for word in words)
    yield "expr", selected(alarm["expr"])
    if "for" in alarm:
        yield "for", alarm["for"]
    yield "labels", {"severity": alarm["severity"]}
    yield "annotations", {
        "summary": alarm["name"],
        "description": f"{plain(alarm['means'])} What to do: {plain(alarm['do'])}",
        "runbook_url": f"RUNBOOKS/howto/watch.md{place[1] if place else '#' + anchor(alarm['section'])}",
    }


def alerts():
    lines = ["# Made by scripts/chart.py from helm/alarms.toml.", "groups:", "  - name: rein", "    rules:"]
    for alarm in alarms():
        lead = "      - "
        for key, value in rule(alarm) if "expr" in alarm else ():
            if isinstance(value, dict):
                lines.append(f"{lead}{key}:")
                lines += [f"          {inner}: {json.dumps(text, ensure_ascii=False)}" for inner, text in value.items()]
            else:
                # RELEASE becomes text with double quotes.
                assert "'" not in value, value
                lines.append(f"{lead}{key}: {value}" if key == "alert" else f"{lead}{key}: '{value}'")
            lead = "        "
    return "\n".join(lines) + "\n"


def alarm_table(section):
    yield "| alarm | when | what it means | what to do |"
    yield "|---|---|---|---|"
    for alarm in (alarm for alarm in alarms() if alarm["section"] == section):
        number, unit = re.fullmatch(r"(\d+)([smh])", alarm["for"]).groups() if "for" in alarm else (None, None)
        lasts = f" for {number} {SPOKEN_UNITS[unit]}" if number else ""
        when = (f"`{alarm['expr']}`{lasts}" if "expr" in alarm else "") + alarm.get("also", "")
        name = f"**{alarm['name']}**" if alarm["severity"] == "critical" else alarm["name"]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in (name, when, alarm["means"], alarm["do"])) + " |"


def watch_page():
    def table(match):
        return f"<!-- alarms: {match[1]} -->\n" + "\n".join(alarm_table(match[1])) + "\n<!-- end -->"

    text = WATCH.read_text()
    sections = re.findall(r"<!-- alarms: ([\w ]+) -->", text)
    assert set(sections) == {alarm["section"] for alarm in alarms()}, sections
    return re.sub(r"<!-- alarms: ([\w ]+) -->\n.*?<!-- end -->", table, text, flags=re.S)


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


# --- Options of commands

# Flags that the chart sets itself, from values that are not options.
CLUSTER = {"config", "cluster", "id", *(f"etcd{part}" for part in ("", "-ca", "-cert", "-key", "-name", "-user", "-password-file"))}
PEER = {f"peer-{part}" for part in ("ca", "cert", "key", "name")}
OWN = {
    "router": CLUSTER | PEER | {"http", "host", "port", "grpc", "drain-seconds", "expect", "api-keys", "tls-cert", "tls-key", "otlp-endpoint", "engine", "served-name", "engine-ca"},
    "worker": CLUSTER | PEER | {"model", "served-name", "engine", "devices", "group-size", "domain", "listen", "mesh", "advertise", "http", "otlp-endpoint"},
    "controller": CLUSTER | {"http", "spares"},
}
# Flags that make no sense in a pod of the chart: several workers in a process, and files that it does not have.
LEFT_OUT = {"router": {"model", "chat-template"}, "worker": {"replicas"}, "controller": set()}


def options(command):
    """The schema of the options that users of the chart may set."""
    text = CLI.read_text()
    section = re.search(rf"^## rein {command}$(.*?)(?=^## |\Z)", text, re.M | re.S)[1]
    found = {}
    for row in re.findall(r"^\| `--.*$", section, re.M):
        flag = cells(row)[0]
        name = re.match(r"`--([a-z0-9-]+)", flag)[1]
        if name not in OWN[command] | LEFT_OUT[command]:
            found[name] = {"type": ["string", "number"] if "<" in flag else "boolean"}
    return dict(sorted(found.items()))


def dump(value, indent=0):
    """JSON with short objects on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= 116 or not isinstance(value, (dict, list)):
        return line
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        parts, ends = [f"{inner}{json.dumps(key)}: {dump(part, indent + 2)}" for key, part in value.items()], "{}"
    else:
        parts, ends = [inner + dump(part, indent + 2) for part in value], "[]"
    return ends[0] + "\n" + ",\n".join(parts) + "\n" + " " * indent + ends[1]


def schema():
    document = json.loads(SCHEMA.read_text())
    places = {"router": document["properties"]["router"], "controller": document["properties"]["controller"], "worker": document["definitions"]["model"]}
    places["worker of modelDefaults"] = document["properties"]["modelDefaults"]
    for command, place in places.items():
        place["properties"]["options"]["properties"] = options(command.partition(" ")[0])
    hints(document)
    return dump(document) + "\n"


def hints(document):
    """Wrong names as properties that accept nothing but what to write instead: both helms show that."""
    top, model = document["properties"], document["definitions"]["model"]["properties"]
    defaults = top["modelDefaults"]["properties"]
    inner = {name: top[name]["properties"] for name in ("router", "controller", "etcd", "image")}
    for properties in (top, model, defaults, *inner.values()):
        for name in [name for name, part in properties.items() if part.get("description") == HINT]:
            del properties[name]
    for section, names in tomllib.loads(HINTS.read_text()).items():
        for properties in {"top": [top], "model": [model, defaults]}.get(section) or [inner[section]]:
            for name, text in names.items():
                assert name not in properties, f"{section}: {name} is a value"
                properties[name] = {"enum": [f"unknown name: {text}"], "description": HINT}


# --- Values

def resolved(document, node):
    for part in [node, *node.get("allOf", [])]:
        if "$ref" in part:
            node = {**document["definitions"][part["$ref"].rpartition("/")[2]], **{key: text for key, text in node.items() if key == "description"}}
    return node


def kind(document, node):
    node = resolved(document, node)
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if node.get("type") == "array":
        inner = resolved(document, node["items"])
        return f"list of {inner.get('type', 'values') if isinstance(inner.get('type', ''), str) else 'values'}s".replace("valuess", "values")
    kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
    least, most = node.get("minimum"), node.get("maximum")
    bounds = f" {least} to {most}" if most is not None else f" from {least}" if least else ""
    return " or ".join(kinds) + bounds


def meaning(node):
    """The description, with the example of a list."""
    text = node.get("description", "")
    if node.get("type") != "array":
        return text
    example = json.dumps(node["examples"][0], ensure_ascii=False)
    return f"{text} Example: `{example}`.".strip()


def rows(document, node, path, default):
    node = resolved(document, node)
    if node.get("description") == HINT:
        return
    inner = node.get("properties")
    items = resolved(document, node["items"]) if node.get("type") == "array" else {}
    if path.endswith(".options") or path == "modelDefaults" or not (inner or items.get("properties")):
        yield path, kind(document, node), default, meaning(node)
        return
    if items.get("properties"):
        yield path, kind(document, node), default, meaning(node)
        inner, path, default = items["properties"], path + "[]", {}
    elif path and node.get("description"):
        yield path, "object", None, node["description"]
    for name, part in inner.items():
        yield from rows(document, part, f"{path}.{name}" if path else name, default.get(name) if isinstance(default, dict) else None)


def shown(default):
    return "" if default in (None, "", [], {}) else f"`{json.dumps(default, ensure_ascii=False)}`"


def values_page():
    document, values = json.loads(SCHEMA.read_text()), yaml.safe_load((CHART / "values.yaml").read_text())
    lines = ["| value | type | default | meaning |", "|---|---|---|---|"]
    for path, of, default, meaning in rows(document, document, "", values):
        if path.startswith("models[].") and "." not in path[9:]:
            default = values["modelDefaults"].get(path[9:])
        if path.startswith("models[].autoscaling."):
            default = values["modelDefaults"]["autoscaling"].get(path[21:])
        if path not in ("global",):
            lines.append(f"| `{path}` | {of} | {shown(default)} | {meaning} |".replace("  |", " |"))
    text = VALUES_PAGE.read_text()
    start, end = "<!-- values -->\n", "<!-- end -->"
    return text[:text.index(start) + len(start)] + "\n".join(lines) + "\n" + text[text.index(end):]


MADE = {CHART / "files/alerts.yaml": alerts, WATCH: watch_page, CHART / "files/dashboard.json": dashboard, SCHEMA: schema, VALUES_PAGE: values_page}


def main():
    stale = []
    for path, make in MADE.items():
        text = make()
        if path.exists() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
    if stale and "--check" in sys.argv[1:]:
        raise SystemExit(f"the chart differs from the docs: {', '.join(stale)}; run scripts/chart.py")


if __name__ == "__main__":
    main()
