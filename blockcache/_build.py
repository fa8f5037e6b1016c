"""Builds the C extensions in place, those older than their sources: `python -m blockcache._build`.

Owns the compiler's flags, which extensions there are and their file names. Must not know the packager:
`hatch_build.py` calls `build()`; nor does it import what it builds. Invariants: a package's C lies in its `native`
folder; one header there, between its cdef marks, is the only declaration; our own C is compiled with warnings as
errors, cffi's generated wrapper without; a failed build leaves no half-written extension behind.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NamedTuple

from cffi import FFI

ROOT = Path(__file__).resolve().parents[1]
HARDENED = (
    "-fstack-protector-strong",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=3",
    "-Wno-error=cpp",
)
"""A C library before glibc 2.34 warns that it takes 3 for 2."""
STRICT = ("-std=c11", "-O2", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror", *HARDENED)
WRAPPER = ("-O2", "-fPIC", "-w", *HARDENED)
LINKING = ("-Wl,-z,relro,-z,now", "-pthread")


class BuildFailed(Exception):
    """The C compiler is missing or refused the sources; the message says which and what to do."""


class Extension(NamedTuple):
    """`package`: its folder; `name`: of the header, and of the module with an underscore before it; `uses`: C of other
    packages that goes into it, too; `headers`: folders of other packages whose headers it includes.
    """

    package: str
    name: str
    uses: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()

    @property
    def native(self) -> Path:
        """The folder of its C."""
        return ROOT / self.package / "native"

    @property
    def path(self) -> Path:
        """Where this interpreter looks for it."""
        return ROOT / self.package / f"_{self.name}{sysconfig.get_config_var('EXT_SUFFIX')}"

    @property
    def sources(self) -> list[Path]:
        """The C to be compiled."""
        return [*sorted(self.native.glob("*.c")), *(ROOT / path for path in self.uses)]

    @property
    def folders(self) -> list[Path]:
        """Where its headers lie."""
        of_others = [ROOT / folder for folder in self.headers]
        return list(dict.fromkeys([self.native, *(one.parent for one in self.sources), *of_others]))

    def read_declarations(self) -> str:
        """The part of the header that cffi and Python see."""
        text = (self.native / f"{self.name}.h").read_text()
        return text.split("/* cdef begin */")[1].split("/* cdef end */")[0]

    def is_current(self) -> bool:
        """Whether it is newer than everything it is made from."""
        headers = [header for folder in self.folders for header in folder.glob("*.h")]
        made_from = [Path(__file__), *headers, *self.sources]
        newest = max(source.stat().st_mtime for source in made_from)
        return self.path.exists() and self.path.stat().st_mtime > newest


EXTENSIONS = (
    Extension("blockcache", "pyfastcache"),
    Extension("protocol", "ordinary"),
    Extension("proxy/partitions", "rows", headers=("protocol/native",)),
    Extension(
        "proxy/produce",
        "pipeline",
        uses=(
            "protocol/native/produce_rows.c",
            "protocol/native/weight.c",
        ),
    ),
)


def find_compiler() -> list[str]:
    """The C compiler's command: $CC, or the first of cc, gcc and clang."""
    configured = shlex.split(sysconfig.get_config_var("CC") or "")[:1]
    for name in (*configured, "cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise BuildFailed(
        "no C compiler found; on Debian or Ubuntu: apt install gcc libc6-dev python3-dev"
    )


def run_compiler(arguments: list[str]) -> None:
    """Runs one compiler command; its messages become the exception's."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"{shlex.join(arguments)}\n{done.stderr}")


def build(force: bool = False) -> list[Path]:
    """Compiles the extensions that are not current; the paths of all. Raises BuildFailed."""
    for extension in EXTENSIONS:
        if force or not extension.is_current():
            compile_extension(extension)
    return [extension.path for extension in EXTENSIONS]


def compile_extension(extension: Extension) -> None:
    """Compiles one and puts it where it is looked for. Raises BuildFailed."""
    compiler = find_compiler()
    ffi = FFI()
    ffi.cdef(extension.read_declarations())
    ffi.set_source(
        f"{extension.package.replace('/', '.')}._{extension.name}", f'#include "{extension.name}.h"'
    )
    include = [
        *map(str, extension.folders),
        sysconfig.get_path("include"),
        sysconfig.get_path("platinclude"),
    ]
    flagged = [part for path in include for part in ("-I", path)]
    with tempfile.TemporaryDirectory(dir=extension.path.parent, prefix=".build-") as scratch:
        wrapper = Path(scratch) / "wrapper.c"
        ffi.emit_c_code(str(wrapper))
        objects = []
        for source in (wrapper, *extension.sources):
            objects.append(f"{scratch}/{source.stem}.o")
            flags = WRAPPER if source is wrapper else STRICT
            run_compiler([*compiler, *flags, *flagged, "-c", str(source), "-o", objects[-1]])
        linked = Path(scratch) / extension.path.name
        run_compiler([*compiler, "-shared", *LINKING, *objects, "-o", str(linked)])
        linked.replace(extension.path)


if __name__ == "__main__":
    try:
        print(*build(), sep="\n")
    except BuildFailed as failure:
        sys.exit(str(failure))
