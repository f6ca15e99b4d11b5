"""Texts as the ledger can keep them, and moments as people read them."""

from datetime import UTC, datetime


def fitting(text: str | None, longest: int) -> str | None:
    """Not longer than its column, and without the one character that PostgreSQL does not store; none if empty."""
    return text[:longest].replace("\0", "\ufffd") if text else None


def iso(at: float, *, timespec: str = "seconds") -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
