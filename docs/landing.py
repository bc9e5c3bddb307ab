"""The animation of the landing page, as SVG moved by CSS: a real fit of digits, one kind mostly at each of ten nodes.

On the left every node with some of its rows; in the middle of the time, pulses along the edges that sums take; on the right all rows as node 3
values them, first alone, then after the fit. Without motion, if the reader asked for none, it is the last picture.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from dekpca import DecentralizedKernelPCA, Network, baselines
from dekpca.experiments import splits
from dekpca.plot import aligned, positions

DIGITS, NODES, ROWS, SHOWN, SECONDS = (0, 1, 3, 4, 6), 10, 60, 7, 10
COLORS = ("#3f7fc4", "#cf7428", "#3d9271", "#9172b8", "#cc5f5b")  # at least 3 to 1 on white and on black
RING, VIEW = (150, 165, 105), (480, 165, 130)  # centre and radius

STYLE = f"""
.landing text {{ fill: currentColor; font: 13px sans-serif; text-anchor: middle }}
.landing .edge {{ stroke: currentColor; opacity: .3 }}
.landing .pulse {{ stroke: #cf7428; stroke-width: 3; stroke-dasharray: 8 200; animation: pulse {SECONDS}s linear infinite }}
.landing .dot {{ animation: settle {SECONDS}s ease-in-out infinite }}
.landing .before {{ animation: before {SECONDS}s infinite }}
.landing .after {{ animation: after {SECONDS}s infinite }}
@keyframes settle {{
  0%, 25%, 100% {{ transform: translate(var(--x), var(--y)) }}
  55%, 95% {{ transform: none }}
}}
@keyframes pulse {{
  0%, 20% {{ stroke-dashoffset: 8; opacity: 0 }} 22% {{ opacity: 1 }}
  50% {{ stroke-dashoffset: -300; opacity: 1 }} 52%, 100% {{ opacity: 0 }}
}}
@keyframes before {{ 0%, 25% {{ opacity: 1 }} 30%, 100% {{ opacity: 0 }} }}
@keyframes after {{ 0%, 50% {{ opacity: 0 }} 55%, 95% {{ opacity: 1 }} 100% {{ opacity: 0 }} }}
@media (prefers-reduced-motion: reduce) {{ .landing * {{ animation: none !important }} .landing .before, .landing .pulse {{ opacity: 0 }} }}
"""


def animation() -> str:
    X, y = load_digits(return_X_y=True)
    chosen = np.isin(y, DIGITS)
    X, y = X[chosen], np.searchsorted(DIGITS, y[chosen])
    rows = splits.mostly_one_class(y, np.full(NODES, ROWS), 0.9, seed=1)
    parts, X, y = [X[r] for r in rows], X[np.concatenate(rows)], y[np.concatenate(rows)]
    network = Network.ring(NODES)
    model = DecentralizedKernelPCA(2, gamma=1e-3, network=network, random_state=0).fit_parts(parts)
    together = model.node_models_[SHOWN].transform(X)
    alone = aligned(baselines.local(parts, 2, gamma=1e-3)[SHOWN].transform(X), together)
    some = np.arange(0, len(X), 2)
    ends, starts, of = _fitted(together)[some], _fitted(alone)[some], y[some]

    place = np.array(RING[:2]) + RING[2] * positions(network, range(NODES))
    edges = [(*place[network.number[a]], *place[network.number[b]]) for a, b in network.edges]
    out = ['<svg class="landing" viewBox="0 0 640 330" role="img" aria-label="Ten nodes with a sliver of the rows each; '
           'after a few sums over the network, one node has the picture of all rows.">', f"<style>{STYLE}</style>"]  # fmt: skip
    for name in ("edge", "pulse"):
        out += [f'<line class="{name}" x1="{a:.0f}" y1="{b:.0f}" x2="{c:.0f}" y2="{d:.0f}"/>' for a, b, c, d in edges]
    rng = np.random.default_rng(0)
    for j, (cx, cy) in enumerate(place):
        width = 3 if j == SHOWN else 1
        out.append(
            f'<circle cx="{cx:.0f}" cy="{cy:.0f}" r="21" fill="var(--pst-color-background, white)" stroke="currentColor" stroke-width="{width}"/>'
        )
        for value in y[j * ROWS : (j + 1) * ROWS : 5]:
            radius, angle = 16 * np.sqrt(rng.random()), 2 * np.pi * rng.random()
            out.append(_dot(cx + radius * np.cos(angle), cy + radius * np.sin(angle), value, 2.2))
    for (x, z), (u, v), value in zip(ends, starts, of, strict=True):
        out.append(_dot(x, z, value, 3, f' class="dot" style="--x:{u - x:.0f}px;--y:{v - z:.0f}px"'))
    out.append('<text x="150" y="322">each node: a sliver</text>')
    out.append('<text class="before" x="480" y="322">all rows, by one node alone</text>')
    out.append('<text class="after" x="480" y="322">the same, after a few sums</text>')
    return "\n".join([*out, "</svg>", ""])


def _dot(x: float, y: float, value: int, radius: float, more: str = "") -> str:
    return f'<circle{more} cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{COLORS[value]}"/>'


def _fitted(values: np.ndarray) -> np.ndarray:
    """Into the view: most of the values inside, the others at its edge."""
    centred = values - np.median(values, axis=0)
    scaled = np.clip(centred / np.quantile(np.abs(centred), 0.99, axis=0), -1.05, 1.05)
    return np.array(VIEW[:2]) + VIEW[2] * scaled * [1, -1]


if __name__ == "__main__":
    print(animation())
