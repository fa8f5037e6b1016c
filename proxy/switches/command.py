"""`forebay switch`: throws a switch of a running Forebay by its admin port, or lists what is switched.

Owns arguments, the request and the printed table. Must not know what a switch does: the process that is asked checks
everything. Invariants:
* exit codes as all of Forebay's: 0 done, 1 not reached or failed, 2 refused or a wrong command line.
* what is in force afterwards is printed after each change.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlencode

from proxy.config.check import read_secret
from proxy.config.load import load
from proxy.config.units import Address, format_duration, parse_remote_address
from proxy.config.yaml_file import ConfigError
from proxy.switches.override import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OK, FAILED, USAGE = 0, 1, 2
TIMEOUT_S: Final = 10.0
UNSPECIFIED: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Hosts that stand for all addresses, and the one that is asked."""
DROP, RESET = "drop", "reset"
_HELP: Final = """\
switches:
{switches}
  drop      PATTERN                         drops these topics from memory, which fills again
  reset     [NAME]                          ends all switches, or those of a name: the configured values again

Without a switch: list what is switched. A switch outlives the worker and an upgrade, not the supervisor; a reload
changes what is under it.

examples:
  forebay switch bypass on                                            # clients go past Forebay, now
  forebay switch cache off --for 30m                                  # the broker answers all Fetches
  forebay switch cache off --topic 'orders.*'
  forebay switch cache serve --listener clients --share 5% --all-after 10m
  forebay switch drop orders
  forebay switch reset                                                # as configured

exit codes: 0 done, 1 Forebay was not reached, 2 refused, or wrong command line
"""


class Asked(NamedTuple):
    """Where the admin port is, and what it wants to be shown."""

    address: Address
    context: ssl.SSLContext | None
    token: str | None


