"""The compiled part. It is optional: without a compiler the build goes on without it, and NumPy does its work."""

from Cython.Build import cythonize
from setuptools import Extension, setup

# OpenMP is not used: chunks of nodes run in Python's threads. The two flags let loops be vectorized without changing what they compute.
steps = Extension(
    "dekpca.core._steps",
    ["src/dekpca/core/_steps.pyx"],
    depends=["src/dekpca/core/_small.h"],
    include_dirs=["src/dekpca/core"],
    extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
    optional=True,
)

setup(ext_modules=cythonize([steps], build_dir="build"))
