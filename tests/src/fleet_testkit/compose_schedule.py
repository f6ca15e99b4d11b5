"""Runs all tests of one compose project in one process of pytest-xdist, so that it is started once."""

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# Files with a compose project of their own, which take as long as all others together.
_ALONE = {"test_cluster.py", "test_operations.py"}


class ComposeSchedule(LoadScopeScheduling):  # type: ignore[misc]
    """Four pieces, the longest first: the cluster, operations, the other tests of containers, acceptance.

    Not the marks of `--dist loadgroup`: pytest-xdist 3.8 writes them to an attribute that pytest 9 does not read.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return file.name if file.name in _ALONE else file.parent.name
