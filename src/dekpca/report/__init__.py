"""Pictures of fits and experiments. Needs matplotlib: pip install 'dekpca[plot]'."""
