"""How statements reach SQL: connections, transactions, many rows at a time."""
