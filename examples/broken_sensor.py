# %% [markdown]
# # Sensors that find a broken one together
#
# Ten pumps have a sensor each, for load, temperature and vibration, which depend on each other. Every pump runs at
# loads of its own. One sensor is broken: it reads temperatures that mostly are normal, but at other loads.
# Alone it cannot know: its readings look to itself as they always do. Together the sensors know what is normal, and
# agree on a threshold, by sums alone: no reading leaves its sensor.

# %%
from pathlib import Path

import numpy as np

from dekpca import DecentralizedKernelPCA, baselines

SENSORS, BROKEN = 10, 6
BEYOND = 0.05  # share of readings that may be beyond the threshold


def main(figure: Path | None = Path("broken_sensor.png"), rows: int = 300, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    parts = {f"pump {j}": readings(j, rows, rng) for j in range(SENSORS)}

    # %% [markdown]
    # `contamination` asks for the threshold `offset_` of the scores, which one more sum over the network finds: the
    # histogram of the reconstruction errors of all readings. Each sensor then counts its own readings beyond it.

    # %%
    model = DecentralizedKernelPCA(
        4, gamma=3.0, share_rows=False, privacy="secure-sums", contamination=BEYOND, random_state=seed
    ).fit_parts(parts)
    together = np.array(
        [(model.node_models_[name].score_samples(X) < model.offset_).mean() for name, X in parts.items()]
    )

    # %% [markdown]
    # A sensor alone has the components and the threshold of its own readings, of which it finds its share beyond.

    # %%
    alone = []
    for X in parts.values():
        score = baselines.central(X, 4, gamma=3.0).score_samples(X)
        alone.append((score < np.quantile(score, BEYOND)).mean())
    print("share of readings beyond the threshold, by sensor")
    for name, one, all_of_them in zip(parts, alone, together, strict=True):
        print(f"{name}: alone {one:5.1%}, together {all_of_them:5.1%}")
    print(f"broken: {list(parts)[int(together.argmax())]}")
    if figure is not None:
        draw(figure, parts, np.array(alone), together)
    return {"alone": np.array(alone), "together": together}


def readings(sensor: int, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Load, temperature and vibration of a pump that runs at loads around its own."""
    load = np.clip(rng.normal(0.15 + 0.7 * sensor / (SENSORS - 1), 0.15, rows), 0, 1)
    temperature = 0.5 + 0.4 * np.sin(5 * load)
    vibration = 0.1 + 0.8 * (load - 0.3) ** 2
    if sensor == BROKEN:
        temperature = temperature + 0.35  # mostly a value that pumps at other loads do have
    return np.stack([load, temperature, vibration], axis=1) + rng.normal(scale=0.03, size=(rows, 3))


def draw(path: Path, parts: dict[str, np.ndarray], alone: np.ndarray, together: np.ndarray) -> None:
    """The readings, and the share beyond the threshold of each sensor."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
    for j, X in enumerate(parts.values()):
        left.scatter(X[:, 0], X[:, 1], s=4, color="tab:red" if j == BROKEN else plt.cm.Greys(0.35 + 0.05 * j))
    left.set(xlabel="load", ylabel="temperature", title="readings; red: the broken sensor")
    place = np.arange(len(parts))
    right.bar(place - 0.2, 100 * alone, 0.4, label="alone", color="tab:orange")
    right.bar(place + 0.2, 100 * together, 0.4, label="together", color="tab:blue")
    right.set(xlabel="sensor", ylabel="% of its readings", title="readings beyond the threshold", xticks=place)
    right.legend()
    panels.tight_layout()
    panels.savefig(path, dpi=110)
    plt.close(panels)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
