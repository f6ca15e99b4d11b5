"""The commands of `pyoco-client`, a module for each group: for each command its arguments, and what it does.

A command of `registry.py` is a pair of functions: `add_<function>(parser)`, and `<function>(session)`, which returns
the exit code.
"""
