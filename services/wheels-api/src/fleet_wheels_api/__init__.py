"""The wheels context: the registry of wheels that workers install."""
