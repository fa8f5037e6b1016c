"""The page of the live view in a browser: it shows the document, asks for a token, and runs no text of a client."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from proxy.admin.access import AdminAccess
from proxy.admin.http import AdminServer
from proxy.admin.live_state import LiveState, Reader
from proxy.admin.live_view import build_view
from proxy.config.admin import Admin
from proxy.config.units import Address
from proxy.fetch.readers import ReadSums
from proxy.sockets import bind
from tests.kit.browser import MISSING, find_chromium, open_address, screenshot_address
from tests.proxy.admin.live_states import build_behind, build_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(find_chromium() is None, reason=MISSING)


def show(state: LiveState, act: Callable[[str], str] = open_address, **keys: object) -> str:
    """What a browser makes of the page of a process in this state: its document after a while, without the script."""

    async def read() -> LiveState:
        return state

    async def run() -> str:
        access = AdminAccess(Admin.model_validate(keys, by_alias=True, by_name=False))
        server = AdminServer(build_view(read), access=access.check)
        address = await server.start(bind(Address("127.0.0.1", 0)))
        try:
            return await asyncio.to_thread(act, f"http://{address}/")
        finally:
            await server.close()

    return re.sub("<script>.*?</script>", "", asyncio.run(run()), flags=re.DOTALL)


def read_rows(document: str, table: str) -> list[list[str]]:
    """The cells of a table."""
    match = re.search(f'<table id="{table}">(.*?)</table>', document, re.DOTALL)
    assert match is not None, document
    rows = re.findall("<tr>(.*?)</tr>", match[1], re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [row for row in cells if row]


def test_the_page_shows_the_document() -> None:
    document = show(build_state())
    assert '<b class="good">ready</b>' in document and "<b>75.0 %</b>" in document
    assert read_rows(document, "behind") == [
        ["batch", "nightly", "orders", "1", "3, 70", "30", "40 s", "in 10 s", "in 2 min"]
    ]
    assert [row[0] for row in read_rows(document, "clients")] == ["web", "batch"]
    assert read_rows(document, "slots") == [["data-1", "2", "4", "1", "9"]]
    assert read_rows(document, "warnings")[0][3] == "the disk is slow"
    assert "throttle.disks names none" in document


def test_texts_of_clients_are_text() -> None:
    name = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    reader = Reader(name, name, name)
    state = build_state(readers={reader: ReadSums(1, 0, 1)}, behind=[build_behind(reader=reader)])
    document = show(state)
    assert "<title>Forebay</title>" in document and "<img" not in document
    assert document.count("&lt;img src=x") == 6


def test_without_the_token_there_is_a_question_and_no_figure(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    document = show(build_state(), tokenFile=str(tmp_path / "token"))
    assert '<form id="ask">' in document and "/top answers 401" in document
    assert '<main id="view" hidden="">' in document and "75.0 %" not in document
    assert '<form id="ask" hidden="">' in show(build_state())


@pytest.mark.parametrize("width", [1200, 480])
def test_a_picture_of_it_has_ink_at_every_width(tmp_path: Path, width: int) -> None:
    picture = tmp_path / "page.png"

    def draw(address: str) -> str:
        return str(screenshot_address(address, picture, width, 900))

    show(build_state(), draw)
    with Image.open(picture) as image:
        assert image.width == width
        assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 20
