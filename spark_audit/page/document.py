"""The page as one file: the sections, and around them all that a browser needs.

Owns head, navigation and the order of pieces in the file. Must not know the findings. Invariants: nothing outside the
file is loaded: the content security policy allows inline styles and one script, whose hash it names, so that text from
a log cannot run even if it were not escaped.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

_CSS: Final = Path(__file__).with_name("page.css")
_SCRIPT: Final = Path(__file__).with_name("page.js")
_HEADING: Final = re.compile(r'<section id="([^"]*)"><h2>(.*?)</h2>')


def build_document(title: str, subtitle: str, head: str, sections: Sequence[str]) -> str:
    """The whole text of the file. `head` stands above the navigation; empty sections are left out."""
    script = _SCRIPT.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    content = "\n".join(section for section in sections if section)
    links = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name in _HEADING.findall(content))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{escape(title)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>\n{_CSS.read_text(encoding='utf-8')}</style></head><body><main>\n"
        f'<h1>{escape(title)}</h1><p class="quiet">{escape(subtitle)}</p>\n{head}\n'
        f"<nav>{links}</nav>\n{content}\n"
        f"</main><script>{script}</script></body></html>\n"
    )
