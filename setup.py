"""The compiled part. It is optional: without a C compiler the build goes on without it, and NumPy does its work."""

import hashlib
import os
import platform
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SETS = {"_steps": []}
if platform.machine() in ("x86_64", "AMD64"):
    SETS["_steps_avx2"] = ["-mavx2", "-mfma"]
    SETS["_steps_avx512"] = ["-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mprefer-vector-width=512"]
if os.environ.get("DEKPCA_BUILD") == "native" and os.path.exists("/proc/cpuinfo"):
    # for this machine alone, in less time: the one that every machine can ask, and the largest that this one has
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = set(file.read().split())
    largest = [name for name, needs in SETS.items() if all(n[2:] in flags for n in needs if n.startswith("-ma"))][-1]
    SETS = {name: SETS[name] for name in dict.fromkeys(("_steps", largest))}
elif os.environ.get("DEKPCA_BUILD") == "none":
    SETS = {}  # the Makefile compiles while pip downloads

SOURCE = hashlib.sha256(Path("src/dekpca/core/_steps.pxi").read_bytes()).hexdigest()  # core/native.py compares it

steps = [
    Extension(
        f"dekpca.core.{name}",
        [f"src/dekpca/core/{name}.pyx"],
        depends=[f"src/dekpca/core/{name}" for name in ("_steps.pxi", "_small.h", "_blocks.h")],
        include_dirs=["src/dekpca/core"],
        define_macros=[("DEKPCA_SOURCE", f'"{SOURCE}"')],
        # the first ones let loops be vectorized and do not change what is computed; instructions change the last bits
        extra_compile_args=["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", *instructions],
    )
    for name, instructions in SETS.items()
]
modules = cythonize(steps, build_dir="build", nthreads=os.cpu_count())
for module in modules:
    module.optional = True  # cythonize would forget it

setup(ext_modules=modules, options={"build_ext": {"parallel": os.cpu_count()}})
