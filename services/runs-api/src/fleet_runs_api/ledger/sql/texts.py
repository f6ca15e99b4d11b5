"""Formats texts so that the ledger can store them, and times so that people can read them."""

from datetime import UTC, datetime


def fitting(text: str | None, longest: int) -> str | None:
    """The text cut to its column, without NUL characters, which PostgreSQL does not store; None if it is empty."""
    return text[:longest].replace("\0", "\ufffd") if text else None


def iso(at: float, *, timespec: str = "seconds") -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
