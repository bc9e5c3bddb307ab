"""What a recorder makes of a run with secure sums: it strips every mask that it knows, and tests whether what is left is uniform."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2, chi2_contingency, ncx2

from dekpca.engines import local
from dekpca.engines.tree import over_tree
from dekpca.privacy.fixed_point import FixedPoint
from dekpca.privacy.masks import BadMasks, masks_of
from dekpca.program import program
from dekpca.site import apart

LEVEL = 1e-6  # of a test: one false alarm in a million runs
POWER = 0.99


def mask_words(key: bytes, number: int, history: bytes, length: int) -> np.ndarray:
    """The words (length,) of a pair's mask for sum `number` of a run, of nodes that have this history."""
    return next(masks_of([key], number, history, length)).astype(np.uint64)


def check_totals(answers, values: np.ndarray, bound: float) -> None:
    """What each node was told of the sum of the nodes' values (nodes, n): the same bits, and the sum but for half a unit or last place of each."""
    found, *others = answers
    assert all(other.tobytes() == found.tobytes() for other in others)
    plain, unit = values.astype(np.longdouble).sum(axis=0), 2.0 ** -float(FixedPoint(bound).bits)
    lost = np.maximum(unit, np.spacing(np.abs(values))).sum(axis=0) + len(values) / 2 * unit
    assert (np.abs(found - plain) <= lost + np.spacing(np.abs(found)) / 2).all()


class Recorder(local.Delivery):
    """Keeps every sealed message: which node sent it to which, and when."""

    def __init__(self, sites):
        super().__init__(sites)
        self.sums: list[dict[int, np.ndarray]] = []  # for each sum, what each node sent to its parent
        self.kinds: list[str] = []
        self.histories: list[bytes] = []  # what all nodes had been told before each sum, as a hash

    def exchange(self, requests):
        children = self.network.children
        for request in requests:
            for (node, other), words in request.messages.items():
                if words.dtype != np.uint64:  # what the root has made of a sum
                    assert other in children[node], f"{request.kind}: something in clear left a node"
                    continue
                if not self.sums or node in self.sums[-1]:
                    self.sums.append({})
                    self.kinds.append(request.kind)
                    self.histories.append(self.sites[0].sealer.history)
                self.sums[-1][node] = words.copy()
        return super().exchange(requests)


def record(parts, network, options, broken=None):
    """A run of the local engine with a recorder; `broken` may spoil the sealers. Returns recorder, sites and the outcome, or the error."""
    sites = apart(parts, network)
    local.simulate_sealers(sites)
    if broken is not None:
        broken({site.names[0]: site.sealer for site in sites})
    recorder = Recorder(sites)
    try:
        return recorder, sites, local.drive(sites, options, recorder, script=over_tree(program))
    except BadMasks as error:
        return recorder, sites, error


def stripped(recorder, sites, honest, other):
    """What is left of node `honest`'s messages, sum by sum, if all nodes but it and `other` put together what they sent and know."""
    keys = {site.names[0]: site.sealer.keys for site in sites}
    return stripped_sums(sites[0].network, recorder.sums, recorder.histories, keys, honest, other)


def stripped_sums(network, sums, histories, keys, honest, other):
    """As `stripped`, from what each node sent to its parent in each sum, the histories of the honest node, and the keys that each node has."""
    name = network.names[honest]
    assert other not in network.children[honest]
    assert honest not in network.children[other]
    left = []
    for number, sent in enumerate(sums):
        words = sent[honest].copy()
        for child in network.children[honest]:
            words -= sent[int(child)]
        for node in range(len(network)):
            if node not in (honest, other):
                partner = network.names[node]
                mask = mask_words(keys[partner][name], number, histories[number], len(words))
                words = words - mask if name < partner else words + mask
        left.append(words)
    return left


def two_apart(network):
    """Two nodes that are not neighbors, so that all neighbors of both record, and so does the root, to which an honest one tells nothing."""
    others = [j for j in range(len(network)) if j != network.root]
    for a in others:
        for b in others:
            if b != a and b not in network.neighbors(a):
                return a, b
    raise AssertionError("no such network")


def uniform_p(words: np.ndarray) -> float:
    """The smallest p-value of a chi-square test of each of the 8 bytes, times 8."""
    octets = words.view(np.uint8).reshape(-1, 8)
    found = []
    for place in range(8):
        seen = np.bincount(octets[:, place], minlength=256)
        expected = len(words) / 256
        found.append(chi2.sf(float(((seen - expected) ** 2 / expected).sum()), 255))
    return min(1.0, 8 * min(found))


def same_p(a: np.ndarray, b: np.ndarray) -> float:
    """The smallest p-value of tests, by byte, that two samples have one distribution, times 8."""
    pair = [x.view(np.uint8).reshape(-1, 8) for x in (a, b)]
    found = []
    for place in range(8):
        seen = np.stack([np.bincount(x[:, place], minlength=256) for x in pair])
        found.append(chi2_contingency(seen[:, seen.sum(axis=0) > 0]).pvalue)
    return min(1.0, 8 * min(found))


def least_effect(n_words: int) -> float:
    """The smallest effect (Cohen's w: root of the sum of (p - 1/256)^2 256) that `uniform_p` finds at LEVEL with POWER."""
    critical = chi2.isf(LEVEL / 8, 255)
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if ncx2.sf(critical, 255, middle) > POWER else (middle, high)
    return float(np.sqrt(high / n_words))
