"""Group commit: one thread owns the write connection, and all waiting writes share one transaction and one fsync."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError

from ..errors import LedgerUnavailable
from .sql.database import unavailable_if_away
from .sql.transaction import Transaction

logger = logging.getLogger(__name__)

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

# Writes many items of one kind at once; the results are in the order of the items.
Batch = Callable[[Transaction, Sequence[I]], Sequence[R]]

_MOST_PER_COMMIT = 1000
# After a commit of this many writes, the next one waits this long for more writes to join it: 16 clients submit 10 %
# more runs with 15 % less CPU time (bench/ablation.md).
_COMMIT_SIBLINGS = 3
_COMMIT_DELAY_SECONDS = 0.001
# How long deferrable writes wait, unless there are many of them.
_DEFER_SECONDS = 0.02
_MANY_DEFERRED = 64
_ATTEMPTS = 3
_LOCK_RETRY_SECONDS = 0.02
# How long the writes of a group are tried one by one, after a lock of another process has failed them together.
_APART_SECONDS = 15.0
# PostgreSQL's SQLSTATEs of a deadlock, a serialization failure and a lock timeout.
_WORTH_ANOTHER_TRY = ("40P01", "40001", "55P03")


@dataclass(slots=True)
class _Waiting(Generic[I, R]):
    batch: Batch[I, R]
    item: I
    future: "asyncio.Future[R]"
    result: R | None = None
    error: BaseException | None = None
    # Tried before on a connection that was lost, so it may have been committed.
    unsure: bool = False


class GroupCommit:
    """Collects the items that arrive while a commit is under way, and writes them together in the next one."""

    def __init__(self, engine: Engine, *, on_commit: Callable[[int, float], None] = lambda *_: None) -> None:
        """`on_commit` is called after each transaction with its number of writes and its duration in seconds."""
        self._on_commit = on_commit
        self._engine = engine
        # Items that callers wait for, lists of deferred ones, and None at the end.
        self._queue: queue.SimpleQueue[_Waiting[Any, Any] | list[_Waiting[Any, Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ledger-writer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False
        self._connection: Connection | None = None
        self._deferred: list[_Waiting[Any, Any]] = []
        self._deferred_timer: asyncio.TimerHandle | None = None
        self._had_siblings = False
        # When the current transaction began.
        self._begun_at: float | None = None

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread.start()

    async def stop(self) -> None:
        """Write all waiting items, then end the thread."""
        if self._thread.is_alive():
            self._queue_deferred()
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    async def write(self, batch: Batch[I, R], item: I) -> R:
        """Queue an item and wait until it is on disk."""
        return await self.write_soon(batch, item)

    def write_soon(self, batch: Batch[I, R], item: I, *, deferrable: bool = False) -> "asyncio.Future[R]":
        """Queue an item. No caller waits for a `deferrable` one: it is written with many others, or after 20 ms."""
        if self._loop is None:
            raise LedgerUnavailable(reason="the ledger is not open yet")
        future: asyncio.Future[R] = self._loop.create_future()
        waiting = _Waiting(batch, item, future)
        if not deferrable:
            self._queue.put(waiting)
            return future
        self._deferred.append(waiting)
        if len(self._deferred) == 1:
            self._deferred_timer = self._loop.call_later(_DEFER_SECONDS, self._queue_deferred)
        elif len(self._deferred) == _MANY_DEFERRED:
            self._queue_deferred()
        return future

    def _queue_deferred(self) -> None:
        if self._deferred_timer is not None:
            self._deferred_timer.cancel()
        self._queue.put(self._deferred)
        self._deferred = []

    def settled_until(self) -> float:
        """A time up to which all writes of this process are committed and can be read.

        This holds for times that a batch reads from the clock itself.
        """
        now = time.time()  # read first: a transaction that begins later has later times
        begun_at = self._begun_at
        return now if begun_at is None else min(now, begun_at)

    def _work(self) -> None:
        try:
            while not self._ended:
                for group in self._gather():
                    self._commit(group)
                    assert self._loop is not None
                    if not self._loop.is_closed():
                        self._loop.call_soon_threadsafe(_resolve, group)
        finally:
            self._disconnect()

    def _gather(self) -> list[list[_Waiting[Any, Any]]]:
        """Wait for an item, and take all that are queued.

        On SQLite they share a transaction. On PostgreSQL deferred items have their own: both kinds lock rows of runs,
        each in order, and in one transaction two processes might deadlock.
        """
        group: list[_Waiting[Any, Any]] = []
        deferred: list[_Waiting[Any, Any]] = []
        while not group and not deferred and not self._ended:
            self._take(group, deferred)
        if group and self._had_siblings:
            time.sleep(_COMMIT_DELAY_SECONDS)
        while len(group) < _MOST_PER_COMMIT and not self._ended and not self._queue.empty():
            self._take(group, deferred)
        self._had_siblings = len(group) >= _COMMIT_SIBLINGS
        groups = [group + deferred] if self._engine.dialect.name == "sqlite" else [group, deferred]
        return [group for group in groups if group]

    def _take(self, group: list[_Waiting[Any, Any]], deferred: list[_Waiting[Any, Any]]) -> None:
        """Take the next item from the queue, or wait for it."""
        match self._queue.get():
            case None:
                self._ended = True
            case list() as items:
                deferred.extend(items)
            case item:
                group.append(item)

    def _commit(self, group: list[_Waiting[Any, Any]], *, attempts: int = _ATTEMPTS) -> None:
        try:
            self._transact(group, attempts=attempts)
        except Exception as error:
            if len(group) == 1 or _is_away(error):
                if isinstance(error, LedgerUnavailable):
                    error.may_be_written = any(waiting.unsure for waiting in group)
                for waiting in group:
                    waiting.error = error
                return
            # One bad item must not fail the others: each gets a transaction of its own.
            logger.warning("a shared commit of %d writes failed; trying them one by one", len(group), exc_info=True)
            self._commit_apart(group, error)

    def _commit_apart(self, group: list[_Waiting[Any, Any]], error: Exception) -> None:
        """Write the items one by one. If another process holds a lock that all need, the total wait is limited."""
        held_up = isinstance(error, LedgerUnavailable)
        ends_at = time.monotonic() + _APART_SECONDS if held_up else float("inf")
        for waiting in group:
            if time.monotonic() > ends_at:
                waiting.error = error
            else:
                self._commit([waiting], attempts=1 if held_up else _ATTEMPTS)

    def _transact(self, group: list[_Waiting[Any, Any]], *, attempts: int) -> None:
        for attempt in range(1, attempts + 1):
            self._begun_at = time.time()
            begun = time.perf_counter()
            try:
                self._write_all(group)
                self._on_commit(len(group), time.perf_counter() - begun)
                return
            except LedgerUnavailable as error:
                if _has_lost_connection(error):
                    for waiting in group:
                        waiting.unsure = True
                if not _is_worth_another_try(error) or attempt == attempts:
                    raise
                logger.info("a commit of %d writes is tried again: %s", len(group), error.meta.get("reason"))
                if _lost_a_lock(error):
                    # Else it could take its first lock again before the other transaction wakes up, and so once more.
                    time.sleep(_LOCK_RETRY_SECONDS)
            except IntegrityError:
                # An earlier try, whose answer was lost, may have been committed while this one was under way.
                if attempt == attempts or not any(waiting.unsure for waiting in group):
                    raise
                logger.info("a commit of %d writes is tried again: it may be there already", len(group))
            finally:
                self._begun_at = None

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        """The connection, which is kept open between commits and replaced after a failure."""
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            yield self._connection
        except Exception:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _write_all(self, group: list[_Waiting[Any, Any]]) -> None:
        by_batch: dict[Batch[Any, Any], list[_Waiting[Any, Any]]] = {}
        for waiting in group:
            by_batch.setdefault(waiting.batch, []).append(waiting)
        may_be_committed = any(waiting.unsure for waiting in group)
        with (
            unavailable_if_away(),
            self._connect() as connection,
            Transaction.on(connection, may_be_committed=may_be_committed) as transaction,
        ):
            for batch, members in by_batch.items():
                results = batch(transaction, [member.item for member in members])
                for member, result in zip(members, results, strict=True):
                    member.result = result


def _has_lost_connection(error: LedgerUnavailable) -> bool:
    return isinstance(error.__cause__, DBAPIError) and error.__cause__.connection_invalidated


def _lost_a_lock(error: LedgerUnavailable) -> bool:
    """Whether the transaction failed because of another process's, which may concern only some of the writes."""
    cause = error.__cause__
    return isinstance(cause, DBAPIError) and getattr(cause.orig, "sqlstate", None) in _WORTH_ANOTHER_TRY


def _is_away(error: Exception) -> bool:
    return isinstance(error, LedgerUnavailable) and not _lost_a_lock(error)


def _is_worth_another_try(error: LedgerUnavailable) -> bool:
    """Whether another transaction was in the way, or the connection was lost since the last commit."""
    return _has_lost_connection(error) or _lost_a_lock(error)


def _resolve(group: list[_Waiting[Any, Any]]) -> None:
    for waiting in group:
        if waiting.future.done():
            continue
        if waiting.error is not None:
            waiting.future.set_exception(waiting.error)
        else:
            waiting.future.set_result(waiting.result)
