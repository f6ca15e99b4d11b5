"""Runs all tests of one compose project in one process of pytest-xdist, so that it is started once."""

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]


class ComposeSchedule(LoadScopeScheduling):  # type: ignore[misc]
    """Three pieces, in the order of collection: the cluster, the other tests of containers, acceptance.

    Not the marks of `--dist loadgroup`: pytest-xdist 3.8 writes them to an attribute that pytest 9 does not read.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return file.name if file.name == "test_cluster.py" else file.parent.name
