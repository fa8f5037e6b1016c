"""`python -m tests.kit.broker.lock [VERSION ...]`: resolves Kafka afresh and rewrites the locks.

Owns which modules a broker and its command-line tools need. Read the diff it leaves: that is what gets
trusted.
"""

import sys
import tempfile
from pathlib import Path

from tests.kit.broker.jars import VERSIONS, FetchFailed, hash_file, lock_path, run_ivy

# slf4j-simple in place of each version's own log backend: one way to configure logs, by system properties.
LOG_BACKEND = ("org.slf4j", "slf4j-simple", "1.7.36")
# Kafka Connect and its web server come with kafka-tools for one command that nobody here runs.
EXCLUDED = (
    ("org.apache.kafka", "connect-(runtime|transforms|json|api)"),
    (r"org\.eclipse\.jetty.*", ".*"),
    (r"org\.glassfish.*", ".*"),
    (r"(jakarta|javax)\..*", ".*"),
    (r"com\.fasterxml\.jackson\.(jaxrs|jakarta).*", ".*"),
    (r"org\.slf4j", "slf4j-reload4j"),
)


def build_dependencies(version: str) -> str:
    """Ivy's `<dependency>` elements of the roots, from which it resolves the rest."""
    roots = [
        ("org.apache.kafka", "kafka_2.13", version),
        ("org.apache.kafka", "kafka-tools", version),
        LOG_BACKEND,
    ]
    return "".join(
        f'<dependency org="{group}" name="{artifact}" rev="{revision}" conf="all->master,compile,runtime"/>'
        for group, artifact, revision in roots
    ) + "".join(
        f'<exclude org="{group}" module="{module}" matcher="regexp"/>' for group, module in EXCLUDED
    )


def build_lock(version: str) -> str:
    """The text of a version's lock. Raises FetchFailed where the resolution was not complete."""
    with tempfile.TemporaryDirectory() as staging:
        said = run_ivy(build_dependencies(version), Path(staging))
        if "UNRESOLVED" in said or "FAILED" in said:
            raise FetchFailed(said)
        found = sorted((Path(staging) / "jars").glob("*.jar"))
        lines = [f"{hash_file(jar)} {jar.stem.replace('--', ':')}\n" for jar in found]
    return (
        f"# Kafka {version}: sha256 group:artifact:version; written by python -m tests.kit.broker.lock\n"
        + "".join(lines)
    )


if __name__ == "__main__":
    for wanted in sys.argv[1:] or VERSIONS:
        lock_path(wanted).write_text(build_lock(wanted))
