"""What goes wrong in the run of a seed, and how it must end.

A case is a network and some faults, all drawn from the seed. Faults that pass leave no trace: all nodes end with the answer of an undisturbed run.
Others end the run: every node stops with an error that names the node or the edge, and when all is well again and everybody is started once more,
the run goes on to the same answer. A run that is not over after LONG seconds hangs.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dekpca.peers.errors import BelowQuorum, Damaged, Excluded, OlderCopy, PeerLost
from dekpca.peers.protocol import events
from dekpca.peers.protocol.views import Kept, Lost, Quorum, View, Vote

from .masked import MaskedWorld
from .world import TIMEOUTS, DiskFull, Node, World, is_finished, undisturbed

LONG = 500.0  # seconds of the virtual clock; a lost node takes about ten, one that never came forty, one that hangs a hundred, agreements 400
SHORT = 0.6 * TIMEOUTS.peer  # what passes before anybody gives up
NOTICED = 5 * TIMEOUTS.progress  # after which the owner of a node that hangs ends it
KINDS = (
    events.HandshakeReceived,
    events.Heartbeat,
    events.HeartbeatAnswered,
    events.Opening,
    events.Acknowledged,
    events.ChunkSent,
    events.ChunkReceived,
    events.MessageStored,
    events.Answered,
)


def shape(rng: random.Random) -> dict[str, set[str]]:
    """A network of three to seven nodes: ring, path, star, or any connected one."""
    names = [chr(ord("a") + i) for i in range(rng.randint(3, 7))]
    rng.shuffle(names)
    kind = rng.choice(["ring", "path", "star", "random"])
    if kind == "star":
        pairs = {(names[0], other) for other in names[1:]}
    else:
        pairs = set(itertools.pairwise(names))
        if kind == "ring":
            pairs.add((names[-1], names[0]))
        if kind == "random":
            pairs |= {pair for pair in itertools.combinations(names, 2) if rng.random() < 0.3}
    edges: dict[str, set[str]] = {name: set() for name in sorted(names)}
    for a, b in pairs:
        edges[a].add(b)
        edges[b].add(a)
    return edges


def fallback(edges: dict[str, set[str]], rng: random.Random) -> dict[str, set[str]]:
    """A few spare edges, in every other network."""
    spare: dict[str, set[str]] = {name: set() for name in edges}
    if rng.random() < 0.5:
        for a, b in itertools.combinations(edges, 2):
            if b not in edges[a] and rng.random() < 0.3:
                spare[a].add(b)
                spare[b].add(a)
    return spare


@dataclass
class Case:
    """The faults of one run. `named`: nodes that an error may be about; `lasting`: the run may end with an error."""

    world: World
    rng: random.Random
    story: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    killed: set[str] = field(default_factory=set)  # for good
    restored: set[str] = field(default_factory=set)  # in older copies of their folders
    liar: str = ""  # lies about itself
    holds_up: str = ""  # this member may hold up an agreement
    lasting: bool = False
    others_away: bool = False  # nodes that live are away for a while
    split: bool = False  # nodes that live may be cut off, or late
    budget: float = SHORT  # seconds for all faults that pass: they may follow each other, and nobody may give up

    def passing(self) -> float:
        self.others_away = True
        seconds = self.rng.uniform(0.1, self.budget)
        self.budget = max(0.2, self.budget - seconds)
        return seconds

    def tell(self, text: str) -> None:
        self.story.append(text)
        self.world.trace("world", text)

    def when(self, victim: Node, harm: Callable[[], Any]) -> str:
        """Do this at a random time, or when the node sees so many events of a kind for the first time."""
        if self.rng.random() < 0.4:
            delay = self.rng.uniform(0.0, 1.5)
            self.world.after(delay, harm)
            return f"after {delay:.2f} s"
        kind, count, seen = self.rng.choice(KINDS), self.rng.randint(1, 8), itertools.count(1)

        def look(event: Any) -> None:
            if type(event) is kind and next(seen) == count:
                self.world.after(0.0, harm)

        victim.triggers.append(look)
        return f"at its {kind.__name__} {count}"

    # ------------------------------------------------------------------ faults
    def victim(self) -> Node:
        return self.world.nodes[self.rng.choice(sorted(self.world.nodes))]

    def kill(self) -> None:
        node = self.victim()

        def harm() -> None:
            if node.running:
                self.killed.add(node.name)
                self.named.add(node.name)
                self.lasting = True
                node.kill()

        self.tell(f"node {node.name} is killed for good {self.when(node, harm)}")

    def restart(self) -> None:
        node = self.victim()
        away = self.passing()

        def harm() -> None:
            if node.running:
                node.kill()
                self.world.after(away, self.start, node)

        self.tell(f"node {node.name} is killed {self.when(node, harm)} and comes back after {away:.1f} s")

    def start(self, node: Node) -> None:
        if not node.running and node.name not in self.killed:
            node.start()

    def break_links(self) -> None:
        links = [link for node in self.world.nodes.values() for link in node.links.values()]
        chosen = [self.rng.choice(links) for _ in range(self.rng.randint(1, 6))]
        for link in chosen:
            when = self.when(link.a, lambda link=link: link.reset("reset"))
            self.tell(f"the connections of {link.a.name} to {link.b.name} are reset {when}")

    def partition(self) -> None:
        names = sorted(self.world.nodes)
        side = set(self.rng.sample(names, self.rng.randint(1, len(names) - 1)))
        calls = {(a, b) for a in names for b in self.world.edges[a] if (a in side) != (b in side)}
        self.block(calls, f"nodes {' '.join(sorted(side))} are cut off")

    def one_way(self) -> None:
        a = self.victim()
        b = self.rng.choice(self.world.edges[a.name])
        self.block({(a.name, b)}, f"node {a.name} cannot call node {b}")

    def block(self, calls: set[tuple[str, str]], what: str) -> None:
        for_ever = self.rng.random() < 0.5
        seconds = 0.0 if for_ever else self.passing()

        def heal() -> None:
            self.world.blocked -= calls

        def harm() -> None:
            self.world.blocked |= calls
            if not for_ever:
                self.world.after(seconds, heal)

        if for_ever:
            self.lasting = self.split = True
            self.named |= {name for call in calls for name in call}
        at = self.when(self.world.nodes[min(calls)[0]], harm)
        self.tell(f"{what} {at}, {'for ever' if for_ever else f'for {seconds:.1f} s'}")

    def freeze(self) -> None:
        node = self.victim()
        long = self.rng.random() < 0.4
        seconds = self.rng.uniform(1.2, 3.0) * TIMEOUTS.peer if long else self.passing()

        def harm() -> None:
            node.frozen_until = self.world.now + seconds

        if long:
            self.lasting = self.split = True
            self.named |= {node.name, *node.around}  # it cannot tell who was away
        self.tell(f"node {node.name} is stopped {self.when(node, harm)} for {seconds:.1f} s")

    def hang(self) -> None:
        """Its heartbeats go on, its program does not. Its owner ends it when the others have given it up."""
        node = self.victim()

        def harm() -> None:
            if node.running:
                node.hangs, node.core.live.waits_for = True, set()
                self.killed.add(node.name)
                self.named.add(node.name)
                self.lasting = True
                self.world.after(NOTICED, lambda: node.kill() if node.hangs else None)  # not one that was started again

        self.tell(f"node {node.name} hangs {self.when(node, harm)}")

    def full_disk(self) -> None:
        node = self.victim()
        away = self.passing()

        def harm() -> None:
            node.disk.full = True
            self.world.after(away, self.make_room, node)

        self.tell(f"the disk of node {node.name} is full {self.when(node, harm)} for {away:.1f} s")

    def make_room(self, node: Node) -> None:
        node.disk.full = False
        if isinstance(node.error, DiskFull):
            self.start(node)
        elif node.running and node.farewell:
            self.world.after(0.5, self.make_room, node)

    def forge(self) -> None:
        """A member passes on statuses that others have not said, and old ones that they have. It signs as itself only. Nothing may come of it."""
        liar, heard = self.victim(), []

        def lie(other: str, beat: events.Heartbeat) -> events.Heartbeat:
            heard.extend(beat.statuses.items())
            views = liar.core.views
            if views is None or not views.begun or self.rng.random() < 0.5:
                return beat
            # It passes on what is true too: one that keeps it back where nobody else can pass it on stalls the run.
            others = [name for name in sorted(self.world.nodes) if name != liar.name and name not in beat.statuses]
            if not others:
                return beat
            name = self.rng.choice(others)
            known = views.status(name)
            somewhere = self.rng.choice([(0, ""), (7, liar.name)])
            change = self.rng.choice(
                [
                    {"final": somewhere, "answered": somewhere},
                    {"vote": Vote(somewhere, somewhere)},
                    {"vote": None, "final": None, "answered": None},
                    {"down": tuple(n for n in sorted(self.world.nodes) if n != name)},
                    {"view": View(7, liar.name), "entered": View(7, liar.name)},
                ]
            )
            forged = replace(known, version=known.version + self.rng.randint(1, 50), **change)
            if self.rng.random() < 0.5:
                forged = liar.proofs.signed(name, Kept(forged)).status
            said = dict([self.rng.choice(heard)]) if heard and self.rng.random() < 0.3 else {}
            return replace(beat, statuses={**said, **beat.statuses, name: forged})

        liar.lie = lie
        self.tell(f"node {liar.name} forges statuses of others")

    def claim(self) -> None:
        """A member lies about itself, in statuses that it signs: that an answer is final, that it has voted for one that nobody has, that it has gone
        on without others. More than half of the nodes must say so before anybody believes it."""
        liar, version = self.victim(), itertools.count(1000)

        def lie(other: str, beat: events.Heartbeat) -> events.Heartbeat:
            views = liar.core.views
            if views is None or not views.begun or views.own.final is not None:
                return beat
            somewhere = self.rng.choice([(0, ""), (7, liar.name)])
            alone = View(7, liar.name, tuple(Lost(n, 0.0) for n in sorted(self.world.nodes) if n != liar.name))
            change = self.rng.choice(
                [{"final": somewhere}, {"vote": Vote((7, liar.name), (7, liar.name))}, {"entered": alone}]
            )
            said = replace(views.own, version=next(version), **change)
            return replace(
                beat, statuses={**beat.statuses, liar.name: liar.proofs.signed(liar.name, Kept(said)).status}
            )

        liar.lie, self.lasting, self.split = lie, True, True
        self.liar = self.holds_up = liar.name
        self.named.add(liar.name)
        self.tell(f"node {liar.name} lies about itself")

    def withhold(self) -> None:
        """A member passes on nothing of what others say."""
        liar = self.victim()
        liar.lie = lambda other, beat: replace(
            beat, statuses={name: said for name, said in beat.statuses.items() if name == liar.name}
        )
        self.lasting = self.split = True
        self.holds_up = liar.name
        self.tell(f"node {liar.name} keeps back the statuses of others")

    def restore(self) -> None:
        """Its owner kills the node, and starts it in an older copy of its folder."""
        node, copied = self.victim(), []
        away = self.passing()

        def copy() -> None:
            if node.running and not node.disk.full and not copied:
                copied.append(node.disk.copy())

        def harm() -> None:
            if node.running and copied:
                self.lasting = self.split = True
                self.named.add(node.name)
                self.restored.add(node.name)
                node.kill()
                node.disk.lose_power()
                node.disk.restore(copied[0])
                self.world.after(away, self.start, node)

        when = self.when(node, copy), self.when(node, harm)
        self.tell(
            f"the folder of node {node.name} is copied {when[0]}; it is killed {when[1]}, and the copy used after {away:.1f} s"
        )

    def slow(self) -> None:
        self.world.slow = self.rng.choice([0.1, 0.5])
        self.tell(f"messages take up to {self.world.slow} s")


FAULTS: list[tuple[Callable[[Case], None], int]] = [
    (Case.kill, 6),
    (Case.restart, 4),
    (Case.break_links, 3),
    (Case.partition, 3),
    (Case.one_way, 1),
    (Case.freeze, 2),
    (Case.full_disk, 2),
    (Case.hang, 2),
    (Case.slow, 1),
]
LIES: list[tuple[Callable[[Case], None] | None, int]] = [
    (None, 6),
    (Case.forge, 4),
    (Case.restore, 2),
    (Case.claim, 2),
    (Case.withhold, 1),
]
PASSING = (
    Case.restart,
    Case.break_links,
    Case.full_disk,
    Case.slow,
)  # a restored folder is noticed by those that are there


class Failure(AssertionError):
    """A run that did not end as it must."""


def play(seed: int, show: bool = False) -> str:
    """The run of a seed; returns how it ended, and raises Failure, with the seed and the story, if that is wrong."""
    return play_masked(seed, show) if seed % 4 == 3 else play_in_clear(seed, show)


def play_masked(seed: int, show: bool = False) -> str:
    """Secure sums: one member may tell others different things, and another one is killed and comes back. No two answers, no hang, and an observer
    who holds the secrets of all nodes but two reads nothing."""
    rng = random.Random(f"masked {seed}")
    quorum = None if rng.random() < 0.5 else Quorum()
    world = MaskedWorld(seed, shape(rng), 0, show, quorum)
    case, liar = Case(world, rng), rng.choice(sorted(world.nodes))
    lying = rng.random() < 0.7
    for fault in rng.choices([Case.restart, Case.break_links, Case.kill, Case.slow], k=rng.choice([1, 2])):
        fault(case)
    if lying:
        node, which, one = world.nodes[liar], rng.randint(1, 3 * len(world.nodes)), rng.random() < 0.5
        node.lies, told = True, itertools.count(1)

        def tells(child: str, value: int) -> int:
            """Another thing to one child, or to some of them, or another thing each time: also when it says it again."""
            return value ^ rng.getrandbits(8) if (next(told) == which if one else rng.random() < 0.3) else value

        node.tells = tells  # type: ignore[attr-defined]
        case.tell(f"node {liar} tells its children different things")
    for node in world.nodes.values():
        world.after(rng.uniform(0.0, 1.0), case.start, node)
    try:
        until_over(world)
        honest = [node for node in world.nodes.values() if not (lying and node.name == liar)]
        finished = [node for node in honest if is_finished(node)]
        if len({(node.view.key, node.result) for node in finished}) > 1:
            raise Failure(f"SPLIT ANSWER: {[(node.name, node.view.key, node.result) for node in finished]}")
        if read := world.readable({liar} if lying else set()):
            raise Failure(f"READABLE: {read[0]}")
        if not lying and not case.lasting and len(finished) < len(world.nodes):
            raise Failure("nobody lied and nothing lasted, but not all have an answer")
        return f"masked, {'a liar, ' if lying else ''}{'an answer' if finished else 'no answer'}"
    except Failure as failure:
        around = {name: " ".join(others) for name, others in world.edges.items()}
        story = "\n  ".join([f"network {around}", *case.story])
        raise Failure(f"seed {seed}: {failure}\n  {story}\n{world.report()}") from failure


def play_in_clear(
    seed: int, show: bool = False, lies: Sequence[tuple[Callable[[Case], None] | None, int]] = LIES
) -> str:
    rng = random.Random(f"case {seed}")
    edges = shape(rng)
    quorum = None if rng.random() < 0.3 else Quorum()
    if quorum is not None and rng.random() < 0.3:
        quorum = Quorum(rng.randint(len(edges) // 2 + 1, len(edges)), rng.choice([0.0, 0.5, 0.8]))
    spare = fallback(edges, rng) if quorum is not None else {}
    world = World(seed, edges, rng.randint(4, 9), show, quorum, spare)
    case = Case(world, rng)
    kinds, weights = zip(*lies, strict=True)
    (lie,) = random.Random(f"lie {seed}").choices(kinds, weights)
    kinds, weights = zip(*FAULTS, strict=True)
    for fault in rng.choices(kinds, weights, k=rng.choice([1, 1, 2, 3])):
        if lie is not Case.restore or fault in PASSING:
            fault(case)
    if lie is not None:
        lie(case)
    for node in world.nodes.values():
        world.after(rng.uniform(0.0, 1.0), case.start, node)
    try:
        return judge(case) + ("" if lie is None else f" ({lie.__name__})")
    except Failure as failure:
        around = {name: " ".join(others) for name, others in world.edges.items()}
        story = "\n  ".join([f"network {around}", *case.story])
        raise Failure(f"seed {seed}: {failure}\n  {story}\n{world.report()}") from failure


def judge(case: Case) -> str:
    world = case.world
    until_over(world)
    check_answers(world)
    if world.quorum is not None:
        return judge_survivors(case)
    stopped = [node for node in world.nodes.values() if not is_finished(node) and node.name not in case.killed]
    for node in stopped:
        check_error(node, case)
    if not stopped:
        return "answer"
    if any(isinstance(node.error, Damaged) for node in stopped):
        return "older copy of a folder named"
    if all(not node.starts for node in world.nodes.values()):
        raise Failure("nobody was started")
    resume(case)
    return "error names the node, then the answer"


def judge_survivors(case: Case) -> str:
    """Where the run goes on without lost nodes: one answer at most; those that are connected and many enough have it."""
    world = case.world
    alive = [node for node in world.nodes.values() if node.name not in case.killed]
    for node in alive:
        if not is_finished(node):
            check_stop(node, case)
    if not case.split and all(node.knows_network for node in alive):
        check_survivors(case, [node.name for node in alive])
    finished = [node for node in alive if is_finished(node)]
    if any(isinstance(node.error, Damaged) for node in alive):
        return "older copy of a folder named"
    if not finished:
        resume(case)
        return "too few left, error names a node, then one answer"
    missing = min(len(node.view.lost) for node in finished)
    return "answer of the survivors" if missing else "answer"


def check_stop(node: Node, case: Case) -> None:
    if isinstance(node.error, Excluded):
        if not case.lasting:
            raise Failure(f"node {node.name} was left out, though nothing lasted: {node.error}")
        return
    check_error(node, case)


def check_survivors(case: Case, alive: list[str]) -> None:
    """Nodes were killed, and the others can reach each other or not: who must have an answer?"""
    world = case.world
    # Fallback edges save only those that are there when the others look for them.
    spare = {} if case.others_away else world.fallback
    near = {name: {*world.edges[name], *spare.get(name, ())}.intersection(alive) for name in alive}
    for part in parts(near):
        rows, total = (sum(world.nodes[name].rows for name in names) for names in (part, world.nodes))
        assert world.quorum is not None
        least = world.quorum.nodes or len(world.nodes) // 2 + 1
        if len(part) >= least and rows >= world.quorum.rows * total:
            for name in part:
                if not is_finished(world.nodes[name]):
                    raise Failure(f"node {name} has no answer, though {sorted(part)} are connected and enough")


def parts(near: dict[str, set[str]]) -> list[set[str]]:
    """The connected parts of a network."""
    left, found = set(near), []
    while left:
        todo = [left.pop()]
        part = set(todo)
        while todo:
            for other in near[todo.pop()] - part:
                part.add(other)
                todo.append(other)
        left -= part
        found.append(part)
    return found


def check_error(node: Node, case: Case) -> None:
    named = any(re.search(rf"node {name}\b", str(node.error)) for name in case.restored)
    if isinstance(node.error, Damaged) and named:
        return
    if node.name == case.liar and isinstance(node.error, OlderCopy):
        return  # a liar may hear what it has said
    if not isinstance(node.error, PeerLost):
        raise Failure(f"node {node.name} ended with {node.error!r}")
    if not case.lasting:
        raise Failure(f"node {node.name} gave up, though nothing lasted: {node.error}")
    blamed, nodes = set(case.named), case.world.nodes
    if node.starts > 1:  # back when others have stopped, it names these
        blamed |= {
            name for name, other in nodes.items() if other.error is not None and other.stopped_at < node.stopped_at
        }
    if node.name in case.restored:  # back when the others have finished
        blamed |= {name for name, other in nodes.items() if is_finished(other)}
    if "nobody has described" in str(node.error):  # nodes beyond those that are lost
        left = {name: set(case.world.edges[name]) - case.named for name in nodes.keys() - case.named | {node.name}}
        blamed |= nodes.keys() - next(part for part in parts(left) if node.name in part)
    blamed |= {case.holds_up} - {""}
    if case.holds_up and "(limit 400 s)" in str(node.error):
        blamed = {case.holds_up}  # as one that every way leads over, or as the one who says so
    if not any(re.search(rf"node {name}\b", str(node.error)) for name in blamed):
        raise Failure(f"node {node.name} names none of {sorted(blamed)}: {node.error}")


def until_over(world: World) -> None:
    """Until all nodes have ended, and nobody is about to start."""
    world.run(lambda: False, 6.0)  # by now all that happens has happened, or waits for an event
    if not world.run(lambda: not any(node.running for node in world.nodes.values()), LONG) and any(
        node.running for node in world.nodes.values()
    ):
        raise Failure("hangs")
    world.run(lambda: False, SHORT)  # somebody may come back
    if any(node.running for node in world.nodes.values()) and not world.run(
        lambda: not any(node.running for node in world.nodes.values()), LONG
    ):
        raise Failure("hangs")


def check_answers(world: World) -> None:
    """All that have an answer have the same one: that of an undisturbed run of the nodes in its view."""
    finished = [node for node in world.nodes.values() if is_finished(node)]
    if len({node.view for node in finished}) > 1:
        raise Failure(f"SPLIT ANSWER: {[(node.name, node.view) for node in finished]}")
    if not finished:
        return
    view, edges = finished[0].view, world.edges
    if view.number:
        network, _ = finished[0].core.views.network(view)
        edges = {name: [network.names[q] for q in network.neighbors(j)] for j, name in enumerate(network.names)}
    truth = undisturbed(edges, {name: world.nodes[name].rows for name in edges}, world.rounds)
    for node in finished:
        if node.result != truth[node.name]:
            raise Failure(f"node {node.name} has a WRONG ANSWER, {node.result} instead of {truth[node.name]}")


def resume(case: Case) -> None:
    """All is well again, and everybody that has no answer is started once more."""
    world = case.world
    world.blocked.clear()
    case.killed.clear()
    before = {node.name for node in world.nodes.values() if is_finished(node)}
    case.tell("all is well again, and those without an answer are started")
    for node in world.nodes.values():
        node.triggers.clear()
        node.lie = lambda other, beat: beat
        node.frozen_until = 0.0
        node.disk.full = node.hangs = False
        if not is_finished(node):
            node.start()
    until_over(world)
    check_answers(world)
    for name, node in (
        world.nodes.items() if not case.liar else ()
    ):  # what a liar has said, its node does not know any more
        # A node that has finished does not come back, and one that it had given up may miss it.
        # One that the others went on without is told, or finds nobody; also one that was cut off before it knew the network (seed 2380).
        alone = BelowQuorum if node.knows_network else PeerLost
        left_out = isinstance(node.error, (Excluded, alone)) and any(map(is_finished, world.nodes.values()))
        if not is_finished(node) and not before and not left_out:
            raise Failure(f"node {name} did not go on: {node.error!r}")
