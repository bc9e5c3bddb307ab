# %% [markdown]
# # Reproduce a figure of the paper
#
# The paper's "samples" experiment: how close does a node of a 20-node ring come to the central answer when it has few samples or many?
# `dekpca reproduce samples` does this with all options; here it is by hand, to build on.

# %%
from pathlib import Path

from sklearn.datasets import load_digits

from dekpca.experiments import paper, runner
from dekpca.report import panels


def main(folder: Path = Path("figure-samples"), repeats: int = 3) -> list[dict]:
    folder.mkdir(parents=True, exist_ok=True)
    X, y = load_digits(return_X_y=True)
    source = runner.Source(X, y, gamma=1e-3, name="scikit-learn's digits")

    # %% [markdown]
    # An experiment is data: the cells, a function that measures one, a function that draws all. Finished repeats are
    # stored in a CSV file, so a second run only draws.

    # %%
    experiment = paper.EXPERIMENTS["samples"]
    rows, times = runner.run(
        experiment, source, repeats, folder, progress=lambda done, total, what: print(f"{done}/{total} {what}")
    )

    # %%
    for path in panels.save(experiment.draw(rows, times), experiment.title, folder / "samples"):
        print(path)
    return rows


if __name__ == "__main__":
    main()
