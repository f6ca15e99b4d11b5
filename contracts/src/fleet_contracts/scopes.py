"""What a caller may do: the words that auth puts into the scopes header and that services check."""

from enum import StrEnum


class Scope(StrEnum):
    RUNS_READ = "runs:read"
    RUNS_WRITE = "runs:write"
    WORKERS_READ = "workers:read"
    WORKERS_WRITE = "workers:write"
    WHEELS_READ = "wheels:read"
    WHEELS_WRITE = "wheels:write"
    METRICS_READ = "metrics:read"
    ADMIN = "admin"


ALL_SCOPES = frozenset(scope.value for scope in Scope)
