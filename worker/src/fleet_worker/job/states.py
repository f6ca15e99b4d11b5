"""The states of a job in hand, and the transitions between them.

Claiming         → Declining, WaitingForRunner, Concluding (the worker stops), NotClaimed
Declining        → Claiming (no other worker offers the flow), NotClaimed (handed over, or the worker stops)
WaitingForRunner → Running, Concluding (stopped, cancelled, or no runner was free in time)
Running          → Concluding, Killed (stopped), WaitingForRunner (a wheel may bring the flow that was missing)
Killed           → Concluding
"""

import asyncio
from dataclasses import dataclass, replace
from enum import Enum, auto

from ..pool.runner_process import RunnerProcess
from .held_run import HeldRun
from .turn import Turn


class StopReason(Enum):
    """Why the agent ends an attempt before its flow has ended."""

    FENCED = auto()
    CANCELLED = auto()
    # The runner went on for longer than the grace period after the cancel request.
    CANCEL_OVERDUE = auto()
    DEADLINE = auto()
    MEMORY = auto()
    NO_RUNNER = auto()
    # The worker stops, or is drained.
    STOPPING = auto()


@dataclass(frozen=True, slots=True)
class Claiming:
    """We do not hold the run yet."""

    # Hand the run back as soon as it is claimed.
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class Declining:
    """The flow is not offered here, and we keep the job until another worker takes it."""

    # Set when the job must be given back.
    given_up: asyncio.Event


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """We do not get the run: it is clear what becomes of its job."""


@dataclass(frozen=True, slots=True)
class WaitingForRunner:
    held: HeldRun
    turn: Turn


@dataclass(frozen=True, slots=True)
class Running:
    held: HeldRun
    runner: RunnerProcess
    # When a cancel request was seen and passed on to the runner, by the monotonic clock.
    cancelled_at: float | None = None


@dataclass(frozen=True, slots=True)
class Killed:
    """The runner was killed in mid-run, and its death, or a conclusion that it sent before, is awaited."""

    held: HeldRun
    runner: RunnerProcess
    why: StopReason


@dataclass(frozen=True, slots=True)
class Concluding:
    """No runner executes the run any more, and none will: the last state of the attempt is being written."""

    held: HeldRun
    # None: the runner has ended by itself.
    why: StopReason | None = None


State = Claiming | Declining | NotClaimed | WaitingForRunner | Running | Killed | Concluding


def declined(state: State, given_up: asyncio.Event) -> State:
    match state:
        case Claiming(is_stopping=True):
            return NotClaimed()
        case Claiming():
            return Declining(given_up)
        case _:
            return state


def offered_nowhere(state: State) -> State:
    """No other worker gets the job, so the run is claimed here."""
    return Claiming() if isinstance(state, Declining) else state


def claimed(state: State, held: HeldRun, turn: Turn) -> State:
    match state:
        case Claiming(is_stopping=True):
            return Concluding(held, StopReason.STOPPING)
        case _:
            return WaitingForRunner(held, turn)


def stopped(state: State, why: StopReason) -> State:
    """The first reason decides. A claim is not broken off: NATS may have stored it already."""
    match state:
        case Claiming() if why is StopReason.STOPPING:
            return Claiming(is_stopping=True)
        case Declining() if why is StopReason.STOPPING:
            return NotClaimed()
        case WaitingForRunner(held):
            return Concluding(held, why)
        case Running(held, runner):
            return Killed(held, runner, why)
        case _:
            return state


def cancelled(state: State, *, at: float) -> State:
    """A cancel request was seen: a run that has not begun never will, and a runner is asked to end its run."""
    match state:
        case WaitingForRunner(held):
            return Concluding(held, StopReason.CANCELLED)
        case Running(cancelled_at=None):
            return replace(state, cancelled_at=at)
        case _:
            return state


def without_flow(state: State, turn: Turn) -> State:
    """The runner has not found the run's flow, and the run is to wait until the wheels are up to date."""
    match state:
        case Running(held, cancelled_at=None):
            return WaitingForRunner(held, turn)
        case Running(held):
            return Concluding(held, StopReason.CANCELLED)
        case _:
            return over(state)


def over(state: State) -> State:
    """Nothing more is executed of this attempt."""
    match state:
        case Claiming() | Declining():
            return NotClaimed()
        case WaitingForRunner(held) | Running(held):
            return Concluding(held)
        case Killed(held, why=why):
            return Concluding(held, why)
        case NotClaimed() | Concluding():
            return state
