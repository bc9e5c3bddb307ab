"""Shared code of the verbs: one-line errors and exit codes, a config file, JSON on standard output, progress on standard error."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from ..solvers.private import UNSEEN

FAILED, USAGE, NOT_CONVERGED = 1, 2, 3  # exit codes
INTERRUPTED = 130  # as in shells

out = Console(emoji=False)
err = Console(stderr=True, emoji=False)


def say(what: str, text: str) -> None:
    """A line on standard error. It may quote untrusted files, so control characters become question marks."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    print_plain(f"{what}: {shown}", err)


def print_plain(text: str, console: Console = out) -> None:
    """Text as it is: no markup, no colours, no line breaks."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Values of a TOML file become the defaults of the command's options; the command line overrides them."""
    if path is None or context.resilient_parsing:
        return path
    try:
        context.default_map = {**(context.default_map or {}), **_defaults(context, path)}
    except ValueError as error:
        say("error", str(error))
        raise typer.Exit(USAGE) from error
    return path


def _defaults(context: typer.Context, path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not TOML: {error}"
        raise ValueError(f"--config {path}: {why}") from error
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


ANY_OPTION = "TOML file with any of these options; the command line wins."
Config = Annotated[Path | None, typer.Option("--config", callback=_read_config, is_eager=True, help=ANY_OPTION)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]


class Said(NamedTuple):
    """What a verb tells: `result` as JSON to a program, or else `text` prints it for a person; and the exit code."""

    result: dict[str, Any]
    text: Callable[[], None]
    code: int = 0


def verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command with the options that all have: --debug and, if it tells something (`Said`), --json and --config.

    Errors take one line: exit code 2 for wrong input, 1 for others; `--debug` shows the traceback.
    """
    own = inspect.signature(function, eval_str=True)
    tells = own.return_annotation in (Said, Said | None)
    usual = {"as_json": (Json, False), "config": (Config, None)} if tells else {}
    usual = {name: given for name, given in (usual | {"debug": (Debug, False)}).items() if name not in own.parameters}
    more = [Parameter(name, Parameter.KEYWORD_ONLY, default=x, annotation=of) for name, (of, x) in usual.items()]

    @functools.wraps(function)
    def wrapped(**given: Any) -> None:
        try:
            said = function(**{name: value for name, value in given.items() if name in own.parameters})
            if tells and said is not None:
                if given["as_json"]:
                    sys.stdout.write(as_text(said.result) + "\n")
                else:
                    said.text()
                if said.code:
                    raise typer.Exit(said.code)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except KeyboardInterrupt as stopped:
            say("error", str(stopped) or "interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if given["debug"]:
                raise
            wrong_input = isinstance(error, (ValueError, TypeError, ImportError, OSError))
            text = str(error).replace("\n", " ") or type(error).__name__
            say("error", text if wrong_input else f"{text}; --debug shows where")
            raise typer.Exit(USAGE if wrong_input else FAILED) from error

    wrapped.__signature__ = own.replace(parameters=[*own.parameters.values(), *more])  # type: ignore[attr-defined]
    return wrapped


def print_accuracy(result: Mapping[str, Any]) -> None:
    """Landmarks, iterations, error and bound of a fit, and what it spent with differential privacy; from its summary."""
    parts = [f"{result['landmarks']} landmarks"] if result["landmarks"] else []
    if result["iterations"]:
        parts += [f"{result['iterations']} iterations" + ("" if result["converged"] else ", not converged")]
    if result["span_accuracy"] is None:
        parts += ["error unknown"]
    else:
        error, bound = (1 - result[key] ** 2 for key in ("span_accuracy", "span_accuracy_bound"))
        text = f"estimated error of the span {error:.1e}, at most {bound:.1e}" if bound else "exact"
        unseen = ", beside what the landmarks miss, which is not known with this kernel"
        parts += [text + (unseen if result.get("accuracy_method") == UNSEEN else "")]
    print_plain("; ".join(parts))
    if result.get("privacy") is not None:
        spent = result["privacy"]
        print_plain(f"spent: epsilon {spent['epsilon']:.4g}, delta {spent['delta']:.3g}, for each row")


def as_text(result: dict[str, Any], indent: int | None = None) -> str:
    """JSON, of NumPy's arrays and numbers and of paths too."""
    other = lambda x: x.tolist() if hasattr(x, "tolist") else str(x)  # noqa: E731
    return json.dumps(result, allow_nan=False, default=other, indent=indent)


def make_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        why = f"cannot write into this folder ({error.strerror})"
        raise ValueError(f"{path}: {why}; choose another with --out") from error
    return path


def refuse_inputs(option: str, output: Path, inputs: Iterable[Path]) -> None:
    """Refuse to write over a file that is read, or into a folder that is read as one table."""
    for given in inputs:
        if given.is_dir() and given.resolve() in (output.resolve(), *output.resolve().parents):
            raise ValueError(f"{option} {output}: is in {given}, which is read; choose another path")
        if output.is_file() and given.is_file() and output.samefile(given):
            raise ValueError(f"{option} {output}: would overwrite {given}, which is read; choose another path")


def peer_modules(*names: str) -> SimpleNamespace:
    """Modules of dekpca.peers, which need packages that most users do not, under their last names."""
    try:
        return SimpleNamespace(**{name.rpartition(".")[2]: import_module(f"dekpca.peers.{name}") for name in names})
    except ImportError as error:
        raise ImportError(f"a package for peers is not installed ({error}); pip install 'dekpca[peer]'") from error


@contextmanager
def unless_lacking(what: str) -> Iterator[None]:
    """Leave out what needs a package that is not there, and say so."""
    try:
        yield
    except ImportError as error:
        err.print(f"no {what}: {error}", markup=False)
