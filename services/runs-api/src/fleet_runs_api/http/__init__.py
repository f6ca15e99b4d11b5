"""HTTP in and out: parse at the door, call the use case, answer. No logic here."""
