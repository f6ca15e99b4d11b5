"""Which parts a stack has and how each is started and checked."""
