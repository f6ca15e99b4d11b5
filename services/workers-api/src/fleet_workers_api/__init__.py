"""The workers context: which workers there are and how they are."""
