"""All that is looked at, in the order in which it is told."""

from ..session import Session
from ..texts import t
from .agreement import judge_clock, judge_versions
from .finding import Finding, Findings
from .parts import judge_gateway, judge_key, judge_needs, judge_services
from .replies import ask_all
from .work import judge_flows, judge_letters, judge_queues, judge_workers

_JUDGES = (
    judge_key,
    judge_services,
    judge_needs,
    judge_workers,
    judge_flows,
    judge_queues,
    judge_letters,
    judge_clock,
    judge_versions,
)


async def examine(session: Session) -> list[Finding]:
    replies = await ask_all(session.client.server)
    found = Findings(session)
    if judge_gateway(found, replies):
        for judge in _JUDGES:
            judge(found, replies)
    else:
        found.unseen("fleet", t("doctor.behind_gateway"))
    return found.all
