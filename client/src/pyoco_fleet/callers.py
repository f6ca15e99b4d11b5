"""What turns the description of a request into a method: once for blocking clients, once for asyncio."""

import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar, cast, overload

from .calls import Call
from .errors import FleetError

P = ParamSpec("P")
T = TypeVar("T")
Json = dict[str, Any]

# Several requests, one after another: yields each, gets its answer, returns what came of it.
Steps: TypeAlias = Generator[Call[Any], Any, T]
# The request for the page after a cursor; None is the first.
PageCall: TypeAlias = Callable[[str | None], Call[Json]]


class Blocking(ABC):
    @abstractmethod
    def call(self, call: Call[T]) -> T: ...

    def perform(self, steps: Steps[T]) -> T:
        try:
            call = next(steps)
            while True:
                try:
                    answer = self.call(call)
                except FleetError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as end:
            return cast(T, end.value)

    def items(self, page: PageCall, limit: int | None = None) -> Iterator[Json]:
        """The items of all pages, at most `limit`."""
        walk = Walk(limit)
        while walk.goes_on:
            yield from walk.items_of(self.call(page(walk.cursor)))


class BlockingClient(Blocking):
    """One that has connections: close it, or use it in a `with` statement."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Asynchronous(ABC):
    @abstractmethod
    async def call(self, call: Call[T]) -> T: ...

    async def perform(self, steps: Steps[T]) -> T:
        try:
            call = next(steps)
            while True:
                try:
                    answer = await self.call(call)
                except FleetError as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as end:
            return cast(T, end.value)

    async def items(self, page: PageCall, limit: int | None = None) -> AsyncIterator[Json]:
        walk = Walk(limit)
        while walk.goes_on:
            for item in walk.items_of(await self.call(page(walk.cursor))):
                yield item


class AsynchronousClient(Asynchronous):
    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Walk:
    """How far a walk through the pages of a list has come."""

    def __init__(self, limit: int | None) -> None:
        self.cursor: str | None = None
        self._left = limit
        self._at_end = False

    @property
    def goes_on(self) -> bool:
        return not self._at_end and (self._left is None or self._left > 0)

    def items_of(self, page: Json) -> list[Json]:
        self.cursor = page.get("next_cursor")
        self._at_end = self.cursor is None
        items: list[Json] = page["items"][: self._left]
        if self._left is not None:
            self._left -= len(items)
        return items


class Method(Generic[P, T]):
    """A method that is written once: one request or several. An asynchronous client gives a coroutine."""

    def __init__(self, build: Callable[P, Call[T] | Steps[T]]) -> None:
        self.build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Asynchronous, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else _bound(client, self.build)


class MethodOfRun(Generic[P, T]):
    """The same for objects that stand for a run: its id is the first argument."""

    def __init__(self, build: Callable[Concatenate[str, P], Call[T] | Steps[T]]) -> None:
        self.build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Asynchronous, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else functools.partial(_bound(client, self.build), client.id)


def _bound(client: Any, build: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def method(*args: Any, **kwargs: Any) -> Any:
        built = build(*args, **kwargs)
        return client.call(built) if isinstance(built, Call) else client.perform(built)

    return method
