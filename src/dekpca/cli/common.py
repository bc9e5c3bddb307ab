"""Shared code of the verbs: one-line errors and exit codes, a config file, JSON on standard output, progress on standard error."""

from __future__ import annotations

import difflib
import functools
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..network import Network

DONE, FAILED, USAGE, NOT_CONVERGED = range(4)  # exit codes
INTERRUPTED = 130  # as in shells

out = Console(emoji=False)
err = Console(stderr=True, emoji=False)


def verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """Errors in one line: exit code 2 for wrong input, 1 for others; `--debug` shows the traceback."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        debug = kwargs.get("debug", False)
        try:
            return function(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except KeyboardInterrupt:
            say_error("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if debug:
                raise
            wrong_input = isinstance(error, (ValueError, TypeError, ImportError, OSError))
            text = str(error).replace("\n", " ") or type(error).__name__
            hint = "" if wrong_input else "; --debug shows where"
            say_error(text + hint)
            raise typer.Exit(USAGE if wrong_input else FAILED) from error

    return wrapped


def say_error(text: str) -> None:
    say("error", text)


def say(what: str, text: str) -> None:
    """A line on standard error. It may quote untrusted files, so control characters become question marks."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    err.print(f"{what}: {shown}", markup=False, highlight=False, soft_wrap=True)


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Values of a TOML file become the defaults of the command's options; the command line overrides them."""
    if path is None or context.resilient_parsing:
        return path
    try:
        context.default_map = {**(context.default_map or {}), **_defaults(context, path)}
    except ValueError as error:
        say_error(str(error))
        raise typer.Exit(USAGE) from error
    return path


def _defaults(context: typer.Context, path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"--config {path}: not TOML: {error}") from error
    except RecursionError as error:
        raise ValueError(f"--config {path}: values within values, too deep to be read") from error
    known = {p.name: p for p in context.command.params if p.name}
    flags = {flag.lstrip("-"): name for name, p in known.items() for flag in p.opts}
    defaults: dict[str, Any] = {}
    for key, value in content.items():
        name = flags.get(key.replace("_", "-"), key if key in known else None)
        if name is None or name == "config":
            close = difflib.get_close_matches(key.replace("_", "-"), flags, n=1)
            did = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(flags))}"
            raise ValueError(f"--config {path}: no option {key!r}{did}")
        if known[name].multiple or known[name].nargs == -1:
            defaults[name] = [str(v) for v in value] if isinstance(value, list) else [str(value)]
        else:
            defaults[name] = value if isinstance(value, bool) else str(value)
    return defaults


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read_config,
        is_eager=True,
        help="TOML file with any of these options; the command line wins.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]


def rounded_down(agreement: float) -> str:
    """An agreement with four digits, rounded down so as not to overstate it.

    >>> rounded_down(0.99998), rounded_down(1.0)
    ('0.9999', '1.0000')
    """
    return f"{np.floor(agreement * 1e4) / 1e4:.4f}"


def plain(value: Any) -> Any:
    """Convert to a type that JSON supports."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value


def emit(result: dict[str, Any], as_json: bool, text: Callable[[], None]) -> None:
    """The result, for a program or for a person."""
    if as_json:
        sys.stdout.write(json.dumps(plain(result), allow_nan=False, default=str) + "\n")
    else:
        text()


def make_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(
            f"{path}: cannot write into this folder ({error.strerror}); choose another with --out"
        ) from error
    return path


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar with rate and remaining time on standard error, if that is a terminal."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as shown:
        task = shown.add_task(what, total=total, note="")
        yield lambda done, all_, note: shown.update(task, completed=done, total=all_, note=note)


TOPOLOGIES = (
    "ring:20 ring:20:4 path:10 star:8 grid:4x5 complete:6 random:20:0.3, or a file with an edge a line (oslo rome)"
)


def parse_network(text: str, seed: int = 0) -> Network:
    """A topology such as ring:20:4, or a file that Network.read takes."""
    kind, *numbers = text.split(":")
    makers: dict[str, tuple[Callable[..., Network], int, int]] = {  # with the minimum and maximum count of numbers
        "ring": (Network.ring, 1, 2),
        "path": (Network.path, 1, 1),
        "star": (Network.star, 1, 1),
        "grid": (Network.grid, 2, 2),
        "complete": (Network.complete, 1, 1),
        "random": (lambda n, p=0.3: Network.random(n, p, seed=seed), 1, 2),
    }
    if kind in makers and numbers:
        make, least, most = makers[kind]
        if kind == "grid":
            numbers = re.split("[x,*]", ":".join(numbers))
        try:
            given = [float(x) if kind == "random" and i else int(x) for i, x in enumerate(numbers)]
        except ValueError:
            given = []
        if not least <= len(given) <= most:
            example = next(word for word in reversed(TOPOLOGIES.split()) if word.startswith(kind))
            raise ValueError(f"network {text!r}: write it as {example.rstrip(',')}")
        try:
            return make(*given)
        except ValueError as error:
            raise ValueError(f"network {text!r}: {error}") from error
    if not Path(text).is_file():
        raise ValueError(f"network {text!r}: no such topology or file; write one of {TOPOLOGIES}")
    return Network.read(text)
