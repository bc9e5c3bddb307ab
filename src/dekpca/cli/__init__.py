"""The command line: `dekpca VERB`. One file per verb; this module registers them."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from .certs import certs
from .demo import demo
from .doctor import doctor
from .fit import fit
from .launch import launch
from .network import network
from .node import node
from .privacy import privacy
from .reproduce import reproduce
from .transform import transform

ABOUT = (
    "Decentralized kernel PCA: data stays on its node, nodes talk to their neighbors only, everybody gets the answer."
)
app = typer.Typer(help=ABOUT, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dekpca {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def _options(version: Version = False) -> None:
    pass


for verb in (demo, fit, transform, network, doctor, reproduce, privacy):
    app.command()(verb)
app.command(context_settings={"allow_interspersed_args": False})(launch)  # options after the command belong to it
app.add_typer(certs)
app.add_typer(node)


def main() -> None:
    app()
