"""The retry policy of failed flows: exponential backoff with jitter."""

from pydantic import ConfigDict, Field

from .messages import Message


class RetryPolicy(Message):
    """`max_attempts` counts failures of the flow itself; a worker that vanishes does not use it up."""

    model_config = ConfigDict(frozen=True)

    max_attempts: int = Field(1, ge=1, le=100)
    base_seconds: float = Field(1.0, ge=0, le=86400, allow_inf_nan=False)
    cap_seconds: float = Field(300.0, ge=0, le=86400, allow_inf_nan=False)
    # The share by which a delay may be shorter or longer, so that many failures do not come back at once.
    jitter: float = Field(0.2, ge=0, le=1, allow_inf_nan=False)

    def allows_another(self, failures: int) -> bool:
        """Whether the flow may be retried after this many failures."""
        return failures < self.max_attempts

    def delay_seconds(self, failures: int, chance: float) -> float:
        """How long to wait after the n-th failure; `chance` is a random number between 0 and 1."""
        exponent = min(failures - 1, 60)
        delay = min(self.cap_seconds, self.base_seconds * 2.0**exponent)
        return min(self.cap_seconds, delay * (1 + self.jitter * (2 * chance - 1)))
