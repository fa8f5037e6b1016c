"""Builds the C extension in place, if older than its sources: `python -m blockcache._build`.

Owns the compiler's flags and the extension's file name. Must not know the packager: `hatch_build.py` calls
`build()`. Invariants: `native/pyfastcache.h` between its cdef marks is the only declaration; our own C is
compiled with warnings as errors, cffi's generated wrapper without; a failed build leaves no half-written
extension behind.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from cffi import FFI

PACKAGE = Path(__file__).resolve().parent
NATIVE = PACKAGE / "native"
HEADER = NATIVE / "pyfastcache.h"
STRICT = ("-std=c11", "-O2", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror")
WRAPPER = ("-O2", "-fPIC", "-w")


class BuildFailed(Exception):
    """The C compiler is missing or refused the sources; the message says which and what to do."""


def read_declarations() -> str:
    """The part of the header that cffi and Python see."""
    return HEADER.read_text().split("/* cdef begin */")[1].split("/* cdef end */")[0]


def extension_path() -> Path:
    """Where this interpreter looks for the extension."""
    return PACKAGE / f"_pyfastcache{sysconfig.get_config_var('EXT_SUFFIX')}"


def find_compiler() -> list[str]:
    """The C compiler's command: $CC, or the first of cc, gcc and clang."""
    configured = shlex.split(sysconfig.get_config_var("CC") or "")[:1]
    for name in (*configured, "cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise BuildFailed("no C compiler found; on Debian or Ubuntu: apt install gcc libc6-dev python3-dev")


def run_compiler(arguments: list[str]) -> None:
    """Runs one compiler command; its messages become the exception's."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"{shlex.join(arguments)}\n{done.stderr}")


def is_current(target: Path) -> bool:
    """Whether the extension is newer than everything it is made from."""
    made_from = [Path(__file__), *NATIVE.glob("*.[ch]")]
    return target.exists() and target.stat().st_mtime > max(source.stat().st_mtime for source in made_from)


def build(force: bool = False) -> Path:
    """Compiles the extension unless it is current, and returns its path. Raises BuildFailed."""
    target = extension_path()
    if not force and is_current(target):
        return target
    compiler = find_compiler()
    ffi = FFI()
    ffi.cdef(read_declarations())
    ffi.set_source("blockcache._pyfastcache", '#include "pyfastcache.h"')
    with tempfile.TemporaryDirectory(dir=PACKAGE, prefix=".build-") as scratch:
        wrapper = Path(scratch) / "wrapper.c"
        ffi.emit_c_code(str(wrapper))
        objects = []
        includes = [
            "-I",
            str(NATIVE),
            "-I",
            sysconfig.get_path("include"),
            "-I",
            sysconfig.get_path("platinclude"),
        ]
        for source in (wrapper, *sorted(NATIVE.glob("*.c"))):
            objects.append(f"{scratch}/{source.stem}.o")
            flags = WRAPPER if source is wrapper else STRICT
            run_compiler([*compiler, *flags, *includes, "-c", str(source), "-o", objects[-1]])
        linked = Path(scratch) / target.name
        run_compiler([*compiler, "-shared", *objects, "-o", str(linked)])
        linked.replace(target)
    return target


if __name__ == "__main__":
    try:
        print(build())
    except BuildFailed as failure:
        sys.exit(str(failure))
