"""Documents hold together: links lead somewhere, and each decision has its head and its line in the index."""

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "decisions"
LINK = re.compile(r"\]\(([^)\s]+)\)")
CITED = re.compile(r"(?:docs/)?decisions/(\d{4})")
HEAD = re.compile(
    r"# (?P<number>\d{4}): (?P<title>.+)\n\n"
    r"\* Status: (?P<status>.+)\n\* Date: (?P<date>\d{4}-\d\d-\d\d)\n"
    r"\* Supersedes: .+\. Superseded by: .+\n"
)


@cache
def listed(*suffixes: str) -> list[Path]:
    """Text files of the given endings that git has or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    said = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    return [
        ROOT / name
        for name in sorted(set(said))
        if name.endswith(suffixes) and (ROOT / name).is_file()
    ]


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


def is_dead(document: Path, link: str) -> bool:
    """Whether a link within the tree leads to no file, or to no heading of its document."""
    if re.match(r"[a-z]+:", link):
        return False
    name, _, anchor = link.partition("#")
    target = (document.parent / name).resolve() if name else document
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target.read_text())


def test_links_lead_somewhere() -> None:
    dead = [
        f"{document.relative_to(ROOT)}: {link}"
        for document in listed(".md")
        for link in LINK.findall(document.read_text())
        if is_dead(document, link)
    ]
    assert dead == []


def test_cited_decisions_exist() -> None:
    kept = {path.name[:4] for path in RECORDS.glob("0*.md")}
    here = Path(__file__)
    texts = [
        (path, path.read_text())
        for path in listed(".py", ".c", ".h", ".md")
        if path not in (here, RECORDS / "README.md")
    ]
    assert [
        (path.name, one) for path, text in texts for one in CITED.findall(text) if one not in kept
    ] == []


def test_records_have_head_and_line_in_the_index() -> None:
    index = (RECORDS / "README.md").read_text()
    for path in sorted(RECORDS.glob("0*.md")):
        head = HEAD.match(path.read_text())
        assert head is not None, path.name
        assert path.name.startswith(head["number"])
        line = rf"\| \[{head['number']}\]\({path.name}\) \| {re.escape(head['title'])} \| "
        assert re.search(rf"{line}{head['status']}[^|]* \| {head['date']} \| .+ \|\n", index), (
            path.name
        )
