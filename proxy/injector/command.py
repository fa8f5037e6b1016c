"""`forebay injector`: arguments, signals and the log.

Owns the command's start and exit code. Must not know pods. Exit codes as all of Forebay's: 0 done, 1 failed while
running, 2 wrong arguments or files.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.config.units import parse_listen_address
from proxy.injector.server import Files, run
from proxy.sockets import bind
from proxy.supervisor.signals import ENDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.config.units import Address

OK, FAILED, USAGE = 0, 1, 2
_HELP = """\
Answers a Kubernetes API server's admission reviews at POST /inject: a pod gets the containers, volumes,
labels and annotations that SIDECAR says. The chart starts it (injector.enabled) and writes SIDECAR.
GET /readyz and /metrics are answered on the same port. Changed files are read again.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the injector until a signal ends it. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="forebay injector",
        description="A Kubernetes webhook that puts Forebay's sidecar into labelled pods.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    for name in ("sidecar", "certificate", "key"):
        parser.add_argument(f"--{name}", required=True, type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        address = parse_listen_address(options.listen)
        files = Files(options.sidecar, options.certificate, options.key)
    except (OSError, ValueError) as error:
        print(f"forebay injector: {error}", file=sys.stderr)
        return USAGE
    try:
        asyncio.run(_serve(files, address))
    except OSError as error:
        print(f"forebay injector: {error}", file=sys.stderr)
        return FAILED
    return OK


async def _serve(files: Files, address: Address) -> None:
    stop = asyncio.Event()
    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(files, bind(address), stop)
