"""Options of the command line for parameters of a fit: the same names and values as in Python, parsed once."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..data import read
from ..network import Network
from ..parameters import SECURE_SUMS
from ..privacy.settings import Privacy
from ..solvers.projection import Projection

EXAMPLES = "ring:20 ring:20:4 path:10 star:8 grid:4x5 complete:6 random:20:0.3"
TOPOLOGIES = f"{EXAMPLES}, or a file with an edge a line (oslo rome)"

NComponents = Annotated[int, typer.Option("--n-components", "-k", min=1, help="How many components.")]
SHARE = "How many components; or a share of the variance, such as 0.95."
NumberOrShare = Annotated[str, typer.Option("--n-components", "-k", help=SHARE)]
Gamma = Annotated[str, typer.Option(help="A number, or scale: 1 / (columns x variance).")]
Tol = Annotated[float, typer.Option(min=0, help="Target error: sin^2 of the angle to central kernel PCA.")]
Landmarks = Annotated[str, typer.Option(help="auto (as many as --tol needs), a number, random-features, or a file.")]
SHARED = "Whether rows may leave their node: as landmarks, or to neighbors."
ShareRows = Annotated[bool, typer.Option("--share-rows/--keep-rows", help=SHARED)]
SOLVERS = "auto, projection or paper. Options of dekpca.Projection follow after commas: projection,max_iter=200."
Solver = Annotated[str, typer.Option(help=SOLVERS)]
HIDDEN = "secure-sums: sums leave a node under masks. Or noise, by options of dekpca.Privacy: epsilon=1,delta=1e-6."
PrivacyOption = Annotated[str | None, typer.Option("--privacy", help=HIDDEN)]
BEYOND = "A share of the rows, such as 0.01: finds the threshold of scores beyond which so many are."
Contamination = Annotated[float | None, typer.Option(help=BEYOND)]
RandomState = Annotated[int, typer.Option("--random-state", "--seed", help="Deals rows, draws network and landmarks.")]


def parse_gamma(text: str) -> Any:
    """A number, or a word, which the estimator checks."""
    try:
        return float(text)
    except ValueError:
        if re.match(r"[-+]?[0-9.]+$", text):
            raise ValueError(f"--gamma {text}: expected a number or a word") from None
        return text


def parse_components(text: str) -> int | float:
    """Parse `--n-components`.

    Examples
    --------
    >>> parse_components("3"), parse_components("0.95")
    (3, 0.95)
    """
    found = _value(str(text))
    if not isinstance(found, (int, float)) or isinstance(found, bool) or found <= 0 or (found >= 1 and found % 1):
        raise ValueError(
            f"--n-components {text}: give a whole number, or a share of the variance below 1, such as 0.95"
        )
    return int(found) if found >= 1 else found


def parse_landmarks(text: str) -> Any:
    if text.isdigit():
        return int(text)
    return read(text).samples if Path(text).suffix else text


def parse_solver(text: str) -> Any:
    """Parse `--solver`.

    Examples
    --------
    >>> parse_solver("auto"), parse_solver("projection,max_iter=200,rho=auto").max_iter
    ('auto', 200)
    >>> parse_solver("paper,max_iter=20").update
    'paper'
    """
    word, _, rest = (part.strip() for part in text.partition(","))
    if word == "auto" and not rest:
        return "auto"
    if word not in ("projection", "paper"):
        known = "known are auto, projection and paper; options follow: projection,max_iter=200"
        raise ValueError(f"--solver {text}: {known}")
    return replace(Projection.of(word), **_named("--solver", rest, Projection) if rest else {})


def parse_privacy(text: str | None) -> Any:
    """Parse `--privacy`.

    Examples
    --------
    >>> parse_privacy("epsilon=1, delta=1e-6, rank=30, ledger=spent.json").rank, parse_privacy("secure-sums")
    (30, 'secure-sums')
    """
    return text if text in (None, SECURE_SUMS) else Privacy.of(_named("--privacy", text, Privacy))


def _named(option: str, text: str, of: type) -> dict[str, Any]:
    """Values by name, `name=value,name=value`, for a class of settings."""
    known, found = [field.name for field in fields(of)], {}
    for piece in text.split(","):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not value or name not in known:
            remedy = f"write name=value, separated by commas, with a name of {', '.join(known)}"
            raise ValueError(f"{option}: {piece.strip()!r}; {remedy}")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    """A number, true, false, none, or a text.

    >>> _value("12"), _value("1e-3"), _value("none"), _value("20dB")
    (12, 0.001, None, '20dB')
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def parse_network(text: str, seed: int = 0) -> Network:
    """A topology such as ring:20:4, or a file that Network.read takes."""
    kind, colon, rest = text.partition(":")
    examples = {word.partition(":")[0]: word for word in EXAMPLES.split()}
    if colon and kind in examples:
        example = examples[kind]
        try:
            numbers = [float(x) if "." in x else int(x) for x in re.split("[:x,*]" if kind == "grid" else ":", rest)]
            if kind == "random":
                return Network.random(numbers[0], *(numbers[1:] or [0.3]), seed=seed)  # type: ignore[arg-type]
            return getattr(Network, kind)(*numbers)
        except TypeError:  # too few or too many numbers
            raise ValueError(f"network {text!r}: write it as {example}") from None
        except ValueError as error:
            raise ValueError(f"network {text!r}: {error}; write it as {example}") from error
    if not Path(text).is_file():
        raise ValueError(f"network {text!r}: no such topology or file; write one of {TOPOLOGIES}")
    return Network.read(text)
