"""What `import dekpca` costs."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

HEAVY = {"rich", "typer", "networkx", "matplotlib", "plotly", "grpc", "mpi4py", "torch", "pandas"}
MOST = 1.2  # times `import sklearn.decomposition`

CODE = """
import json, sys, time
start = time.process_time()
import sklearn.decomposition
middle = time.process_time()
before = set(sys.modules)
import dekpca
end = time.process_time()
print(json.dumps([sorted({m.split(".")[0] for m in set(sys.modules) - before}), (end - start) / (middle - start)]))
"""


def measured():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_import_is_lean():
    """scikit-learn imports what it needs; dekpca adds its own modules, and little time. One of three is enough: others use the machine too."""
    ratios = []
    while len(ratios) < 3 and min(ratios, default=np.inf) > MOST:
        modules, ratio = measured()
        ratios.append(ratio)
        assert not HEAVY & set(modules)
    assert min(ratios) <= MOST


@pytest.mark.slow
def test_completion_shows_public_names_only():
    code = "import json, dekpca, dekpca.report, dekpca.cli; print(json.dumps([dir(dekpca), dekpca.__all__]))"
    shown, public = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert shown == sorted(public)
