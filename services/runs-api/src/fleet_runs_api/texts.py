"""Texts as the ledger can keep them."""


def fitting(text: str | None, longest: int) -> str | None:
    """Not longer than its column, and without the one character that PostgreSQL does not store; none if empty."""
    return text[:longest].replace("\0", "\ufffd") if text else None
