#!/usr/bin/env python3
"""The module graph of the workspace: which folder imports which.

    scripts/modules.py            draws docs/modules.svg
    scripts/modules.py --check    fails on an outdated picture, and on an import that

    - does not go to a lower floor of the picture, or
    - is part of a circle of modules that are in one folder: src itself, or any folder below it.

Imports are paths that begin with `crate::`, `super::` or the name of a crate. A folder and the file of the same name
are one module. It may import what is in it, and what is in it may use the items of the module itself.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/modules.svg"

# Floors from the top: boxes and their places from left to right, in percent of the picture. Every import goes to a lower
# floor; boxes on one floor do not know each other.
FLOORS = [
    {"rein": 45},
    {"router": 45},
    {"router/api": 45},
    {"router/state": 45},
    {"router/request": 45},
    {"router/admission": 25, "router/fleet": 60},
    {"router/ground": 38},
    {"text": 13, "adapter": 62, "worker": 87},
    {"grammar": 13, "proto": 38, "control-plane": 62, "kernels": 87},
]
CRATES = {
    "rein": "src",
    "router": "router/src",
    "text": "router/text/src",
    "grammar": "router/grammar/src",
    "worker": "worker/src",
    "adapter": "adapter/src",
    "kernels": "kernels/src",
    "control-plane": "control-plane/src",
    "proto": "proto/src",
}
# Files in router/src itself: the composition of one process, what its parts share, and the ground below all folders.
ROUTER_FILES = {
    "lib": "router",
    "discovery": "router",
    "config": "router/state",
    "report": "router/state",
    "state": "router/state",
    "surface_metrics": "router/state",
}
FOLDERS = ["api", "request", "admission", "fleet"]
# Folders with circles, and why.
CIRCLES = {
    # A value prints those in it, and each kind of value has a file.
    "router/text/src/template",
}


def sources(crate):
    """The crate's source files without tests, by path below src."""
    listed = subprocess.check_output(["git", "ls-files", CRATES[crate]], cwd=ROOT, text=True).split()
    for name in listed:
        path = pathlib.PurePosixPath(name)
        if path.suffix == ".rs" and "tests" not in path.parts and path.name != "tests.rs" and (ROOT / name).is_file():
            yield path.relative_to(CRATES[crate]), (ROOT / name).read_text()


def box_of_module(module):
    """The box of a module of the router by the first part of its path."""
    return f"router/{module}" if module in FOLDERS else ROUTER_FILES.get(module, "router/ground")


def box(crate, path):
    return box_of_module(path.parts[0].removesuffix(".rs")) if crate == "router" else crate


def code(text):
    """Without comments and without items under cfg(test)."""
    text = re.sub(r"(?m)^\s*//.*$", "", text)
    return re.sub(r"#\[cfg\(test\)\]\s*(pub(\(crate\))? )?(use|mod)\s[^;]*;", "", text)


def leaves(tree, prefix=""):
    """The paths of a use tree: `a::{b, c::d}` gives a::b and a::c::d."""
    head, brace, rest = tree.partition("{")
    if not brace:
        yield (prefix + tree).strip()
        return
    depth, item = 0, ""
    for c in rest[: rest.rindex("}")]:
        depth += {"{": 1, "}": -1}.get(c, 0)
        if c == "," and depth == 0:
            yield from leaves(item.strip(), prefix + head.strip())
            item = ""
        else:
            item += c
    if item.strip():
        yield from leaves(item.strip(), prefix + head.strip())


def imports(text):
    """The first two parts of every path into this workspace."""
    text = code(text)
    for match in re.finditer(r"\buse\s+((?:crate|rein_\w+)\b[^;]*);", text):
        for leaf in leaves(re.sub(r"\s+", " ", match[1])):
            yield tuple(leaf.split("::")[:2])
    for match in re.finditer(r"\b(crate|rein_\w+)::(\w+)", re.sub(r"\buse\s[^;]*;", "", text)):
        yield match[1], match[2]


def exports(crate):
    """Where names that the router's lib.rs re-exports live, so that `crate::Error` is an arrow to the ground."""
    if crate != "router":
        return {}
    text = code((ROOT / CRATES[crate] / "lib.rs").read_text())
    found = {}
    for match in re.finditer(r"\bpub use\s+crate::([^;]*);", text):
        for leaf in leaves(re.sub(r"\s+", " ", match[1])):
            found[leaf.split("::")[-1]] = leaf.split("::")[0]
    return found


def arrows():
    """Pairs of boxes, with the files that hold the import."""
    found = {}
    reexported = exports("router")
    for crate in CRATES:
        for path, text in sources(crate):
            own = box(crate, path)
            for root, module in imports(text):
                target = crate if root == "crate" else root.removeprefix("rein_").replace("_", "-")
                if target not in CRATES:
                    continue
                if target == "router":
                    # Other crates see the router as one box.
                    target = box_of_module(reexported.get(module, module)) if crate == "router" else "router"
                    if module[:1].isupper() and module not in reexported:
                        target = "router"
                if target != own:
                    found.setdefault((own, target), set()).add(f"{CRATES[crate]}/{path}")
    return found


def module(path):
    """The module of a file: ("a", "b") for a/b.rs, () for lib.rs."""
    parts = path.with_suffix("").parts
    return parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts


def uses(text):
    """Each path that is imported, and its name here."""
    for match in re.finditer(r"(?m)^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]*);", text):
        for leaf in leaves(re.sub(r"\s+", " ", match[1])):
            path, _, name = leaf.removesuffix("::self").partition(" as ")
            yield tuple(path.split("::")), name or path.split("::")[-1]


