"""The cursor: opaque, safe in a URL, and good only for what it was made for."""

import base64
import re

import pytest

from fleet_runs_api.errors import InvalidCursor
from fleet_runs_api.read.cursor import CursorSigner, Difference, Position, Walk

POSITIONS: list[Position] = [
    Walk(before_seq=1),
    Walk(before_seq=2**63 - 1),
    Difference(0.0, 1794798649.236426, 1794798649.436426, changed_at=1794798649.4364257, seq=2**63 - 1),
]
SIGNER = CursorSigner(b"a secret")


@pytest.mark.parametrize("position", POSITIONS)
def test_a_cursor_brings_back_its_position_on_every_replica(position: Position) -> None:
    cursor = SIGNER.encode(position, scope=b"mine")
    assert re.fullmatch(r"[A-Za-z0-9_-]+", cursor)
    assert CursorSigner(b"a secret").decode(cursor, scope=b"mine") == position


def test_no_cursor_looks_like_an_option_of_a_command() -> None:
    assert not any(SIGNER.encode(Walk(7), scope=b"%d" % number).startswith("-") for number in range(500))


def test_a_cursor_is_refused_for_another_scope_and_under_another_secret() -> None:
    cursor = SIGNER.encode(Walk(7), scope=b"mine")
    with pytest.raises(InvalidCursor):
        SIGNER.decode(cursor, scope=b"theirs")
    with pytest.raises(InvalidCursor):
        CursorSigner(b"another secret").decode(cursor, scope=b"mine")


def test_whatever_is_changed_in_a_cursor_makes_it_invalid() -> None:
    cursor = SIGNER.encode(Walk(12345), scope=b"mine")
    data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(InvalidCursor):
            SIGNER.decode(base64.urlsafe_b64encode(changed).decode().rstrip("="), scope=b"mine")


@pytest.mark.parametrize("text", ["x", "nonsense", "=", "====", "AAAA", "a b", "ä", "\x00", "%", "A" * 400, "+/+/"])
def test_nonsense_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidCursor):
        SIGNER.decode(text, scope=b"mine")
