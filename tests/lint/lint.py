#!/usr/bin/env python3
"""lint.py RULE ROOT: one rule of the house over the source tree ROOT; prints each breach as path:line and exits 1.

lint.py --list names the rules; the docstring of each says what it demands.
"""
import os
import re
import sys
from pathlib import Path

CODE = (".hpp", ".cuh", ".cpp", ".cu")
TEXT = CODE + (".py", ".sh", ".md", ".build", ".txt", ".wrap", ".in", ".cmake", ".json", ".svg", ".yml")
RULES = {}


def rule(check):
    RULES[check.__name__] = check
    return check


def files(root: Path, folders: tuple[str, ...], endings: tuple[str, ...]):
    """Files below the folders, in order; '.' stands for the files at the top. Nested repositories are not ours."""
    for folder in folders:
        for here, below, names in os.walk(root / folder):
            below[:] = [] if folder == "." else sorted(d for d in below if d != "__pycache__" and not d.startswith("build"))
            yield from (Path(here, name) for name in sorted(names) if name.endswith(endings))


def everything(root: Path, endings: tuple[str, ...] = TEXT):
    yield from files(root, (".", ".ci", "include", "examples", "tests", "bench", "docs"), endings)
    yield from (p for p in (root / "subprojects").glob("*.wrap") if p.name.endswith(endings))


def lines(path: Path):
    return enumerate(path.read_text(encoding="utf-8").splitlines(), 1)


def quoted(meson_build: Path) -> set[str]:
    text = "\n".join(line.split("#")[0] for _, line in lines(meson_build))
    return set(re.findall(r"'([^']*)'", text))


@rule
def sources(root: Path):
    """Every .cpp and .cu of tests, bench and examples stands in a meson.build of its folder or of one above
    it, with its ending or without; no globs."""
    for path in files(root, ("tests", "bench", "examples"), (".cpp", ".cu")):
        folders = [folder for folder in path.parents if folder.is_relative_to(root) and (folder / "meson.build").is_file()]
        names = {path.name, path.stem}
        if not any((names | {path.relative_to(f).as_posix()}) & quoted(f / "meson.build") for f in folders):
            yield path, 1, "named in no meson.build"
    for path in everything(root, ("meson.build",)):
        for n, line in lines(path):
            if re.search(r"run_command\(\s*'(find|ls|sh|bash)'|\bglob\b", line.split("#")[0]):
                yield path, n, "lists files by a command; name them"


@rule
def linkage(root: Path):
    """No shared library of ours: a rebuild never changes a running program."""
    for path in everything(root, ("meson.build",)):
        for n, line in lines(path):
            if re.search(r"\b(shared_library|shared_module|both_libraries|library)\(", line.split("#")[0]):
                yield path, n, "may build a shared library; say static_library"


@rule
def headers(root: Path):
    """Every header of the library is compiled alone: it stands in tests/compile/meson.build."""
    listed = quoted(root / "tests/compile/meson.build")
    base = root / "include/lanewise"
    for path in files(root, ("include",), (".hpp", ".cuh")):
        if path.relative_to(base).as_posix() not in listed:
            yield path, 1, "missing in the list of tests/compile/meson.build"


# Room -> rooms it may include, besides itself and `shared`, the headers that every backend uses. A file of the top
# folder that is not `shared` is a room of its own.
ROOMS = {
    "shared": {"variants", "memory"},
    "variants": set(),
    "memory": set(),
    "cpu": set(),
    "cuda/leaf": set(),
    "cuda/instruction": {"cuda/leaf"},
    "cuda/tile": {"cuda/leaf", "cuda/instruction"},
    "cuda/launch": {"cuda/leaf", "cuda/instruction", "cuda/tile"},
    "cuda/sm80": {"cuda/leaf", "cuda/instruction", "cuda/tile", "cuda/launch"},
    "cuda/sm90": {"cuda/leaf", "cuda/instruction", "cuda/tile", "cuda/launch"},
    "attention_cpu.hpp": {"cpu", "variants"},
    "attention.cuh": {"cuda/leaf", "cuda/launch", "cuda/sm80", "cuda/sm90", "variants"},
    "reference.hpp": {"variants"},
}


def room(path: str) -> str:
    """The room of a header, given relative to include/lanewise."""
    folder, _, name = path.rpartition("/")
    if folder == "cuda":
        return "cuda/launch" if name == "launch.cuh" else "cuda/leaf"
    if folder:
        return next((r for r in ROOMS if folder == r or folder.startswith(r + "/")), folder)
    return path if path in ROOMS else "shared"


