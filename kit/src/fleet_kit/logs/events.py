"""Logs the events of the log contract, each with all the fields that it requires."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fleet_contracts.log_events import LetterMove, LogEvent, LogStatus

from ..settings import FleetSettings
from .failures import failure_meta
from .setup import elapsed_ms

# Values of `stacklevel`: a line names the caller of a function here as its source.
_CALLER = 2
_CALLER_OF_CONTEXT = 3


def log_request(
    logger: logging.Logger,
    level: int,
    *,
    method: str,
    path: str,
    status_code: int,
    duration_ms: int,
    entity_id: str = "",
    meta: dict[str, Any] | None = None,
) -> None:
    logger.log(
        level,
        "%s %s %d",
        method,
        path,
        status_code,
        extra={
            "event": LogEvent.REQUEST,
            "status": LogStatus.FAILED if status_code >= 400 else LogStatus.COMPLETED,
            "duration_ms": duration_ms,
            "entity_id": entity_id,
            "meta": {"method": method, "path": path, "status_code": status_code, **(meta or {})},
        },
        stacklevel=_CALLER,
    )


@contextmanager
def service_call(
    logger: logging.Logger, service: str, operation: str, *, level: int = logging.INFO, entity_id: str = ""
) -> Iterator[dict[str, Any]]:
    """Log a use case that changes something: one line when it has completed or failed.

    Entries that the block adds to the dict go into the meta; `entity_id` there names what was created.
    """
    if not logger.isEnabledFor(level):
        yield {}
        return
    begun = time.perf_counter()
    call: dict[str, Any] = {}
    status, failure = LogStatus.COMPLETED, dict[str, Any]()
    try:
        yield call
    except Exception as error:
        about = call.get("entity_id", entity_id) or service
        status, failure = LogStatus.FAILED, failure_meta(error, resource=about)
        raise
    finally:
        logger.log(
            level,
            "%s %s",
            operation,
            status,
            extra={
                "event": LogEvent.SERVICE_CALL,
                "status": status,
                "duration_ms": elapsed_ms(begun),
                "entity_id": call.pop("entity_id", entity_id),
                "meta": {"service": service, "operation": operation, **failure, **call},
            },
            stacklevel=_CALLER_OF_CONTEXT,
        )


def log_integration_call(
    logger: logging.Logger,
    *,
    provider: str,
    operation: str,
    attempt: int,
    timeout_seconds: float,
    begun: float,
    entity_id: str = "",
    error: BaseException | None = None,
) -> None:
    """Log a call to an external program; `begun` is a `time.perf_counter()` reading."""
    meta = {
        "provider": provider,
        "operation": operation,
        "attempt": attempt,
        "timeout_ms": int(timeout_seconds * 1000),
    }
    logger.log(
        logging.INFO if error is None else logging.WARNING,
        "%s: %s %s",
        provider,
        operation,
        "failed" if error else "completed",
        extra={
            "event": LogEvent.INTEGRATION_CALL,
            "status": LogStatus.COMPLETED if error is None else LogStatus.FAILED,
            "duration_ms": elapsed_ms(begun),
            "entity_id": entity_id,
            "meta": meta if error is None else failure_meta(error, resource=entity_id) | meta,
        },
        stacklevel=_CALLER,
    )


def log_dlq_transition(
    logger: logging.Logger, move: LetterMove, *, letter_id: int, job_type: str | None, reason: str, **about: Any
) -> None:
    """Log that a dead letter was added, requeued or deleted; `about` holds fields of its run."""
    logger.info(
        "dead letter %d (%s) %s",
        letter_id,
        reason,
        move,
        extra={
            "event": LogEvent.DLQ_TRANSITION,
            "status": move,
            "flow_name": job_type,
            "reason": reason,
            "meta": {"job_type": job_type or "unknown", "reason": reason, "letter_id": letter_id},
            **about,
        },
        stacklevel=_CALLER,
    )


def log_feature_flags(logger: logging.Logger, settings: FleetSettings, *fields: str) -> None:
    """Log the settings that switch a feature on or off; they are evaluated once, at the start."""
    for field in fields:
        flag, value = f"PYOCO_{field.upper()}", getattr(settings, field)
        source = "settings" if field in settings.model_fields_set else "default"
        logger.info(
            "%s is %s",
            flag,
            value,
            extra={"event": LogEvent.FEATURE_FLAG, "meta": {"flag": flag, "value": value, "source": source}},
            stacklevel=_CALLER,
        )
