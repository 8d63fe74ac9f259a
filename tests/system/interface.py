#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every section of the public headers is marked stable or experimental, and docs/promises.md lists what is experimental.

A section begins with a line of dashes; a header without such lines is one section. Its first line is the mark. Everything that a program
can use is in a section: functions, structures, enumerations, callbacks. Every exported name is declared exactly once. The checks are then
given headers with faults, which they must find.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "promises.md"
BAR = re.compile(r"^/\* -{5,} (.+?) \*/$")
MARK = re.compile(r"^/\* Interface: (.*)\. \*/$")
# quire.h only includes the others; the version, QUIRE_API and the size of a page come before the first section of base.h.
EXEMPT = {"quire.h"}


def headers():
    return {path.name: path.read_text() for path in sorted((ROOT / "include" / "quire").glob("*.h")) if path.name not in EXEMPT}


def exported():
    lists = (ROOT / "src" / "quire.symbols", ROOT / "store" / "quire_store.symbols")
    return [line for path in lists for line in path.read_text().splitlines() if line and not line.startswith("#")]


def without_comments(text):
    """Comments that are not marks or bars become spaces; lines keep their places."""
    keep = lambda m: m[0] if BAR.match(m[0]) or MARK.match(m[0]) else re.sub(r"[^\n]", " ", m[0])
    return re.sub(r"/\*.*?\*/", keep, text, flags=re.S)


def sections(name, text):
    """(where it begins, title, lines) of a header."""
    lines = without_comments(text).split("\n")
    bars = [i for i, line in enumerate(lines) if BAR.match(line)]
    if not bars:
        begin = next((i for i, line in enumerate(lines) if MARK.match(line)), len(lines))
        yield begin - 1, name, lines[begin:]
        return
    for begin, end in zip(bars, bars[1:] + [len(lines)]):
        yield begin, BAR.match(lines[begin])[1], lines[begin + 1:end]


def look(files, names):
    """Faults, and the experimental functions by section."""
    faults, found, experimental = [], {}, {}
    for name, text in files.items():
        parts = list(sections(name, text))
        before = without_comments(text).split("\n")[:parts[0][0] + 1]
        for line in before:
            if re.match(r"\s*(QUIRE_API\b.*\(|typedef\b|enum\b|struct\b|static inline\b)", line):
                faults.append(f"{name}: before the first section: {line.strip()}")
        for at, title, lines in parts:
            marks = [(i, MARK.match(line)[1]) for i, line in enumerate(lines) if MARK.match(line)]
            if len(marks) != 1 or marks[0][0] != 0 or marks[0][1] not in ("stable", "experimental"):
                faults.append(f"{name}:{at + 1}: section '{title}' does not begin with one mark")
                continue
            for function in re.findall(r"\bQUIRE_API\b[^;]*?\b(quire_\w+)\(", "\n".join(lines)):
                if function in found:
                    faults.append(f"{name}: {function} is declared twice")
                found[function] = marks[0][1]
                if marks[0][1] == "experimental":
                    experimental.setdefault((name, title), []).append(function)
    faults += [f"{function} is exported and declared in no marked section" for function in names if function not in found]
    faults += [f"{function} is declared and not exported" for function in found if function not in names]
    return faults, experimental


def listed(page):
    """Functions in the table of experimental sections."""
    part = re.search(r"^## Experimental parts\n(.*?)^## ", page, re.M | re.S)
    return set(re.findall(r"`(quire_\w+)\(\)`", part[1])) if part else set()


def attacks(files, names):
    """(what is wrong, headers, exported names)"""
    tile, cache, geometry = files["tile.h"], files["cache.h"], files["geometry.h"]
    yield "a section without a mark", {**files, "tile.h": tile.replace("/* Interface: stable. */\n", "", 1)}, names
    yield "a mark of another kind", {**files, "tile.h": tile.replace("Interface: stable.", "Interface: rather stable.", 1)}, names
    yield "a section with two marks", {**files, "cache.h": cache.replace("/* Interface: stable. */", "/* Interface: stable. */\n/* Interface: experimental. */", 1)}, names
    yield "a header without marks", {**files, "geometry.h": geometry.replace("/* Interface: stable. */\n", "")}, names
    first = cache.index("/* -----")
    yield "a function before the first section", {**files, "cache.h": cache[:first] + "QUIRE_API void quire_early(void);\n" + cache[first:]}, names + ["quire_early"]
    yield "a declaration in a comment", {**files, "cache.h": cache.replace("QUIRE_API void quire_pool_destroy(quire_pool *pool);", "/* QUIRE_API void quire_pool_destroy(quire_pool *pool); */")}, names
    yield "an exported name without a declaration", files, names + ["quire_secret"]
    yield "a declared name that is not exported", files, [name for name in names if name != "quire_seq_fork"]
    yield "a function that is declared twice", {**files, "geometry.h": geometry.replace("/* Passed in arrays. */", "QUIRE_API void quire_seq_destroy(quire_seq *seq);")}, names


def main():
    files, names = headers(), exported()
    faults, experimental = look(files, names)
    for fault in faults:
        print(f"FAILED {fault}")
    functions = {function for group in experimental.values() for function in group}
    page = listed(PAGE.read_text())
    for function in sorted(functions ^ page):
        faults.append(function)
        print(f"FAILED {function} is {'experimental and not in docs/promises.md' if function in functions else 'in docs/promises.md and not experimental'}")
    if not faults:
        print(f"ok {len(names)} exported names, each in a marked section; {len(functions)} are experimental, all listed")
    for what, changed, changed_names in attacks(files, names):
        right = (changed, changed_names) != (files, names) and bool(look(changed, changed_names)[0])
        if not right:
            faults.append(what)
        print(f"{'ok' if right else 'FAILED'} {what} is found")
    sys.exit(len(faults) > 0)


if __name__ == "__main__":
    if "--list" in sys.argv[1:]:  # the rows of the table in docs/promises.md
        for (name, title), group in look(headers(), exported())[1].items():
            print(f"| `{name}`, {title if title != name else 'all of it'} | {', '.join(f'`{function}()`' for function in group)} |")
    else:
        main()