@rule
def includes(root: Path):
    """Includes go one way: cpu and cuda never meet; instruction <- tile <- launch <- sm80, sm90 <- attention.cuh."""
    base = root / "include/lanewise"
    for path in files(root, ("include",), (".hpp", ".cuh")):
        here = room(path.relative_to(base).as_posix())
        if here not in ROOMS:
            yield path, 1, f"{here} is no room of docs/architecture.md"
            continue
        for n, line in lines(path):
            found = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<lanewise/([^>]+)>)', line)
            if not found:
                continue
            target = Path(os.path.normpath(path.parent / found[1] if found[1] else base / found[2]))
            if not target.is_relative_to(base):
                yield path, n, "includes a file outside the library"
                continue
            there = room(target.relative_to(base).as_posix())
            if there not in {here, "shared"} | ROOMS[here]:
                yield path, n, f"{here} includes {there}"


@rule
def line_ends(root: Path):
    """LF only."""
    for path in everything(root, TEXT + ("run", "LICENSE", ".gitattributes", ".gitignore", ".clang-format")):
        if b"\r" in path.read_bytes():
            yield path, 1, "has CR"


@rule
def ordering(root: Path):
    """Every addition of floats by several threads says why its order is fixed, in a comment with the word `order`."""
    adds = re.compile(r"\batomicAdd\s*\(|\bred\.(async|global|shared|gpu|relaxed|release)|\bcp\.reduce|atomic(_ref)?<\s*(float|double)\s*>")
    for path in files(root, ("include", "examples", "bench"), CODE):
        text = path.read_text(encoding="utf-8").splitlines()
        for n, line in enumerate(text, 1):
            comments = [t[t.find("//"):] for t in text[max(0, n - 6):n] if "//" in t]
            if adds.search(line.split("//")[0]) and not any("order" in c for c in comments):
                yield path, n, "adds floats without its ordering argument"


@rule
def leftovers(root: Path):
    """Nothing is marked as left for later."""
    marks = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) + r")\b")
    for path in everything(root):
        yield from ((path, n, "left for later") for n, line in lines(path) if marks.search(line))


@rule
def macros(root: Path):
    """LANEWISE_HD and LANEWISE_VERSION_* are the only macros; wgmma.cuh undefines its own."""
    for path in files(root, ("include",), (".hpp", ".cuh")):
        text = path.read_text(encoding="utf-8")
        for n, line in lines(path):
            name = re.match(r"\s*#\s*define\s+(\w+)", line)
            if not name or re.fullmatch(r"LANEWISE_(HD|VERSION_\w+)", name[1]):
                continue
            if path.name != "wgmma.cuh" or not re.search(rf"#\s*undef\s+{name[1]}\b", text):
                yield path, n, f"macro {name[1]}"


@rule
def links(root: Path):
    """A relative link in a Markdown page leads to a file, and to a heading of it where it names one."""
    for path in everything(root, (".md",)):
        for n, line in lines(path):
            for link in re.findall(r"\]\(([^)\s]+)\)", line):
                if re.match(r"\w+:", link):
                    continue
                name, _, heading = link.partition("#")
                target = path.parent / name if name else path
                if not target.exists():
                    yield path, n, f"dead link {link}"
                elif heading and heading not in {anchor(t) for _, t in lines(target) if t.startswith("#")}:
                    yield path, n, f"no such heading {link}"


def anchor(heading: str) -> str:
    words = re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower())
    return words.replace(" ", "-")


@rule
def length(root: Path):
    """A file is one room: at most 700 lines."""
    for path in files(root, ("include", "examples", "tests", "bench"), CODE + (".py",)):
        count = sum(1 for _ in lines(path))
        if count > 700:
            yield path, count, "over 700 lines"


@rule
def readme(root: Path):
    """The README's program is examples/first_attention/main.cpp, to the letter."""
    page = (root / "README.md").read_text(encoding="utf-8")
    program = (root / "examples/first_attention/main.cpp").read_text(encoding="utf-8")
    if f"```cpp\n{program}```\n" not in page:
        yield root / "README.md", 1, "its program differs from examples/first_attention/main.cpp"


def main() -> int:
    if sys.argv[1:] == ["--list"]:
        print("\n".join(RULES))
        return 0
    name, root = sys.argv[1], Path(sys.argv[2]).resolve()
    breaches = list(RULES[name](root))
    for path, n, text in breaches:
        print(f"{path.relative_to(root)}:{n}: {text}")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
