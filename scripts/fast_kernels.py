"""Names for the kernels of kernels/cuda/fast, whose compiled names are those of C++ templates.

    fast_kernels.py rename RAW.ptx OUT.ptx    each kernel gets the name of the variable that points to it
    fast_kernels.py report FILE.ptx PTXAS.txt a line for each kernel: registers, spills, stack, shared memory, threads, and
                                              offset:bytes of each parameter; and a line for each constant
"""

import re
import sys

POINTER = re.compile(r"^\.global \.align 8 \.u64 (\w+) = (_Z\w+);\n", re.M)
CONSTANT = re.compile(r"^\.global \.align 4 \.u32 (\w+) = (\d+);$", re.M)
KERNEL = re.compile(r"^\.visible \.entry (\w+)\(\n(.*?)\n\)\n(.*?)^\{", re.M | re.S)
PARAMETER = re.compile(r"\.param (?:\.align (\d+) )?\.(\w)(\d+) \w+(?:\[(\d+)\])?")
PTXAS = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers[^\n]*", re.S)


def rename(ptx: str) -> str:
    names = {long: short for short, long in POINTER.findall(ptx)}
    if not names:
        sys.exit("no variable points to a kernel")
    ptx = POINTER.sub("", ptx)
    for long, short in names.items():
        ptx = re.sub(rf"\b{long}(?=\b|_param_)", short, ptx)
    # Static kernels are not visible, and the driver would not find them.
    ptx = re.sub(r"^(\.visible )?\.entry", ".visible .entry", ptx, flags=re.M)
    # Declarations; the definitions follow.
    return re.sub(r"^\.visible \.entry \w+\n?\(\n(?:[^)]*\n)?\)\n;\n", "", ptx, flags=re.M)


def layout(parameters: str) -> list[tuple[int, int]]:
    at, all_of_them = 0, []
    for align, _, bits, count in PARAMETER.findall(parameters):
        size = int(bits) // 8 * int(count or 1)
        to = int(align or size)
        at = (at + to - 1) // to * to
        all_of_them.append((at, size))
        at += size
    return all_of_them


def report(ptx: str, ptxas: str) -> list[str]:
    used = {}
    for match in PTXAS.finditer(ptxas):
        name, stack, stores, loads, registers = match.groups()
        shared = re.search(r"(\d+) bytes smem", match[0])
        used[name] = [registers, str(int(stores) + int(loads)), stack, shared[1] if shared else "0"]
    lines = []
    for name, parameters, directives in KERNEL.findall(ptx):
        threads = re.search(r"\.maxntid (\d+), 1, 1", directives)
        parts = [f"{offset}:{size}" for offset, size in layout(parameters)]
        lines.append(" ".join([f"{name:28}", *(f"{x:>5}" for x in [*used[name], threads[1] if threads else "?"]), *parts]))
    return lines + [f"{name:28} {value}" for name, value in CONSTANT.findall(ptx)]


def main() -> None:
    what, first, second = sys.argv[1:]
    with open(first) as file:
        ptx = file.read()
    if what == "rename":
        with open(second, "w") as file:
            file.write(rename(ptx))
    else:
        with open(second) as file:
            print("\n".join(report(ptx, file.read())))


main()
