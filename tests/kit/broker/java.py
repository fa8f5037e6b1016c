"""Which Java runs the broker and its tools.

Owns finding a Java that is new enough, and saying what to install where there is none. Must not know what is
run with it.
"""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

MINIMUM = 17
INSTALL_HINT = (
    f"Java {MINIMUM} or 21 is needed; on Debian or Ubuntu: sudo apt-get install openjdk-17-jre-headless "
    "(or openjdk-21-jre-headless); elsewhere set JAVA_HOME"
)


class JavaMissing(RuntimeError):
    """There is no usable Java; the message says what to install."""


def scan_version(text: str) -> int:
    """The feature release in what `java -version` prints ("1.8.0_392" is 8); 0 where there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


@functools.cache
def print_version(java: str) -> str:
    """What `java -version` prints: it names the build."""
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


@functools.cache
def find_java() -> str:
    """Path of the `java` command: JAVA_HOME's, else the PATH's. Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise JavaMissing(f"no java command found. {INSTALL_HINT}")
    version = scan_version(print_version(java))
    if version < MINIMUM:
        raise JavaMissing(f"{java} is Java {version or '(unknown)'}. {INSTALL_HINT}")
    return java
