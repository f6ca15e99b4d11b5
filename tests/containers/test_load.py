"""The load that the other tests here judge a fleet by is to be trusted; it needs no container itself."""

from http.server import BaseHTTPRequestHandler

import pytest

from fleet_testkit.chaos.load import Load
from fleet_testkit.http_servers import serving
from fleet_testkit.waiting import wait_until


class Nonsense(BaseHTTPRequestHandler):
    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_answer_that_makes_no_sense_is_not_passed_over() -> None:
    with serving(Nonsense) as port:
        load = Load(f"http://127.0.0.1:{port}", "hello", {}, clients=1)
        load.__enter__()
        wait_until(lambda: Nonsense.asked, what="a submit")
        with pytest.raises(KeyError, match="run_id"):
            load.stop()
