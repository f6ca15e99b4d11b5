"""The rule of retries: how often, and after how long."""

from hypothesis import given
from hypothesis import strategies as st

from fleet_contracts.retry import RetryPolicy


def test_without_a_policy_of_its_own_a_run_is_tried_once() -> None:
    assert not RetryPolicy().allows_another(1)


def test_three_attempts_are_two_failures_that_are_tried_again() -> None:
    policy = RetryPolicy(max_attempts=3)
    assert [policy.allows_another(failures) for failures in (1, 2, 3)] == [True, True, False]


def test_the_delay_doubles_up_to_the_cap() -> None:
    policy = RetryPolicy(base_seconds=1, cap_seconds=10, jitter=0)
    assert [policy.delay_seconds(failures, 0.5) for failures in range(1, 7)] == [1, 2, 4, 8, 10, 10]


@given(failures=st.integers(1, 1000), chance=st.floats(0, 1))
def test_the_delay_stays_within_a_fifth_and_below_the_cap(failures: int, chance: float) -> None:
    policy = RetryPolicy(base_seconds=1, cap_seconds=60)
    plain = min(60.0, 2.0 ** min(failures - 1, 60))
    delay = policy.delay_seconds(failures, chance)
    assert plain * 0.8 - 1e-9 <= delay <= min(60.0, plain * 1.2) + 1e-9
