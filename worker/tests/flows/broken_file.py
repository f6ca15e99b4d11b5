"""A file that cannot be imported: the others must work all the same."""

raise RuntimeError("this file is broken on purpose")
