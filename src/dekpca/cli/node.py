"""`dekpca node`: take part in a run of nodes that belong to different people. docs/peers.md has the whole story."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from .common import NOT_CONVERGED, Debug, Json, emit, err, out, say_error, verb

STOPPED = 4  # exit code: a neighbor was lost, or this node could not go on; the same command goes on later

node = typer.Typer(name="node", help="Run a node of one's own among those of others.", no_args_is_help=True)


@node.command()
@verb
def run(
    config: Annotated[Path, typer.Argument(help="The node's node.toml.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before connecting.")] = False,
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="Without certificates, within 127.0.0.0/8 only: for trying.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Take part in a run: wait for the neighbors, compute with them, save this node's model.

    Killed or stopped, the same command goes on where it was. Exit code 3: saved, but not converged; 4: a neighbor was not heard from
    for too long, or this node could not go on: what it has is kept, and the same command goes on later.

    Example: dekpca node run node.toml
    """
    peer = _peer()
    settings = peer.config.read(config)
    if insecure_loopback:
        peer.config.check_loopback(settings)
        identity = None
    else:
        identity = settings.identity()
    prepared = peer.node.prepare(settings)
    peer.status.log_to(sys.stderr, settings.name, not err.is_terminal)
    signal.signal(signal.SIGINT, _interrupt)  # ours: this node stops, the others wait for it
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        result = peer.node.run(prepared, identity)
    except (peer.errors.Disagreement, peer.config.ConfigError):
        raise
    except (peer.errors.PeerError, OSError) as error:
        if debug:
            raise
        say_error(f"{error}; {settings.folder} keeps what is needed to go on: start this node again")
        raise typer.Exit(STOPPED) from error
    emit(result, as_json, lambda: _tell(result))
    if not result["converged"]:
        raise typer.Exit(NOT_CONVERGED)


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _peer() -> ModuleType:
    try:
        from ..engines import peer
        from ..engines.peer import config, errors, node, status  # noqa: F401
    except ImportError as error:
        raise ImportError(f"dekpca node needs a package that is not installed ({error}); pip install 'dekpca[peer]'") from error
    return peer


def _tell(result: dict[str, Any]) -> None:
    state = "converged" if result["converged"] else "not converged"
    out.print(f"{state} after {result['iterations']} iterations with {result['nodes']} nodes", highlight=False)
    values = " ".join(f"{v:.6g}" for v in result["eigenvalues"])
    out.print(f"eigenvalues {values}", highlight=False, soft_wrap=True)
    out.print(f"model: {result['model']}", highlight=False, soft_wrap=True)
