"""Lists of runs: filters, walks and differences, a page at a time."""
