"""The use cases that the routes call, and the FastAPI dependency that provides them."""

from typing import Annotated, Protocol

from fastapi import Depends, Request

from ..accept.cancellation import Cancellation
from ..accept.submission import Submission
from ..dead_letters.handling import DeadLetters
from ..metrics import RunsMetrics
from ..read.bulk_results import BulkResults
from ..read.flows import FlowViews
from ..read.gauges import FleetGauges
from ..read.lists.listing import Listing
from ..read.timeline.following import Following
from ..read.timeline.timeline import Timeline
from ..read.views import RunViews
from ..read.watching.many_runs import WatchingMany
from ..read.watching.one_run import Watching


class UseCases(Protocol):
    """The use cases of the service; `main.py` builds them."""

    workflow_yaml_max_bytes: int
    metrics: RunsMetrics
    gauges: FleetGauges
    submission: Submission
    cancellation: Cancellation
    views: RunViews
    flows: FlowViews
    listing: Listing
    watching: Watching
    watching_many: WatchingMany
    bulk_results: BulkResults
    timeline: Timeline
    following: Following
    dead_letters: DeadLetters


async def service_of(request: Request) -> UseCases:
    service: UseCases = request.app.state.service
    return service


Service = Annotated[UseCases, Depends(service_of)]
