"""Restores of streams: a server that listens a moment later is waited for."""

import asyncio
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from fleet_kit.nats.stream_copies import StreamRestore
from fleet_testkit.nats_links import ready_link
from fleet_testkit.nats_server import NatsServer


async def test_a_piece_that_no_server_listens_for_yet_is_sent_again(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster our server may not know yet that the one that restores the stream listens."""
    async with ready_link(nats_server.url) as sender, ready_link(nats_server.url) as server:
        request, unheard, got = sender.client.request, asyncio.Event(), []

        async def noted(*arguments: Any, **options: Any) -> Msg:
            try:
                return await request(*arguments, **options)
            except NoRespondersError:
                unheard.set()
                raise

        async def take(msg: Msg) -> None:
            got.append(msg.data)
            await msg.respond(b"")

        monkeypatch.setattr(sender.client, "request", noted)
        restore = StreamRestore(sender, {"config": {"name": "ANY"}, "state": {"messages": 0}})
        restore._subject = "pieces"
        sending = asyncio.create_task(restore.send(b"a piece"))
        await asyncio.wait({sending, asyncio.create_task(unheard.wait())}, return_when=asyncio.FIRST_COMPLETED)
        await server.client.subscribe("pieces", cb=take)
        await sending
    assert got == [b"a piece"]
