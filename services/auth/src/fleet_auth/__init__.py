"""The auth context: who a caller is and what they may do."""
