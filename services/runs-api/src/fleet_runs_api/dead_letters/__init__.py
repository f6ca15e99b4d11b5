"""Dead letters: records of runs that failed for good, which callers can list, requeue and delete."""
