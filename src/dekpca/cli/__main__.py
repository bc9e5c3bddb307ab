"""`python -m dekpca.cli`, if the command is not on the path."""

from . import main

main()
