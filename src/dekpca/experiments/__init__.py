"""The paper's experiments and our benchmarks, as code: how data is dealt to nodes, and what is then measured."""
