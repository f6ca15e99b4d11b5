"""The changes of many runs that their watcher has not taken yet, of bounded size."""

import asyncio

from fleet_kit.waiting import is_set_within

from .hub import News

_MOST_BYTES = 4 * 1024 * 1024
_PAGE_RUNS = 50


class PendingNews:
    """Keeps only the latest change of each run, in the order of revisions: a slow client skips states.

    A change that does not fit is not kept, and the run's state is read instead.
    """

    def __init__(self) -> None:
        self._news: dict[str, News] = {}
        self._bytes = 0
        self._changed = asyncio.Event()
        # Runs whose state must be read: a change may have been missed. A dict, because it keeps the order.
        self.to_look: dict[str, None] = {}

    def notify(self, run_id: str, news: News) -> None:
        # To the end, also if an older one is there: what was told up to a revision is then all that there was.
        self._forget(run_id)
        if run_id in self.to_look:
            return
        if not news.data or self._bytes + len(news.data) > _MOST_BYTES:
            self.to_look[run_id] = None
        else:
            self._news[run_id] = news
            self._bytes += len(news.data)
        self._changed.set()

    def warn(self, run_id: str) -> None:
        self._forget(run_id)  # older than the state that will be read
        self.to_look[run_id] = None
        self._changed.set()

    def take_to_look(self) -> list[str]:
        """The runs to look at; a change of one of them that comes from now on is kept."""
        wanted = list(self.to_look)
        self.to_look.clear()
        return wanted

    async def take(self, seconds: float) -> list[tuple[str, News]]:
        """The earliest changes not taken yet; none after `seconds`, or if there are states to be read."""
        if not await is_set_within(self._changed, max(seconds, 0.0)):
            return []
        taken = [(run_id, self._news[run_id]) for run_id, _ in zip(self._news, range(_PAGE_RUNS), strict=False)]
        for run_id, _ in taken:
            self._forget(run_id)
        if not self._news:
            self._changed.clear()
        return taken

    def _forget(self, run_id: str) -> None:
        if (news := self._news.pop(run_id, None)) is not None:
            self._bytes -= len(news.data)
