"""Every layer imports only downwards: the drawing in docs/explanation/architecture.md against every import of the package."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "dekpca"


def drawing():
    """The layers from the top, each a set of module names; folders end in a slash."""
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"(?:^    .*\n)+", text, re.MULTILINE)[0]
    layers = [set()]
    for line in block.splitlines():
        if line.strip() == "|":
            layers.append(set())
        else:
            layers[-1] |= set(re.split(r"\s{2,}", line.strip())[0].split(", "))
    return layers


def unit(module):
    """What the drawing calls a module, given as the parts of its path."""
    return f"{module[0]}/" if (PACKAGE / module[0]).is_dir() else module[0]


def modules():
    """Path by parts, such as ("engines", "mpi"); the package itself is left out."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[parts[:-1] if parts[-1] == "__init__" else parts] = path
    del found[()]
    return found


def imports(module, path, known):
    """(line, imported module) for each import of the package's own modules, wherever in the file it is; () is the package itself."""
    inside = module if path.name == "__init__.py" else module[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            bases = [(tuple(name[1:]), None) for name in names if name[0] == "dekpca"]
        elif isinstance(node, ast.ImportFrom):
            if not node.level and (node.module or "").split(".")[0] != "dekpca":
                continue
            inner = tuple(node.module.split(".")) if node.module else ()
            base = inside[: len(inside) - node.level + 1] + inner if node.level else inner[1:]
            bases = [(base, alias.name) for alias in node.names]
        else:
            continue
        for base, name in bases:
            yield node.lineno, (*base, name) if (*base, name) in known else base


LAYERS = drawing()
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}


def test_the_drawing_has_every_module_once():
    assert len(LAYERS) > 5
    assert sum(map(len, LAYERS)) == len(LEVEL)
    assert LEVEL.keys() == {unit(module) for module in modules()}


@pytest.mark.parametrize("layer", [sorted(layer) for layer in LAYERS], ids=lambda layer: layer[0])
def test_a_layer_imports_only_downwards(layer):
    known = modules()
    upwards = []
    for module, path in known.items():
        if unit(module) not in layer:
            continue
        for line, other in imports(module, path, known):
            # the package's own names are the public ones, of the estimator's layer
            level = LEVEL[unit(other)] if other else LEVEL["estimator"]
            if level < LEVEL[unit(module)]:
                upwards.append(f"{path.relative_to(ROOT)}:{line} imports {'.'.join(('dekpca', *other))}")
    assert not upwards, "\n".join(upwards)


def test_only_the_command_line_imports_peers():
    known = modules()
    found = {
        module[0]
        for module, path in known.items()
        for _, other in imports(module, path, known)
        if other[:1] == ("peers",)
    }
    assert found == {"peers", "cli"}


def test_the_check_sees_imports_inside_functions(tmp_path):
    path = tmp_path / "mpi.py"
    path.write_text("def f():\n    from ..estimator import DecentralizedKernelPCA\n    import dekpca.cli\n")
    known = modules()
    assert list(imports(("engines", "mpi"), path, known)) == [(2, ("estimator",)), (3, ("cli",))]


SCRIPTS = sorted(path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_what_a_script_imports_of_the_package_is_there(path):
    """No test runs most benchmarks: benchmarks/stream.py imported a class that has had another name for long."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dekpca":
            try:
                module = import_module(node.module)
            except ImportError as error:  # of an extra that is not installed
                if (error.name or "").startswith("dekpca"):
                    raise
                continue
            for name in (alias.name for alias in node.names):
                assert hasattr(module, name) or import_module(f"{node.module}.{name}"), f"{path}:{node.lineno}"
