"""docs/install-machine.md, followed word by word on a clean machine with a broker, and timed."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.deploy.machine import (
    ADDRESS,
    BEFORE,
    NAME,
    PATIENCE_S,
    REPOSITORY,
    Machine,
    find_obstacle,
    running_machine,
    write_properties,
)
from tests.kit.page import Watch, read_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (REPOSITORY / "docs/install-machine.md").read_text()
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(find_obstacle()), reason=find_obstacle() or "none"),
]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with running_machine() as running:
        running.wait_for_port(9092)
        yield running


def test_a_sidecar_before_a_broker(machine: Machine) -> None:
    watch = Watch()
    packages = re.search(r"`(sudo apt-get install [^`]*)`", PAGE)
    assert packages is not None
    machine.admin(f"sudo apt-get update -q && {packages[1]} -y -q", fetches=True)
    watch.note("packages")

    (install,) = read_blocks(PAGE, "1.")
    assert ADDRESS in install
    said = machine.admin(install, fetches=True)
    assert said.splitlines()[-1].startswith("forebay ")
    watch.note("1. install")

    (configure,) = read_blocks(PAGE, "2.")
    machine.admin(configure)
    watch.note("2. configuration")

    (start,) = read_blocks(PAGE, "3.")
    machine.admin(start, fails=True)  # the broker has the port, as the page says
    assert "cannot listen at 0.0.0.0:9092" in machine.sudo("journalctl -u forebay")
    watch.note("3. start, refused")

    (listeners,) = read_blocks(PAGE, "4.")
    changed = dict(
        line.split("=", 1) for line in listeners.replace("BROKER", NAME).splitlines() if line
    )
    write_properties(machine.root, {**BEFORE, **changed})
    machine.sudo("systemctl restart kafka")
    assert "`sudo systemctl restart forebay`" in PAGE
    machine.admin("sudo systemctl restart forebay")
    assert "a worker serves clients" in machine.sudo("systemctl status forebay")
    watch.note("4. the broker's listeners")

    (look,) = read_blocks(PAGE, "5.")
    ready, metrics, canary = look.splitlines()
    while "200 OK" not in machine.admin(ready):
        assert time.monotonic() < watch.last + PATIENCE_S
        time.sleep(0.2)
    watch.note("5. ready")
    print(machine.admin(f"sudo {canary}"))
    watch.note("5. canary")
    assert re.search(r'fetch_bytes_total.*"hit".* [1-9]', machine.admin(metrics))
    print(watch.format_table())


def test_it_is_taken_out_again(machine: Machine) -> None:
    """Clients follow the broker's address: the broker itself answers at the port that they know."""
    command = re.search(r"`(sudo systemctl disable --now forebay)`", PAGE)
    assert command is not None
    write_properties(machine.root, BEFORE)
    machine.admin(command[1])
    machine.sudo("systemctl restart kafka")
    machine.wait_for_port(9092)
    topics = f"/opt/kafka/bin/kafka-topics.sh --bootstrap-server {NAME}:9092 --list"
    assert "forebay-canary" in machine.admin(topics)
