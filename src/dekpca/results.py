"""The result of a fit for its caller, from the nodes' answers: numbers, history, models and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from . import progress
from .accuracy import Accuracy
from .answer import Answer
from .arrays import to_numpy
from .network import Network, listing
from .node_model import NodeModels
from .parameters import Parameters
from .plan import Engine, Outcome, Plan
from .privacy.ledger import Ledger, Releases
from .scaling import BadColumn
from .settings import most_landmarks

SEEN = 1e-6  # of the variance: components that leave less of it are all that the rows have
FLAT = 0.01  # a first component that explains less causes a warning
WIDE = 1e-6  # a kernel that tells rows apart by less, of k(x, x), is too wide for rounding
LISTED = 6  # so many members of a group of mixed components are named, and so many groups


class MixedComponentsWarning(UserWarning):
    """Components with nearly equal eigenvalues cannot be told apart: `mixed_components_`.

    Examples
    --------
    Ignore it where components are used together:

    >>> import warnings
    >>> from dekpca.estimator import MixedComponentsWarning
    >>> warnings.simplefilter("ignore", MixedComponentsWarning)
    """


class NarrowKernelWarning(UserWarning):
    """The kernel is too narrow for the data: the components explain almost no variance.

    Examples
    --------
    Make it an error, which names a smaller gamma:

    >>> import warnings
    >>> from sklearn.datasets import load_wine
    >>> from dekpca import DecentralizedKernelPCA
    >>> from dekpca.estimator import NarrowKernelWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", NarrowKernelWarning)
    ...     DecentralizedKernelPCA(2, gamma=10, network=1).fit(load_wine().data)
    Traceback (most recent call last):
    dekpca.results.NarrowKernelWarning: ...
    """


def run_plan(
    plan: Plan, engine: Engine, parameters: Parameters, fit: str = "", before: Releases | None = None
) -> Result:
    """Run a plan on an engine. The process that hosts the root shows progress, if requested.

    `fit`: the id of a private fit that may have been interrupted; the ledger counts it once. `before`: the releases of the same fit before nodes
    were lost, by id.
    """
    speaks, privacy, ledger = plan.network.root in plan.nodes, plan.options.privacy, None
    if privacy is not None:  # counted as spent before any computation or message
        releases = plan.options.private_options().releases(plan.features.count, len(plan.network))
        ledger = privacy.spend(releases, fit, before or {})
    try:
        with progress.shown(bool(parameters.verbose) and speaks):
            outcome = engine(plan, progress.say if speaks else None)
    except BadColumn as error:
        raise ValueError(f"{plan.features.describe(error.column)} {error.text}") from error
    return Result(plan, outcome, parameters, ledger)


@dataclass(frozen=True, eq=False)
class Result:
    """A plan and its outcome, as attributes of `DecentralizedKernelPCA`."""

    plan: Plan
    outcome: Outcome
    parameters: Parameters
    ledger: Ledger | None = None  # of what was released with noise

    @property
    def _first(self) -> Answer:
        """Any answer, for data that is the same at all nodes."""
        return self.outcome.answers[0]

    @property
    def eigenvalues(self) -> Any:
        return self._first.eigenvalues

    @property
    def explained_variance_ratio(self) -> Any:
        trace = self._first.trace
        return self.eigenvalues / trace if trace > 0 else self.eigenvalues * 0

    @property
    def estimate(self) -> Accuracy | None:
        """The estimated accuracy of the answer, if there is an estimate."""
        return self._first.accuracy

    @property
    def n_components(self) -> int:
        return int(self.eigenvalues.shape[0])

    @property
    def enough(self) -> bool:
        """Whether the components explain the share of the variance that was asked for, if a share was."""
        return self.parameters.n_components >= 1 or self._explained >= self.parameters.n_components * (1 - 1e-9)

    @property
    def _explained(self) -> float:
        return float(self.explained_variance_ratio.sum())

    @property
    def missing_components(self) -> list[int]:
        """Components that the data does not have, counted from 0: their eigenvalue is zero."""
        return np.flatnonzero(to_numpy(self.eigenvalues) <= 0).tolist()

    @property
    def accurate(self) -> bool:
        """Whether the bound on the error is at most `tol`, or there is no estimate."""
        return self.estimate is None or self.estimate.meets(self.parameters.tol)

    @property
    def n_landmarks(self) -> int:
        return 0 if self._first.marks is None else self._first.marks.size

    @property
    def n_iter(self) -> int:
        return self._first.n_iter

    @property
    def converged(self) -> bool:
        return self._first.converged and self.accurate and self.enough and not self.missing_components

    @property
    def gamma(self) -> float:
        return float(self._first.kernel.gamma)

    @property
    def offset(self) -> float | None:
        """The score below which `contamination` of all rows are, if asked for."""
        histogram, share = self._first.histogram, self.plan.options.contamination
        return None if histogram is None or share is None else -histogram.quantile(1.0 - share)

    @cached_property
    def node_models(self) -> NodeModels:
        options = self.plan.options
        about = options.share_rows, self.plan.features, self.ledger, options.contamination
        return NodeModels(self.outcome.answers, *about)

    @cached_property
    def history(self) -> dict[str, Any]:
        return _history(self.outcome)

    @property
    def answering_node(self) -> int:
        """The node hosted here with the most samples in its neighborhood."""
        return _best_informed(self.plan.network, self.plan.sizes, self.plan.nodes)

    @property
    def _diverged(self) -> bool:
        return any(verdict == "diverged" for verdict, _ in self._first.runs)

    # ------------------------------------------------------------------ warnings
    def warnings(self) -> list[Warning]:
        """Warnings for the caller: convergence, accuracy of the answer, width of the kernel."""
        found: list[Warning] = []
        if not self._first.converged:
            found.append(ConvergenceWarning(self._not_converged()))
        if self.missing_components:
            if not self._diverged:  # an iterate of its beginning does not tell what there is
                found.append(ConvergenceWarning(self._zero()))
        elif not self.enough:
            found.append(ConvergenceWarning(self._too_little()))
        some = len(self.missing_components) < self.n_components
        if self.estimate is not None and not self.accurate and some:
            found.append(ConvergenceWarning(self._inaccurate(self.estimate)))
        if self.estimate is not None and self.estimate.mixed and self.accurate:
            found.append(MixedComponentsWarning(self._mixed(self.estimate)))
        if self._narrow:
            found.append(NarrowKernelWarning(self._too_narrow()))
        return found

    def _not_converged(self) -> str:
        """What did not converge, by how much, and what to try."""
        runs, history, asked = self._first.runs, self.history, self.plan.options.projection
        failed = next(i for i, (verdict, _) in enumerate(runs) if verdict != "converged")
        verdict, iterations = runs[failed]
        last = sum(n for _, n in runs[: failed + 1]) - 1
        which = f"component {failed + 1}: " if len(runs) > 1 else ""
        tol = self.parameters.tol if asked is None else asked.tol
        state = f"relative residual {history['residual'][last]:.2g}"
        if asked is not None:
            node = self.node_models.names[int(np.argmax(history["residual_by_node"][last]))]
            state += f" (node {node}), change {history['since_check'][last]:.2g} since the check before"
        state += f", where tol={tol:g} allows {tol**0.5:.2g}"
        if verdict == "interrupted":
            return f"{which}interrupted after {iterations} iterations; the last iterate is kept: {state}"
        if verdict == "diverged":
            message = f"{which}diverged before iteration {iterations}; the iterate of the last good check is kept; use rho='auto'"
            return message + (" and update='proximal'" if asked is not None and asked.update == "paper" else "")
        message = f"{which}not converged after {iterations} iterations: {state}; the last iterate is kept; "
        if asked is None:
            return message + "raise tol, or use landmarks='auto'"
        if asked.update == "paper":
            return message + "use update='proximal': the paper's can diverge"
        message += "raise max_iter or tol of Projection" + ("" if asked.rho == "auto" else ", or use rho='auto'")
        if asked.n_oversamples != "auto":
            message += ", or raise n_oversamples, in case eigenvalues lie close"
        return message

    def _inaccurate(self, estimate: Accuracy) -> str:
        """The estimated accuracy, what limited it, and what to do."""
        given, options = self.parameters, self.plan.options
        m, most = self.n_landmarks, options.max_landmarks
        full = options.projection is None and m >= most_landmarks(options, self.plan.sizes)
        message = (
            f"the components may be less accurate than tol={given.tol:g} asks for: squared sine of the largest angle between their span and that of "
            f"central kernel PCA {estimate.error:.2g}, at most {estimate.bound:.2g} (span_accuracy_ {estimate.span:.4f})"
        )
        if options.privacy is not None:
            message += f", with epsilon={options.privacy.epsilon:g} and rank {options.privacy.rank}; `dekpca privacy` plans with more rows or others"
        elif options.projection is not None:
            message += f", with {m} landmarks; use solver='auto', or more landmarks (Projection(n_landmarks=...))"
        elif options.stream and (options.owners_apart or options.sealed) and not options.grow:
            message += f", with the {m} landmarks of the run to which rows were added; a new run without --add chooses new ones"
        elif options.stream and not (options.owners_apart or options.sealed):
            message += f", with the {m} landmarks that partial_fit keeps; refresh(X), with rows as they are now, adds landmarks"
        elif full:
            message += f", with {m} landmarks, as many as the rows of all nodes but the largest allow; raise tol"
        elif not options.grow:
            message += f", with {m} landmarks; use landmarks='auto', or more of them"
        elif m >= most:
            message += f", with {m} landmarks, the limit that max_landmarks={most} sets; raise it, or tol"
        elif given.memory_limit is not None and options.share_rows:
            message += f", with {m} landmarks, as many as memory_limit={given.memory_limit!r} allows; raise it, or tol"
        else:
            message += f", with {m} landmarks; where the rest is, no clusters of enough rows are left; raise tol"
        if (options.grow or full) and not options.share_rows and self.plan.sizes.sum() > m:
            message += ", or use share_rows=True, if rows may leave their nodes"
        if self._wide:
            message += f", or raise gamma: with {self.gamma:.3g} the kernel is nearly the same for all pairs of rows, up to rounding"
        elif self._first.kernel.is_stationary:
            message += ", or lower gamma: a wider kernel needs fewer landmarks"
        return message + (f". {self._mixed(estimate)}" if estimate.mixed else "")

    def _mixed(self, estimate: Accuracy) -> str:
        """Which components cannot be told apart."""
        values = to_numpy(self.eigenvalues)
        texts = []
        for group in estimate.mixed[:LISTED]:
            more = [f"{len(group) - LISTED} more"] if len(group) > LISTED else []
            names, sizes = (
                [form(i) for i in group[:LISTED]] + more
                for form in (lambda i: str(i + 1), lambda i: f"{values[i]:.6g}")
            )
            texts.append(f"components {listing(names)} cannot be told apart (eigenvalues {listing(sizes)})")
        if len(estimate.mixed) > LISTED:
            texts.append(f"and so for {len(estimate.mixed) - LISTED} more groups (mixed_components_)")
        return "; ".join(texts) + ": their span is right, but each may be any mixture of them"

    def _too_little(self) -> str:
        """Which share of the variance the components explain, instead of the one that was asked for."""
        asked, options = self.parameters.n_components, self.plan.options
        remedy = "raise max_landmarks, " if options.grow else "use landmarks='auto', "
        remedy = remedy if options.share_rows else f"{remedy}use share_rows=True if rows may leave their nodes, "
        return (
            f"n_components={asked:g}: {self.n_components} components explain {self._explained:.1%} of the variance; the {self.n_landmarks} landmarks "
            f"see no more of it; {remedy}or lower gamma or n_components"
        )

    def _zero(self) -> str:
        """Which components the data does not have."""
        k, there = self.n_components, self.n_components - len(self.missing_components)
        zero, remedy = f"components {there + 1} to {k} are zero", "lower n_components"
        if there + 1 == k:
            zero = f"component {k} is zero"
        if there and self.n_landmarks and float(self.explained_variance_ratio.sum()) < 1 - SEEN:
            remedy += "" if self.plan.options.share_rows else ", or use share_rows=True, if rows may leave their nodes"
            return f"{zero}: there are {self.n_landmarks} landmarks, which see {there} dimensions of the rows; {remedy}"
        asked, exact = self.plan.options.projection, self.plan.options.exact
        if there and asked is not None and not exact and not self.n_landmarks:
            why = f"no node has more than {there} dimension{'s' * (there > 1)}"
            if asked.update == "paper":
                why += ", and the paper's update takes one of them for each component"
                remedy += ", or use update='proximal' if the nodes together have more"
            return f"{zero}: {why}; {remedy}"
        if there:
            return f"{zero}: in feature space the rows span {there} dimensions; {remedy}"
        zero, kernel = "all components are zero, so that transform gives zeros", f"(gamma={self.gamma:.3g})"
        if self._wide:
            return f"{zero}: all rows are alike, or the kernel is so wide that they are to it {kernel}; use a larger gamma, or gamma='scale'"
        remedy = "" if self.plan.options.share_rows else ", or share_rows=True if rows may leave their nodes"
        return f"{zero}: the kernel is so narrow that the landmarks see nothing of the rows {kernel}; use a smaller gamma{remedy}"

    @property
    def _wide(self) -> bool:
        """Whether all pairs of rows have nearly the same kernel, so that rounding is all that the components could show."""
        return self._first.kernel.is_stationary and self._first.trace < WIDE * float(self.plan.sizes.sum())

    @property
    def _narrow(self) -> bool:
        """Whether each row is similar only to itself, so that components explain almost no variance."""
        asked, features = self.plan.options.projection, self.plan.options.random_features
        unsure = (asked is not None and asked.update == "paper") or (features and not self.converged)
        return 0 < self._share < FLAT and self._first.kernel.is_stationary and not unsure

    @property
    def _share(self) -> float:
        return float(self.explained_variance_ratio[0])

    def _too_narrow(self) -> str:
        scaled = self.parameters.gamma == "scale"
        remedy = "use a smaller gamma, or standardize=True" if scaled else "use gamma='scale', or a smaller gamma"
        return (
            f"the first component explains {self._share:.2%} of the variance: with gamma={self.gamma:.3g} the kernel is too narrow for this "
            f"data, so that nearly every row is similar only to itself; {remedy}"
        )


def _best_informed(network: Network, sizes: np.ndarray, nodes: np.ndarray) -> int:
    """Of `nodes`, the one with the most samples in its neighborhood; ties: the first by name."""
    node, neighbor = network.directed_edges.T
    around = sizes + np.bincount(node, weights=sizes[neighbor], minlength=len(sizes))
    candidates = network.by_name[np.isin(network.by_name, nodes)]
    return int(candidates[np.argmax(around[candidates])])


def _history(outcome: Outcome) -> dict[str, Any]:
    """The records of all nodes together, which no single node has."""
    answers: Sequence[Answer] = outcome.answers
    nodes = np.concatenate([answer.site.nodes for answer in answers])
    traffic = outcome.traffic
    history: dict[str, Any] = {"messages": traffic.messages, "bytes": traffic.bytes, "seconds": outcome.seconds}
    history |= {"edges": traffic.network.directed_edges, "edge_bytes": traffic.edge_bytes}
    for name in ("residual", "change", "since_check", "objective", "lagrangian"):
        if name not in answers[0].history:
            if name != "lagrangian":  # no iterations were needed
                history[name] = np.empty(0)
            continue
        rows = np.concatenate([answer.history[name] for answer in answers], axis=1)
        by_node = rows[:, np.argsort(nodes)]
        history[name] = by_node.sum(axis=1) if name in ("objective", "lagrangian") else by_node.max(axis=1)
        if name == "residual":
            history["residual_by_node"] = by_node
    stages = answers[0].stages
    history["landmarks"] = np.array([m for m, *_ in stages], dtype=np.int64)
    history["error"], history["bound"] = (np.array([stage[i] for stage in stages]) for i in (1, 2))
    return history
