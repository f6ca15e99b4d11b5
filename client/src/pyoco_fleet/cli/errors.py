"""Failures of the command itself; those of the server are in `pyoco_fleet.errors`."""


class InvalidArgument(Exception):
    """An argument cannot be used. `example` is a command line that works, without the program's name."""

    def __init__(self, sentence: str, example: str | None = None) -> None:
        super().__init__(sentence)
        self.example = example


class CommandFailed(Exception):
    """The command cannot do what it was asked for. `advice` is a command line, without the program's name."""

    def __init__(self, sentence: str, advice: str | None = None, err_id: str | None = None) -> None:
        super().__init__(sentence)
        self.advice = advice
        self.err_id = err_id