def absolute(own, path):
    """A path of a module as one from the crate's root."""
    if path[0] == "crate":
        return path[1:]
    while path and path[0] in ("self", "super"):
        own, path = own[: len(own) - (path[0] == "super")], path[1:]
    return own + path


def inner_arrows(crate):
    """For each folder the arrows between the modules directly in it, with the files that hold the import."""
    texts = {module(path): (path, code(text)) for path, text in sources(crate)}
    known = {own[:depth] for own in texts for depth in range(len(own) + 1)}
    begins = ("crate", "self", "super")
    # What a name in a module stands for.
    names = {
        (own, name): absolute(own, path)
        for own, (_, text) in texts.items()
        for path, name in uses(text)
        if path[0] in begins or own + path[:1] in known
    }

    def home(path, seen=()):
        """The module that has an item; not one that only re-exports it."""
        depth = max(depth for depth in range(len(path) + 1) if path[:depth] in known)
        name = (path[:depth], *path[depth : depth + 1])
        if name in seen or name not in names:
            return path[:depth]
        return home(names[name] + path[depth + 1 :], (*seen, name))

    found = {}
    for own, (path, text) in texts.items():
        inline = re.sub(r"\bpub\([^)]*\)|\buse\s[^;]*;", "", text)
        paths = [used for used, _ in uses(text) if used[0] in begins]
        paths += [tuple(match[0].split("::")) for match in re.finditer(r"\b(?:crate|self|super)(?:::\w+)+", inline)]
        for target in (home(absolute(own, used)) for used in paths):
            depth = next((i for i, (a, b) in enumerate(zip(own, target)) if a != b), None)
            if depth is not None:
                arrows = found.setdefault("/".join((CRATES[crate], *own[:depth])), {})
                arrows.setdefault((own[depth], target[depth]), set()).add(str(path))
    return found


def circle_through(found, source, target):
    """The shortest circle that begins with an arrow, as its modules; None: there is none."""
    paths, reached = [(source, target)], set()
    for path in paths:
        for start, end in found:
            if start == path[-1] and end == source:
                return path
            if start == path[-1] and end not in reached:
                reached.add(end)
                paths.append((*path, end))
    return None


def circles(crate):
    """The shortest circles of each folder."""
    for folder, found in sorted(inner_arrows(crate).items()):
        back = filter(None, (circle_through(found, *arrow) for arrow in sorted(found)))
        back, told = sorted(back, key=len), set()
        for circle in back if folder not in CIRCLES else ():
            files = {file for arrow in zip(circle, circle[1:] + circle[:1]) for file in found[arrow]}
            if told.isdisjoint(circle):
                yield f"{folder}: {' -> '.join(circle + circle[:1])} is a circle: {', '.join(sorted(files))}"
            told.update(circle)
        if folder in CIRCLES and not back:
            yield f"{folder} has no circle any more: take it off the list in scripts/modules.py"


def wrong(found):
    floor = {name: height for height, boxes in enumerate(FLOORS) for name in boxes}
    for (source, target), files in sorted(found.items()):
        if source not in floor or target not in floor:
            yield f"{source} -> {target}: not on any floor of scripts/modules.py"
        elif floor[target] <= floor[source]:
            yield f"{source} -> {target} does not go down: {', '.join(sorted(files))}"


def shown(found):
    """The arrows that do not follow from others: a -> c is left out where a -> b -> c."""
    below = {source: {target for start, target in found if start == source} for source in {start for start, _ in found}}

    def reaches(source, target):
        return any(target == next or reaches(next, target) for next in below.get(source, ()))

    return sorted((a, c) for a, c in found if not any(reaches(b, c) for b in below[a] - {c}))


def draw(found):
    width, height, gap, box_width, box_height = 760, 74, 20, 170, 34
    places = {
        name: (width * percent / 100, gap + row * height + box_height / 2)
        for row, boxes in enumerate(FLOORS)
        for name, percent in boxes.items()
    }
    total = gap * 2 + (len(FLOORS) - 1) * height + box_height
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" font-family="sans-serif" font-size="14">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#556"/></marker></defs>',
        f'<rect width="{width}" height="{total}" fill="#fff"/>',
    ]
    for source, target in shown(found):
        (x1, y1), (x2, y2) = places[source], places[target]
        y1, y2 = y1 + box_height / 2, y2 - box_height / 2
        # An arrow past several floors first goes to the side, so that it passes the boxes between.
        side = x2 if y2 - y1 > 4 * height else (x1 + x2) / 2
        out.append(
            f'<path d="M{x1:.0f} {y1:.0f}Q{side:.0f} {(y1 + y2) / 2 - 60 * (side == x2 != x1):.0f} {x2:.0f} {y2:.0f}" fill="none" stroke="#556" '
            'marker-end="url(#tip)"/>'
        )
    for name, (x, y) in places.items():
        fill = "#e8f0fe" if name.startswith("router") else "#f4f4f4"
        out.append(
            f'<rect x="{x - box_width / 2:.0f}" y="{y - box_height / 2:.0f}" width="{box_width}" height="{box_height}" '
            f'rx="6" fill="{fill}" stroke="#556"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{name}</text>'
        )
    return "\n".join([*out, "</svg>", ""])


def main():
    found = arrows()
    problems = [*wrong(found), *(problem for crate in CRATES for problem in circles(crate))]
    if not problems:
        picture = draw(found)
        if sys.argv[1:] != ["--check"]:
            PICTURE.write_text(picture)
        elif not PICTURE.is_file() or PICTURE.read_text() != picture:
            problems.append("docs/modules.svg is outdated: run scripts/modules.py")
    for problem in problems:
        print(f"modules: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
