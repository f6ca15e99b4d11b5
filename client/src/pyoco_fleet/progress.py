"""A progress bar on stderr while many runs are waited for."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_of(total: int, shown: bool) -> Iterator[Callable[[str], None]]:
    """Gives a function that is told the status of each run that has ended."""
    if not shown:
        yield lambda status: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    counts: Counter[str] = Counter()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        line = bar.add_task("", total=total)

        def ended(status: str) -> None:
            counts[status] += 1
            others = ", ".join(f"{n} {name.lower()}" for name, n in sorted(counts.items()) if name != "COMPLETED")
            bar.update(line, advance=1, description=others)

        yield ended
