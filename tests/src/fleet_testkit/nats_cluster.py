"""Three real nats-servers that form one JetStream cluster, one of which can be cut off from the others."""

import functools
from pathlib import Path

import httpx

from .nats_links import ready_link
from .nats_server import NatsServer, free_port
from .route_proxy import RouteProxy
from .waiting import wait_until

_SIZE = 3
_START_SECONDS = 60.0


# A link to these servers only, with a short timeout.
linked = functools.partial(ready_link, timeout_seconds=2.0)


class NatsCluster:
    """`servers[2]` is the one that `cut_off` separates: its clients still reach it, the other servers do not.

    Everything between it and the others goes through proxies; the first two know each other directly.
    """

    def __init__(self, folder: Path, *, more_config: str = "") -> None:
        routes = [free_port() for _ in range(_SIZE)]
        # The proxied ports through which the last server and the others reach each other.
        doors = [free_port() for _ in range(_SIZE)]
        self._monitors = [free_port() for _ in range(_SIZE)]
        self._proxies = [RouteProxy(port=door, to_port=route) for door, route in zip(doors, routes, strict=True)]
        self.servers = []
        for number, (route, monitor) in enumerate(zip(routes, self._monitors, strict=True)):
            is_last = number == _SIZE - 1
            known = doors[:-1] if is_last else [*routes[:-1], doors[-1]]
            config = (
                f"server_name: n{number}\nhttp: 127.0.0.1:{monitor}\n"
                f"cluster {{ name: test, listen: 127.0.0.1:{route}, no_advertise: true\n"
                f"  advertise: 127.0.0.1:{doors[-1] if is_last else route}, pool_size: -1\n"
                f"  routes: [{', '.join(f'nats://127.0.0.1:{port}' for port in known)}] }}\n"
            )
            self.servers.append(NatsServer(folder / f"n{number}", more_config=config + more_config))

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    def start(self) -> None:
        for proxy in self._proxies:
            proxy.start()
        for server in self.servers:
            server.start()
        self.wait_healthy()

    def stop(self) -> None:
        for server in self.servers:
            server.kill()
        for proxy in self._proxies:
            proxy.stop()

    def wait_healthy(self) -> None:
        """Wait until every server has joined and caught up, and the leader that places streams knows it."""

        def is_whole() -> bool:
            return all(map(_is_healthy, self._monitors)) and any(map(_sees_the_others, self._monitors))

        wait_until(is_whole, within=_START_SECONDS, what="a healthy cluster")

    def wait_serving(self, stream: str) -> None:
        """Wait until the server that can be cut off answers direct gets of a stream, so has caught up with it."""
        wait_until(lambda: self._serves(stream), within=_START_SECONDS, what=f"direct gets of {stream}")

    def _serves(self, stream: str) -> bool:
        seen = httpx.get(f"http://127.0.0.1:{self._monitors[-1]}/subsz", params={"subs": 1, "limit": 100_000})
        subjects = [each["subject"] for each in seen.json().get("subscriptions_list", ())]
        return f"$JS.API.DIRECT.GET.{stream}" in subjects

    def cut_off(self) -> None:
        for proxy in self._proxies:
            proxy.cut()

    def mend(self) -> None:
        for proxy in self._proxies:
            proxy.mend()
        self.wait_healthy()


def _sees_the_others(port: int) -> bool:
    """Whether this server sees the others as current; only the leader of the cluster reports them."""
    seen = httpx.get(f"http://127.0.0.1:{port}/jsz", timeout=2).json().get("meta_cluster", {}).get("replicas") or []
    return len(seen) == _SIZE - 1 and all(peer["current"] and not peer.get("offline") for peer in seen)


def _is_healthy(port: int) -> bool:
    try:
        return bool(httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2).status_code == httpx.codes.OK)
    except httpx.TransportError:
        return False
