"""Mapping rules of certificates to principals, in the syntax of the broker's `ssl.principal.mapping.rules`.

Owns the syntax, and what a rule makes of a name (Kafka's SslPrincipalMapper, KIP-371). Must not know
certificates. Invariants:
* a text that Kafka refuses is refused here. Patterns are Java's; a pattern that Python's `re` reads
  otherwise, or not at all, is refused, too.
* the first rule that matches a whole name decides; a name without one has no principal.
"""

import re
import warnings
from dataclasses import dataclass

_DEFAULT, _RULE = "DEFAULT", "RULE:"
_UNTIL_SLASH = re.compile(r"(?:\\.|[^\\/])*", re.DOTALL)
_SEPARATOR = re.compile(r"\s*(?:,\s*|$)")
_QUOTED_CHARACTERS = 60
_REFERENCE = re.compile(r"\\(.)|\$(\d+)|([^\\$]+|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """One rule. `pattern` None: DEFAULT, which takes any name as it is. `parts`: the replacement; an
    int is the group of that number. `case`: `L`, `U` or "".
    """

    pattern: re.Pattern[str] | None
    parts: tuple[str | int, ...] = ()
    case: str = ""

    def apply(self, name: str) -> str | None:
        """The principal's name; None if the rule is not for this name."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self.pattern.sub(self._replace, name)  # each match, as String.replaceAll
        return {"L": mapped.lower(), "U": mapped.upper()}.get(self.case, mapped)

    def _replace(self, found: re.Match[str]) -> str:
        return "".join(
            part if isinstance(part, str) else found.group(part) or "" for part in self.parts
        )


def map_principal(rules: tuple[PrincipalRule, ...], name: str) -> str | None:
    """What the first rule for `name` makes of it, perhaps ""; None if no rule is for it."""
    mapped = (rule.apply(name) for rule in rules)
    return next((one for one in mapped if one is not None), None)


def parse_rules(text: str) -> tuple[PrincipalRule, ...]:
    """The rules of a text. Raises ValueError, which quotes the rule that cannot be read."""
    text = text.strip()
    rules, at = [], 0
    while at < len(text):
        at = _skip_spaces(text, at)
        rule, end = _parse_rule(text, at)
        separator = _SEPARATOR.match(text, end)
        if separator is None:
            raise ValueError(f"has no comma at {_quote(text[end:])}, where a rule ends")
        if rule is not None:
            rules.append(rule)
        at = separator.end()
    return tuple(rules)


def _quote(text: str) -> str:
    """The beginning of a text, for an error."""
    return repr(text if len(text) <= _QUOTED_CHARACTERS else text[:_QUOTED_CHARACTERS] + "...")


def _skip_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _parse_rule(text: str, at: int) -> tuple[PrincipalRule | None, int]:
    """The rule at `at`, None for an empty one, and where it ends."""
    if text.startswith(_DEFAULT, at):
        return PrincipalRule(None), at + len(_DEFAULT)
    if not text.startswith(_RULE, at):
        if text[at : at + 1] in ("", ","):
            return None, at
        raise ValueError(
            f"has neither DEFAULT nor RULE:pattern/replacement/ at {_quote(text[at:])}"
        )
    pattern, end = _read_part(text, at + len(_RULE))
    replacement, end = _read_part(text, end)
    case = text[end : end + 1] if text[end : end + 1] in ("L", "U") else ""
    compiled = _compile(pattern)
    return PrincipalRule(compiled, _parse_replacement(replacement, compiled), case), end + len(case)


def _read_part(text: str, at: int) -> tuple[str, int]:
    """The text up to the next slash without a backslash before it, and where the rest begins."""
    found = _UNTIL_SLASH.match(text, at)
    assert found is not None  # it matches the empty text
    if text[found.end() : found.end() + 1] != "/":
        raise ValueError(f"has no slash that ends the part of a rule at {_quote(text[at:])}")
    return found.group(), found.end() + 1


def _compile(pattern: str) -> re.Pattern[str]:
    """Java's \\d, \\w and \\s are ASCII. A set operation of Java's is a FutureWarning of Python's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            return re.compile(pattern, re.ASCII)
    except (re.error, FutureWarning) as error:
        raise ValueError(
            f"has a pattern that cannot be used, {_quote(pattern)}: {error}"
        ) from error


def _parse_replacement(text: str, pattern: re.Pattern[str]) -> tuple[str | int, ...]:
    """The parts of a replacement. `$12` is group 12, or group 1 and the text `2` if there are fewer
    groups; a number above the groups is text (SslPrincipalMapper.escapeLiteralBackReferences).
    """
    parts: list[str | int] = []
    for escaped, digits, plain in _REFERENCE.findall(text):
        if escaped or plain not in ("", "$", "\\"):
            parts.append(escaped or plain)
        elif digits:
            parts += _resolve(digits, pattern.groups, text)
        else:
            raise ValueError(
                f"has $ without a number, or a backslash at the end, in {_quote(text)}"
            )
    return tuple(parts)


def _resolve(digits: str, groups: int, text: str) -> list[str | int]:
    if groups == 0 and int(digits[0]) > 0:
        raise ValueError(f"names a group in {_quote(text)}, but the pattern has none")
    for end in range(len(digits), 0, -1):
        if int(digits[:end]) <= groups:
            rest = digits[end:]
            return [int(digits[:end]), rest] if rest else [int(digits[:end])]
    return [f"${digits}"]
