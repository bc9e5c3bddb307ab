"""Run the README's example with whatever `dekpca` is installed, such as a wheel in an empty environment: python tests/run_readme.py"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
os.chdir(tempfile.mkdtemp())
exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names := {})
print("dekpca", names["dekpca"].__version__, "from", names["dekpca"].__file__, "states", names["model"].accuracy_)
