"""`python -m dekpca.cli`, for where the command is not on the path."""

from . import main

main()
