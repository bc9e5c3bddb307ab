"""Every rule of agreement and liveness is needed: without it, a case that otherwise holds goes wrong.

A rule is taken away by changing one line of its function. Cases are seeds of the simulator (cases.py) and of random walks (walks.py), a double and
a forgotten vote (walks.py), or a test of the protocol's classes, where what happens is too rare for a seed to be found in minutes.

PYTHONPATH=tests python -m simulator.rules                     # all, as `make rules`
PYTHONPATH=tests python -m simulator.rules --find NAME         # other seeds that show a rule
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any
from unittest import mock

from dekpca.peers.protocol import agreement, liveness, node, proofs, views

from . import cases, walks

Case = Callable[[int], object]  # of a seed: raises an error if it goes wrong


def walk(**given: int) -> Case:
    return lambda seed: walks.walk(seed, **given)


def simulated(*lies: str) -> Case:
    chosen = [(getattr(cases.Case, lie), 1) for lie in lies] or [(None, 1)]
    return lambda seed: cases.play_in_clear(seed, lies=chosen)


def double_vote(first: int) -> None:
    if len(walks.double_vote(5, 4, 2, first)) > 1:
        raise walks.Broken("two answers")


def forgotten_vote(restarted: int) -> None:
    if len(walks.forgotten_vote(bool(restarted))) > 1:
        raise walks.Broken("two answers")


def test(module: str, name: str) -> Case:
    return lambda _: getattr(importlib.import_module(f"test_peer_{module}"), f"test_{name}")()


def without_line(where: Any, name: str, *lines: tuple[str, str]) -> Callable[[], Any]:
    """The method without a condition: its source with `old` replaced by `new`."""

    def patch() -> Any:
        source = textwrap.dedent(inspect.getsource(getattr(where, name)))
        for old, new in lines:
            if source.count(old) != 1:
                raise LookupError(f"{where.__name__}.{name} has {source.count(old)} times {old!r}: update rules.py")
            source = source.replace(old, new)
        module = sys.modules[where.__module__] if isinstance(where, type) else where
        found: dict[str, Any] = {}
        exec(compile(f"from __future__ import annotations\n{source}", name, "exec"), vars(module), found)
        return mock.patch.object(where, name, found[name])

    return patch


V, A, L, N = views.Views, agreement.Agreement, liveness.Liveness, node.NodeProtocol
# Not shown yet, by a few hundred seeds each: that later views are parts of the view that was entered (_acceptable), that a node which still talks is
# not left out at once (_talks), that who votes for a node's answer does not exclude it (_conclude), that a node which takes no messages counts as
# down (takes_nothing), and that silence counts at both ends (silent).
# name: what is taken away; the kind of case; a seed of it that fails then
RULES: dict[str, tuple[Callable[[], Any], Case, int]] = {
    "nobody takes back a vote, a promise or an answer (contradict)": (
        without_line(V, "add", ("if contradict(before, status):", "if False:")), forgotten_vote, 0),
    "what was heard of others is on disk (seen)": (
        without_line(V, "__init__", ("dict(seen or {})", "{}")), forgotten_vote, 1),
    "only nodes that cannot be reached are left out": (
        without_line(V, "_accept", ("if reached <= self.members(status.view)", "if True")), walk(nodes=3, liars=1), 2),
    "a view that this node has not accepted, nobody has entered with it": (
        without_line(V, "_latest", ("if v.key in self.kept.accepted or self.name in v.without", "if True")), walk(nodes=3, liars=1), 2),
    "a final answer needs the votes of a quorum": (
        without_line(V, "_conclude", ("if count >= self._quorum_nodes", "if count > len(self.records) // 2")), double_vote, 1),
    "an answer that was voted for is kept": (
        without_line(V, "_enter", ("if answer is not None and any(", "if False and any(")), walk(nodes=3), 100),
    "a view is entered when all its members have accepted it": (
        without_line(V, "_enter", ("any(status.view.key != view.key for status in members)", "False")), simulated(), 66),
    "who has accepted a later view does not vote in an earlier one": (
        without_line(V, "_vote", ("self.own.view.key != view.key or ", "")), walk(nodes=4), 2),
    "a vote needs the answer of all members": (
        without_line(V, "_vote", ("if all(", "if any(")), simulated(), 5),
    "views have the quorum": (
        without_line(V, "has_quorum", ("len(names) >= self._quorum_nodes and ", "")), simulated(), 0),
    "statuses are signed": (
        without_line(proofs.Proofs, "_checked", ("return flaw", 'return ""')), simulated("forge"), 2),
    "nodes beyond a lost one are looked for": (
        without_line(V, "_propose", ("(self.unreachable and not cut) or ", "")), simulated(), 66),
    "a node that hangs counts as down": (
        without_line(L, "hangs", ("return self.stuck(n, now)", "return None")), simulated(), 113),
    "an agreement that is held up ends": (
        without_line(N, "check_losses", ("if still > most and", "if False and")), simulated("withhold"), 2),
    "an agreement that is held up names those that all ways lead over": (
        without_line(N, "check_losses", (" | self.agreement.views.between(late)", "")), simulated("withhold"), 2),
    "nodes stay until all know the final answer": (
        without_line(A, "may_leave", ("if seconds >= self._stays:", "if True:")),
        test("protocol", "a_node_leaves_when_all_know_the_final_answer_and_its_neighbors_know_that"), 0),
    "a pause of this node does not count against others": (
        without_line(L, "skip_pause", ("if gap <= 3 * self.timeouts.beat:", "if True:")),
        test("protocol", "a_node_that_was_stopped_itself_does_not_count_that_time_against_its_neighbors"), 0),
    "a finish is believed when the final answer is known": (
        without_line(N, "_heartbeat", ("(self.views is None or self.views.own.final is not None)", "True")),
        test("protocol", "a_finish_is_not_believed_before_the_final_answer_is_known"), 0),
    "a neighbor that was started again is told everything": (
        without_line(N, "_heartbeat", ("if event.process != n.heartbeat.process:", "if False:")),
        test("protocol", "what_an_earlier_process_of_a_neighbor_knew_is_said_again"), 0),
    "a lost node stops nobody": (
        without_line(N, "_heartbeat", ("(event.phase != Phase.MEETING and n.name in near)", "True")),
        test("protocol", "a_lost_node_stops_nobody"), 0),
}  # fmt: skip


def goes_wrong(case: Case, seed: int) -> str:
    """How; empty if it does not."""
    try:
        case(seed)
    except Exception as error:
        return (str(error) or repr(error)).splitlines()[0]
    return ""


@contextmanager
def taken_away(name: str) -> Any:
    with RULES[name][0]():
        yield


def find(name: str, first: int, seconds: float) -> int | None:
    """A seed that goes wrong without the rule, and holds with it."""
    case, end = RULES[name][1], time.monotonic() + seconds
    for seed in itertools.count(first):
        if time.monotonic() > end:
            return None
        with taken_away(name):
            how = goes_wrong(case, seed)
        if how and not goes_wrong(case, seed):
            print(f"{name}: {seed}: {how}", flush=True)
            return seed
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--find", default="", help="a part of a rule's name: look for seeds that show it")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each rule")
    a = parser.parse_args()
    if a.find:
        for name in RULES:
            if a.find in name and find(name, a.first, a.seconds) is None:
                print(f"{name}: nothing found", flush=True)
        return
    unneeded = 0
    for name, (_, case, seed) in RULES.items():
        with taken_away(name):
            how = goes_wrong(case, seed)
        held = not goes_wrong(case, seed)
        unneeded += not (how and held)
        print(f"{'needed' if how and held else 'NOT SHOWN'}: {name} (seed {seed}: {how[:100]})", flush=True)
    sys.exit(1 if unneeded else 0)


if __name__ == "__main__":
    main()
