#!/usr/bin/env python3
"""install_test.py WAY SOURCE BUILD: the ways by which lanewise reaches a user, each tried in a folder of its own.

subproject   the consumer takes the source tree as a Meson subproject
pkg_config   ... finds an installed tree through pkg-config
cmake        ... finds an installed tree through CMake, after the tree has been moved
dist         the tarball of `meson dist` holds every file and passes its quick tests
autocrlf     so does a clone by a git that would rather write CRLF
reconfigured a folder of quickstart.sh, set up without CUDA, compiles .cu files as C++20 once it has CUDA
Exit code 77: a tool is missing, or the source is no git repository.
"""
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

CONSUMER = Path(__file__).parent / "consumer"
SKIP = 77


def run(*command, **more) -> str:
    """Output of a command that must succeed; its words are shown when it does not."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        print(f"$ {' '.join(str(c) for c in command)}\n{done.stdout}exit code {done.returncode}")
        sys.exit(1)
    return done.stdout


def need(*tools):
    for tool in tools:
        if not shutil.which(tool):
            print(f"skipped: no {tool}")
            sys.exit(SKIP)


def meson_consumer(source: Path, room: Path, **more):
    run("meson", "setup", room / "build", source, **more)
    run("ninja", "-C", room / "build")
    print(run(room / "build/consumer"), end="")


def installed(build: Path, room: Path) -> Path:
    """The prefix of an installed tree below `room`."""
    run("meson", "install", "-C", build, "--no-rebuild", "--destdir", room / "stage")
    options = json.loads(run("meson", "introspect", build, "--buildoptions"))
    return room / "stage" / next(o["value"] for o in options if o["name"] == "prefix").lstrip("/")


def subproject(source: Path, build: Path, room: Path):
    shutil.copytree(CONSUMER, room / "consumer")
    (room / "consumer/subprojects").mkdir()
    (room / "consumer/subprojects/lanewise").symlink_to(source)
    meson_consumer(room / "consumer", room)


def pkg_config(source: Path, build: Path, room: Path):
    need("pkg-config")
    prefix = installed(build, room)
    look = {"PKG_CONFIG_LIBDIR": str(prefix / "share/pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(room / "stage")}
    print(run("pkg-config", "--cflags", "--libs", "lanewise", env={**os.environ, **look}), end="")
    meson_consumer(CONSUMER, room, env={**os.environ, **look})


def cmake(source: Path, build: Path, room: Path):
    need("cmake")
    prefix = installed(build, room).rename(room / "moved")
    run("cmake", "-G", "Ninja", "-S", CONSUMER, "-B", room / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", room / "build")
    print(run(room / "build/consumer"), end="")


def repository(source: Path) -> list[str]:
    """The files that git has, or a skip."""
    need("git")
    top = subprocess.run(["git", "-C", source, "rev-parse", "--show-toplevel"], capture_output=True, text=True)
    if top.returncode != 0 or Path(top.stdout.strip()).resolve() != source:
        print(f"skipped: {source} is no git repository: {top.stderr.strip()}")
        sys.exit(SKIP)
    return run("git", "-C", source, "ls-tree", "-r", "--name-only", "HEAD").splitlines()


def quick_tests(tree: Path, room: Path):
    """Configures as a user without a GPU does, then builds and runs what takes seconds."""
    build = room / "build"
    run("meson", "setup", build, tree, "-Dcuda=disabled")
    run("ninja", "-C", build, "examples/first_attention/first_attention", "tests/unit/version_test")
    for what in (["--suite", "lint"], ["first_attention", "version_test"]):
        print(run("meson", "test", "-C", build, "--no-rebuild", *what).split("\n\n")[0])


def dist(source: Path, build: Path, room: Path):
    files = repository(source)
    run("meson", "dist", "-C", build, "--no-tests", "--allow-dirty", "--formats", "gztar")
    with tarfile.open(max((build / "meson-dist").glob("*.tar.gz"), key=os.path.getmtime)) as archive:
        archive.extractall(room)
    tree = next(p for p in room.iterdir() if p.is_dir())
    missing = [f for f in files if not (tree / f).is_file()]
    if missing:
        print(f"not in the tarball: {missing}")
        sys.exit(1)
    quick_tests(tree, room)


def autocrlf(source: Path, build: Path, room: Path):
    repository(source)
    run("git", "-c", "core.autocrlf=true", "clone", "-q", source, room / "clone")
    ends = run("git", "-C", room / "clone", "-c", "core.autocrlf=true", "ls-files", "--eol").splitlines()
    wrong = [e for e in ends if any(w.endswith(("/crlf", "/mixed")) for w in e.split()[:2])]
    if wrong or not ends:
        print("\n".join(["CRLF in:"] + wrong))
        sys.exit(1)
    quick_tests(room / "clone", room)


def reconfigured(source: Path, build: Path, room: Path):
    need("nvcc")
    run("meson", "setup", room / "build", source, "-Dtests=disabled", "-Dbench=disabled", "-Dcuda=disabled")
    run("meson", "setup", "--reconfigure", room / "build", source, "-Dtests=enabled", "-Dcuda=enabled")
    compiled = json.loads((room / "build/compile_commands.json").read_text())
    kernels = [c for c in compiled if c["file"].endswith(".cu")]
    wrong = [c["file"] for c in kernels if "-std=c++20" not in c["command"]]
    if wrong or not kernels:
        print(f"of {len(kernels)} .cu files not C++20: {wrong}")
        sys.exit(1)


def main():
    way, source, build = globals()[sys.argv[1]], Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve()
    with tempfile.TemporaryDirectory() as room:
        way(source, build, Path(room).resolve())


if __name__ == "__main__":
    main()
