"""The compiled part. It is optional: without a C compiler the build goes on without it, and NumPy does its work."""

from Cython.Build import cythonize
from setuptools import Extension, setup

steps = Extension(
    "dekpca.core._steps",
    ["src/dekpca/core/_steps.pyx"],
    depends=["src/dekpca/core/_small.h"],
    include_dirs=["src/dekpca/core"],
    # they let loops be vectorized and do not change what is computed
    extra_compile_args=["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math"],
)
modules = cythonize([steps], build_dir="build")
for module in modules:
    module.optional = True  # cythonize would forget it

setup(ext_modules=modules)
