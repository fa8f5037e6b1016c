"""Kroxylicious as a peer: its pinned jars, its configuration, its process.

Owns the lock beside it and the directory of the jars in the user's cache. The jars come by the mechanism of
`tests.kit.broker.jars` and are verified before each use. Must not know what is measured.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.broker.jars import FetchFailed, cache_home, run_ivy, scan_lock, wrong_jars
from tests.kit.broker.java import find_java
from tests.kit.broker.process import JavaProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "0.12.0"
HERE = Path(__file__).parent
LOCK = HERE / f"kroxylicious-{VERSION}.lock"
ROOTS = (
    ("io.kroxylicious", "kroxylicious-runtime", VERSION),
    ("org.slf4j", "slf4j-simple", "2.0.17"),
)
"""Resolved as they are rather than jar by jar: Netty's native transport is a classifier that Ivy then knows of."""


def find_jars() -> Path:
    """The directory with the verified jars, fetched if need be. Raises FetchFailed, JavaMissing."""
    lock = LOCK.read_text()
    jars = scan_lock(lock)
    target = (
        cache_home() / f"kroxylicious-{VERSION}-{hashlib.sha256(lock.encode()).hexdigest()[:12]}"
    )
    if target.is_dir() and not wrong_jars(target, jars):
        return target
    shutil.rmtree(target, ignore_errors=True)
    wanted = "".join(
        f'<dependency org="{group}" name="{artifact}" rev="{revision}" conf="all->master,compile,runtime"/>'
        for group, artifact, revision in ROOTS
    )
    with tempfile.TemporaryDirectory(dir=cache_home(), prefix=".fetch-") as staging:
        said = run_ivy(wanted, Path(staging))
        wrong = wrong_jars(Path(staging) / "jars", jars)
        if wrong:
            raise FetchFailed(
                f"Kroxylicious {VERSION}: missing or not the pinned bytes: {', '.join(wrong)}\n{said[-800:]}"
            )
        (Path(staging) / "jars").rename(target)
    return target


def build_config(port: int, upstream: str) -> Mapping[str, object]:
    """One virtual cluster of one broker, whose node gets the port behind the bootstrap's."""
    gateway = {
        "name": "default",
        "portIdentifiesNode": {
            "bootstrapAddress": f"127.0.0.1:{port}",
            "advertisedBrokerAddressPattern": "127.0.0.1",
            "nodeStartPort": port + 1,
            "nodeIdRanges": [{"name": "all", "start": 1, "end": 1}],
        },
    }
    cluster = {
        "name": "ladder",
        "targetCluster": {"bootstrapServers": upstream},
        "gateways": [gateway],
    }
    return {"virtualClusters": [cluster]}


def start_kroxylicious(jars: Path, port: int, upstream: str, directory: Path) -> JavaProcess:
    """Its process; it listens a second or two later."""
    config = directory / "kroxylicious.json"
    config.write_text(json.dumps(build_config(port, upstream)))  # JSON is YAML
    flags = ["-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*"]
    command = [find_java(), *flags, str(HERE / "Kroxylicious.java"), str(config)]
    return JavaProcess(command, directory / "kroxylicious.log")
