"""The list of commands: their names, where their code is, and an example of each that works."""


class Command:
    def __init__(self, name: str, module: str, function: str, example: str, aliases: tuple[str, ...] = ()) -> None:
        self.name = name
        self.module = module
        self.function = function
        self.example = example
        self.aliases = aliases


GROUPS: dict[str, tuple[Command, ...]] = {
    "runs": (
        Command("submit", "submit", "submit", "submit hello --param name=Ada --follow"),
        Command("submit-yaml", "submit", "submit_yaml", "submit-yaml flow.yaml --flow-name hello-yaml"),
        Command("get", "run", "get", "get 01a1e30e-8505 --records"),
        Command("tasks", "run", "tasks", "tasks 01a1e30e-8505"),
        Command("list", "lists", "list_runs", "list --since yesterday --failed", ("runs",)),
        Command("list-vnext", "lists", "list_vnext", "list-vnext --updated-after 1794809215 --limit 100"),
        Command("watch", "watch", "watch", "watch 01a1e30e-8505 --until-terminal"),
        Command("cancel", "submit", "cancel", "cancel --run-id 01a1e30e-8505 --wait"),
        Command("logs", "run", "logs", "logs 01a1e30e-8505 -f", ("logs-of",)),
        Command("result", "run", "result", "result 01a1e30e-8505"),
        Command("attempts", "run", "attempts", "attempts 01a1e30e-8505"),
        Command("why", "why", "why", "why 01a1e30e-8505"),
        Command("rerun", "submit", "rerun", "rerun 01a1e30e-8505 --follow"),
    ),
    "failures": (
        Command("dlq", "dead_letters", "dlq", "dlq groups"),
        Command("requeue", "dead_letters", "requeue", "requeue --flow etl --rate 5"),
    ),
    "fleet": (
        Command("flows", "flows", "flows", "flows hello"),
        Command("workers", "workers", "workers", "workers drain vm-1"),
        Command("wheels", "wheels", "wheels", "wheels"),
        Command("wheel-upload", "wheels", "wheel_upload", "wheel-upload --wheel-file etl-1.0-py3-none-any.whl"),
        Command("wheel-history", "wheels", "wheel_history", "wheel-history --action upload --limit 20"),
        Command("wheel-delete", "wheels", "wheel_delete", "wheel-delete --name etl-1.0-py3-none-any.whl"),
        Command("keys", "keys", "keys", "keys create --tenant acme --expires 90d"),
        Command("metrics", "metrics", "metrics", "metrics"),
        Command("doctor", "doctor", "doctor", "doctor"),
    ),
    "more": (
        Command("mcp", "mcp", "mcp", "mcp --allow-writes"),
        Command("completion", "completion", "completion", "completion bash"),
    ),
}

COMMANDS = {command.name: command for group in GROUPS.values() for command in group}

# Commands that the script ./fleet has under their own names; it reaches all others with `./fleet client`.
_OF_THE_SCRIPT = {
    name: name
    for name in (
        "submit",
        "get",
        "watch",
        "result",
        "why",
        "cancel",
        "rerun",
        "flows",
        "workers",
        "dlq",
        "requeue",
        "doctor",
    )
} | {"list": "runs", "logs": "logs-of"}


def typed(program: str, command_line: str) -> str:
    """How a command is typed in the program that the caller has started."""
    if not program.endswith("fleet"):
        return f"{program} {command_line}"
    name, space, rest = command_line.partition(" ")
    return f"{program} {_OF_THE_SCRIPT.get(name, f'client {name}')}{space}{rest}"
