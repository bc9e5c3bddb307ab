"""What will leave this machine, and to whom, said before anybody is called. docs/privacy.md explains each line, and tests compare the two."""

from __future__ import annotations

from collections.abc import Sequence

from ....choices import RANDOM_FEATURES
from ....core.clusters import LEAST_CLUSTER
from ....network import listing
from ....options import Settings

EVERYBODY = "to every node"
SUMS = "in sums along a tree of nodes, in which a neighbor may see yours alone"


def disclosure(
    settings: Settings, rows: int, columns: int, neighbors: Sequence[str], named: str = ""
) -> list[tuple[str, str]]:
    """(what, to whom) for each kind of thing that the settings let leave; the first lines are the ones that matter most.

    `named`: what is said of the columns, "names", "fingerprint" or nothing.
    """
    near = f"to your neighbors: {listing(neighbors)}"
    kind = settings.landmarks.kind
    noise = ", with noise drawn here" if settings.exchange_noise else ""
    n_landmarks = settings.n_landmarks
    count = "some" if n_landmarks == "auto" else f"up to {n_landmarks}"
    iterating = settings.iterates
    lines: list[tuple[str, str]] = []
    if iterating:
        lines.append((f"all {rows} rows of {columns} columns{noise}", near))
        lines.append((f"the component values of each of the {rows} rows, without noise", near))
    if n_landmarks != 0:
        if gives_rows(settings):
            lines.append((f"{count} of the rows, drawn as landmarks{noise}", EVERYBODY))
        if kind == "kmeans" or (kind == "auto" and not iterating):
            lines.append((f"means of clusters of at least {LEAST_CLUSTER} rows, as landmarks", EVERYBODY))
        if kind == "gaussian" or (kind == "auto" and not settings.share_rows):
            lines.append(("the sum of the rows, and of their products with directions that all nodes know", SUMS))
    if kind == "points":
        lines.append(("a hash of the landmarks that all have", EVERYBODY))
    if settings.impute:
        lines.append(("sums of each column, and how many values it has", SUMS))
    if settings.standardize:
        lines.append(("sums of each column and of its squares", SUMS))
    if settings.gamma_by_variance:
        lines.append(("the sum of all entries and of their squares", SUMS))
    if n_landmarks != 0:
        what = "random features" if kind == RANDOM_FEATURES else "similarities to the landmarks and random features"
        lines.append((f"sums of the rows' {what}, and of products of these", SUMS))
    if iterating:
        lines.append(("in each iteration, estimates of the components at your rows and at theirs", near))
    if named:
        what = f"the names of the {columns} columns" if named == "names" else "a fingerprint of the columns' names"
        lines.append((what, near))
    lines.append((f"this node's name, its neighbors and its number of rows, {rows}", EVERYBODY))
    return lines


def gives_rows(settings: Settings) -> bool:
    """Whether rows may become landmarks, which all nodes see."""
    kind = settings.landmarks.kind
    return settings.n_landmarks != 0 and (kind == "samples" or (kind == "auto" and settings.share_rows))