class NotReached(Exception):
    """There is no answer; the text says why."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    width = max(map(len, KINDS))
    rows = [
        f"  {name:{width}} {kind.takes:32}{'over ' + kind.key if kind.key else 'past Forebay'}"
        for name, kind in KINDS.items()
    ]
    parser = argparse.ArgumentParser(
        prog="forebay switch",
        description="Change a running Forebay without a restart, and undo it all by `reset`.",
        epilog=_HELP.format(switches="\n".join(rows)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("switch", nargs="?", choices=[*KINDS, DROP, RESET], metavar="SWITCH", help="see below")
    add("value", nargs="?", metavar="VALUE", help="see below")
    add("--listener", metavar="NAME", help="for the clients of this listener (cache, bypass)")
    add("--topic", metavar="PATTERN", help="for these topics, with `*` and `?` (cache)")
    add("--share", metavar="PERCENT", help="for this share of the connections first (cache)")
    add("--all-after", metavar="TIME", dest="after", help="then for all, unless it did harm")
    add("--for", metavar="TIME", dest="for", help="end by itself after TIME: 30m, 4h")
    add("--config", type=Path, metavar="FILE", help="where the admin port is, its token and TLS")
    add("--admin", type=_parse_address, metavar="HOST:PORT", help="(127.0.0.1:9190)")
    add("--token-file", type=Path, metavar="FILE", help="the token, where the port wants one")
    add("--ca-file", type=Path, metavar="FILE", help="TLS, with a certificate of these authorities")
    add("--certificate", nargs=2, metavar=("CERTIFICATE", "KEY"), help="shown to the port")
    add("--json", action="store_true", help="print the answer as it came")
    return parser


def _parse_address(text: str) -> Address:
    try:
        return parse_remote_address(text)
    except ValueError as refusal:
        raise argparse.ArgumentTypeError(f"{text!r} {refusal}") from None


def main(arguments: Sequence[str]) -> int:
    """Run `forebay switch ...` and return its exit code. Wrong arguments raise SystemExit(2)."""
    options = build_parser().parse_args(arguments)
    try:
        method, path = plan_request(options)
        asked = find_admin(options)
    except ConfigError as refusal:
        return _fail("; ".join(refusal.problems), USAGE)
    except (OSError, ValueError) as refusal:
        return _fail(f"{refusal}", USAGE)
    try:
        status, answer = ask(asked, method, path)
    except NotReached as reason:
        return _fail(f"{reason}", FAILED)
    if status != http.HTTPStatus.OK:
        return _fail(str(answer.get("error", answer)), USAGE)
    print(json.dumps(answer, indent=2) + "\n" if options.json else describe(answer), end="")
    return OK


def plan_request(options: argparse.Namespace) -> tuple[str, str]:
    """Method and path of the request. Raises ValueError if the arguments do not fit each other."""
    given = vars(options)
    named = {key: given[key] for key in ("listener", "topic", "share", "after", "for")}
    named = {key: value for key, value in named.items() if value is not None}
    switch, value = options.switch, options.value
    if switch is None:
        if named:
            raise ValueError(f"--{next(iter(named))} belongs to a switch")
        return "GET", "/switches"
    if switch == RESET:
        if value not in (None, *KINDS):
            raise ValueError(f"reset takes one of {', '.join(KINDS)}, not {value!r}")
        parameters = {"switch": value, **named} if value else named
        return "POST", "/switches/reset" + _query(parameters)
    if value is None:
        takes = "a topic or a pattern" if switch == DROP else KINDS[switch].takes
        raise ValueError(f"{switch} takes {takes}")
    if switch == DROP:
        if named:
            raise ValueError(f"drop takes no --{next(iter(named))}")
        return "POST", "/switches/drop" + _query({"topic": value})
    return "POST", "/switches" + _query({"switch": switch, "value": value, **named})


def _query(parameters: Mapping[str, str]) -> str:
    return f"?{urlencode(parameters)}" if parameters else ""


def find_admin(options: argparse.Namespace) -> Asked:
    """Where to ask. Raises ConfigError, OSError or ValueError if a file cannot be used."""
    address, token_file, context = Address("127.0.0.1", 9190), options.token_file, None
    if options.config is not None:
        admin = load(options.config, dict(os.environ), checks=False).config.admin
        address = admin.listen
        token_file = token_file or (admin.token_file and Path(admin.token_file))
        if admin.tls is not None:
            context = _build_context(Path(admin.tls.certificate_file))
    if options.ca_file is not None:
        context = _build_context(options.ca_file)
    if options.certificate:
        if context is None:
            raise ValueError("--certificate belongs to TLS: give --ca-file, or --config")
        context.load_cert_chain(*options.certificate)
    token = read_secret(str(token_file)) if token_file else None
    address = options.admin or address
    return Asked(address._replace(host=UNSPECIFIED.get(address.host, address.host)), context, token)


def _build_context(trusted: Path) -> ssl.SSLContext:
    """Trust certificates of `trusted` alone, an authority's file or the port's own. Its host name is not compared: the
    port is asked by whatever address leads to it.
    """
    context = ssl.create_default_context(cafile=str(trusted))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def ask(asked: Asked, method: str, path: str) -> tuple[int, dict[str, Any]]:
    """Status and content of the answer. Raises NotReached."""
    host, port = asked.address
    if asked.context is None:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    else:
        connection = http.client.HTTPSConnection(
            host, port, timeout=TIMEOUT_S, context=asked.context
        )
    headers = {} if asked.token is None else {"Authorization": f"Bearer {asked.token}"}
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise NotReached(
            f"no answer at {asked.address}: {error or 'in time'}; see --admin and --config"
        ) from error
    finally:
        connection.close()
    try:
        return answer.status, dict(json.loads(body))
    except ValueError:
        return answer.status, {"error": body.decode("utf-8", "replace").strip()}


def describe(answer: Mapping[str, Any]) -> str:
    """The table of what is switched."""
    overrides = answer["overrides"]
    lines = []
    if not overrides:
        lines.append("nothing is switched: the configured values are in force")
    for one in overrides:
        age = format_duration(max(0.0, round(time.time() - one["setAt"])))
        words = [f"{one['switch']} {one['value']}", one["scope"], f"since {age}"]
        if one["share"] < 1:
            after = f", all in {one['allAfter']}" if one["allAfter"] else ""
            words.append(f"{one['share']:.4g} of the connections{after}")
        if one["endsAfter"]:
            words.append(f"ends in {one['endsAfter']}")
        if one.get("problem"):
            words.append(f"NOT in force: {one['problem']}")
        lines.append("; ".join(words))
    if answer.get("lastReverted"):
        lines.append(f"the last trial was ended: {answer['lastReverted']}")
    return "".join(f"{line}\n" for line in lines)


def _fail(text: str, code: int) -> int:
    print(f"forebay switch: {text}", file=sys.stderr)
    return code
