"""The scopes of API keys: auth puts them into the scopes header, services check them."""

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
