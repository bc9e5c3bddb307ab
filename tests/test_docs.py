"""What the pages say of the program is so: every public name is listed and has an example, and every command has its options."""

from __future__ import annotations

import inspect
import re
import shlex
import textwrap
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas
import pytest
from typer.main import get_command

import dekpca
from dekpca.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "cli.md"),
]  # which is made
LISTED = re.findall(r"^   ((?:\w+\.)*\w+)$", (ROOT / "docs" / "reference" / "api.rst").read_text(), re.MULTILINE)
MODULES = ("baselines", "metrics", "plot")


def named(name):
    module, _, last = f"dekpca.{name}".rpartition(".")
    return getattr(import_module(module), last)


def test_the_reference_has_every_public_name():
    public = {name for name in dekpca.__all__ if name not in MODULES and not name.startswith("_")}
    for module in MODULES:
        found = vars(getattr(dekpca, module))
        own = {name for name, x in found.items() if inspect.isfunction(x) and x.__module__ == f"dekpca.{module}"}
        public |= {f"{module}.{name}" for name in found.get("__all__", {n for n in own if not n.startswith("_")})}
    public |= {f"report.{name}" for name in import_module("dekpca.report").__all__}
    assert public <= set(LISTED)
    assert len(LISTED) == len(set(LISTED))


@pytest.mark.parametrize("name", LISTED)
def test_every_public_name_has_an_example(name):
    assert ">>> " in inspect.getdoc(named(name))  # which runs with the doctests


def commands():
    """(page, words) for each `dekpca ...` line of a code block."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fenced = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        lines = re.findall(r"^    (dekpca .*)$", text, re.MULTILINE) + re.findall(
            r"^(dekpca .*)$", "\n".join(fenced), re.MULTILINE
        )
        yield from ((page.name, shlex.split(line, comments=True)) for line in lines)


def test_commands_in_the_docs_have_verbs_and_options_that_exist():
    checked = 0
    for page, words in commands():
        command, rest = get_command(app), words[1:]
        while hasattr(command, "commands"):
            assert rest[:1], (page, words)
            assert rest[0] in command.commands, (page, words)
            command, rest = command.commands[rest[0]], rest[1:]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        for word in rest:
            if word == "--":  # what follows is for another command
                break
            if word.startswith("-") and not re.fullmatch(r"-[\d.e-]+", word):
                assert word.partition("=")[0] in known, (page, words)
                checked += 1
    assert checked > 20


def indented(page, having):
    """The indented block of a page, blank lines included, that has this text; without its indent."""
    blocks = re.findall(r"^(?:    .*\n|\n(?=    ))+", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    (found,) = [textwrap.dedent(block).strip() for block in blocks if having in block]
    return found


def test_settings_in_the_docs_make_a_node_toml_that_is_read(tmp_path):
    """What stands before the first table of each block comes first."""
    config = pytest.importorskip("dekpca.peers.app.config")
    oslo = indented("howto/peers.md", 'name = "oslo"')
    losses = indented("howto/peers.md", "on_loss")
    private = indented("explanation/privacy.md", "[model.privacy]")
    settings, _, fallback = losses.partition("[fallback]")
    top, _, tables = oslo.partition("[neighbors]")
    path = tmp_path / "node.toml"
    np.savez(tmp_path / "public.npz", X=np.eye(3))
    for text in (
        oslo,
        f"{top}\n{settings}\n[neighbors]{tables}\n[fallback]\n{fallback.replace('bonn', 'aarhus')}",
        f"{top}\n[neighbors]{tables.partition('[model]')[0]}\n{private}",
    ):
        path.write_text(text)
        read = config.read(path)
        assert (read.name, set(read.neighbors)) == ("oslo", {"rome", "bonn"})
    assert dekpca.Privacy.of(read.parameters().privacy).budget == 3  # and refuses what it does not know


def test_errors_in_the_docs_are_what_the_program_says():
    pytest.importorskip("grpc")
    from dekpca.engines.rank_agreement import _disagreement
    from dekpca.peers.protocol.handshake import Disagreement, HandshakeSettings

    with pytest.raises(Disagreement) as refused:
        HandshakeSettings.of({"tol": "0.0001"}, None, "r").compare(
            "rome", "oslo", HandshakeSettings.of({"tol": "0.001"}, None, "r")
        )
    assert indented("howto/peers.md", "error: refused") == f"error: refused by node rome: {refused.value}"
    names = ["age", "height", "weight"]
    bonn, rome = (pandas.DataFrame([[1.0, 2.0, 3.0]] * 9, columns=c) for c in (names, ["age", "heigth", "weight"]))
    with pytest.raises(ValueError, match="columns") as unlike:
        dekpca.DecentralizedKernelPCA().fit_parts({"bonn": bonn, "rome": rome})
    assert str(unlike.value) == " ".join(indented("howto/data.md", "heigth").split())
    (differs,) = _disagreement("tol", ["0.001", "0.0001", "0.001"])
    assert indented("howto/clusters.md", "but rank 0").startswith(f"ValueError: {differs}; give all ranks the same\n")
