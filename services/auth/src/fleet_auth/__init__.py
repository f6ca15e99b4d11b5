"""The auth service: identifies callers and manages their API keys."""
