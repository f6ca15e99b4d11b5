"""The HTTP side of a service: application, bodies, identity, request metrics and spans."""
