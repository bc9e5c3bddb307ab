"""Random walks of the agreement alone (protocol/views.py), without clocks: an adversary decides who hears what and when, who counts whom as lost,
who is started again or in an older copy of its folder; some members lie. Thousands of walks a minute, into corners that timeouts hardly reach.

A liar is two nodes with one name and one key: each honest node meets one of them, so that a liar accepts and votes twice. It also proposes views
without nodes that are there, and says that it has entered them.
"""

from __future__ import annotations

import random

from dekpca.peers.errors import PeerError
from dekpca.peers.protocol import views as rules
from dekpca.peers.protocol.views import Kept, Key, Lost, Quorum, Status, View, Views


class Broken(AssertionError):
    """Two answers, or a node that was left out without a reason."""


class Walk:
    """`liars` of the `nodes` lie; `copies`: so many times a node is started in an older copy of its folder. At some time the honest nodes that meet
    different halves of the liars are cut off from each other, or just the two halves if there are older copies."""

    def __init__(self, seed: int, nodes: int, quorum: int | None = None, liars: int = 0, copies: int = 0):
        self.rng = random.Random(f"walk {seed} {nodes} {quorum} {liars} {copies}")
        self.names = [chr(ord("a") + i) for i in range(nodes)]
        self.quorum, self.copies, self.steps = Quorum(quorum), copies, 60 * nodes
        self.cut_at, self.invents = (
            self.rng.randint(0, self.steps),
            self.rng.random() < 0.3,
        )  # views, besides voting twice
        self.cuts = bool(liars or copies)
        self.noise = self.rng.choice([0.0, 0.1, 1.0])  # of edges that are down for no reason
        self.liars = set(self.rng.sample(self.names, liars))
        self.half = {name: self.rng.randint(0, 1) for name in self.names}  # of each liar, which it meets
        self.disks = {
            place: [Kept()] for name in self.names for place in ((name, 0), (name, 1))[: 1 + (name in self.liars)]
        }
        self.seen: dict[tuple[str, int], dict[str, Status]] = {place: {} for place in self.disks}
        self.nodes = {place: self.start(place) for place in self.disks}
        self.down: dict[tuple[str, int], set[str]] = {place: set() for place in self.disks}
        self.copied: set[str] = set()
        self.ever_down: set[str] = set()  # ends of edges that honest nodes count as down
        self.computed: dict[Key, set[str]] = {}  # who has entered a view to compute
        self.now = 0

    def start(self, place: tuple[str, int]) -> Views:
        views = Views(place[0], self.quorum, self.disks[place][-1], seen=self.seen[place])
        views.begin({name: (tuple(n for n in self.names if n != name), 10) for name in self.names})
        return views

    def honest(self) -> list[Views]:
        return [views for (name, _), views in self.nodes.items() if name not in self.liars | self.copied]

    def apart(self, a: str, b: str) -> bool:
        return self.cuts and self.now > self.cut_at and self.half[a] != self.half[b]

    def meets(self, a: tuple[str, int], b: tuple[str, int]) -> bool:
        lies = a[0] in self.liars, b[0] in self.liars
        if all(lies):
            return a[1] == b[1]
        if not any(lies):
            return not self.apart(a[0], b[0])
        return self.half[b[0]] == a[1] if lies[0] else self.half[a[0]] == b[1]

    def step(self) -> None:
        rng, place = self.rng, self.rng.choice(list(self.nodes))
        match rng.choices(["hear", "lose", "answer", "restart", "copy", "lie"], [70, 8, 14, 1, 4, 4])[0]:
            case "hear":
                others = [other for other in self.nodes if other[0] != place[0] and self.meets(place, other)]
                if others:
                    self.hear(place, self.nodes[rng.choice(others)])
            case "lose":
                others = [name for name in self.names if name != place[0]]
                cut = [name for name in others if not self.liars & {place[0], name} and self.apart(place[0], name)]
                if not cut and rng.random() > self.noise:
                    return
                other = rng.choice(cut or others)
                self.down[place] = self.down[place] | {other} if cut else self.down[place] ^ {other}
                self.ever_down |= {other, place[0]} if place[0] not in self.liars else set()
                self.update(place)
            case "answer":
                view = self.nodes[place].kept.program
                self.computed.setdefault(view.key, set()).add(place[0])
                if self.computed[view.key] >= set(self.names) - view.without:
                    self.nodes[place].answer(view.key)
                    self.update(place)
            case "restart":
                self.nodes[place] = self.start(place)
            case "copy" if self.copies and place[0] not in self.liars and self.nodes[place].own.vote is not None:
                self.copies -= 1
                self.copied.add(place[0])
                self.disks[place].append(rng.choice([kept for kept in self.disks[place] if kept.status.vote is None]))
                self.nodes[place] = self.start(place)
                self.half[place[0]] ^= 1  # it goes on with the others
            case "lie" if self.invents and place[0] in self.liars:
                victim = rng.choice([name for name in self.names if name != place[0]])
                views = self.nodes[place]
                said = views.own.view
                view = View(
                    said.number + 1, place[0], (*said.lost, *([] if victim in said.without else [Lost(victim, 0.0)]))
                )
                views._say(view=view, entered=rng.choice([view, views.own.entered]), version=views.own.version + 1)

    def hear(self, place: tuple[str, int], other: Views) -> None:
        views, said = self.nodes[place], {other.name: other.own, **other.statuses}
        said = {name: status for name, status in said.items() if status.version}
        own, ours = views.own, said.get(place[0])
        if (
            place[0] not in self.liars
            and ours is not None
            and (ours.version > own.version or rules.contradict(ours, own))
        ):
            if place[0] not in self.copied:
                raise Broken(f"node {place[0]} is said to run in an older copy: {ours} and {own}")
            del self.nodes[place]  # it stops for good
            return
        _, false = views.add(said)
        if innocent := false - self.liars - self.copied:
            raise Broken(f"node {place[0]}: {innocent} contradict themselves")
        self.seen[place] = dict(views.seen)
        self.update(place)

    def update(self, place: tuple[str, int]) -> None:
        views, now = self.nodes[place], float(self.now)
        try:
            views.update(self.down[place], (), now, now)
        except PeerError:  # it stops, and its owner starts it again
            self.nodes[place] = self.start(place)
            return
        if views.kept != self.disks[place][-1]:
            self.disks[place].append(views.kept)

    def check(self) -> None:
        honest = self.honest()
        answers = {views.name: views.own.final for views in honest if views.own.final is not None}
        if len(set(answers.values())) > 1:
            raise Broken(f"two answers: {answers}; liars {sorted(self.liars)}, older copies {sorted(self.copied)}")
        for views in honest:
            if left_out := views.own.entered.without - self.ever_down - self.liars:
                raise Broken(f"node {views.name} has gone on without {sorted(left_out)}, whom everybody hears")


def walk(seed: int, **given: int | None) -> bool:
    """One walk; returns whether a node has a final answer. Raises Broken."""
    one = Walk(seed, **given)  # type: ignore[arg-type]
    for now in range(one.steps):
        one.now = now
        if one.nodes:
            one.step()
            one.check()
    return any(views.own.final is not None for views in one.honest())


def broken(seeds: range, **given: int | None) -> int | None:
    """The first of these walks that ends with two answers, or a node left out; None if there is none."""
    for seed in seeds:
        try:
            walk(seed, **given)
        except Broken:
            return seed
    return None


def double_vote(nodes: int, quorum: int, liars: int, first: int) -> set[Key]:
    """The final answers of honest nodes when liars vote once with the `first` honest nodes, and once with the others, who hear nothing of it."""
    one = Walk(0, nodes, quorum, liars)
    one.liars = set(one.names[:liars])
    honest = one.names[liars:]
    one.half = {name: int(honest.index(name) >= first) for name in honest}
    one.disks = {(name, half): [Kept()] for name in one.names for half in (range(2) if name in one.liars else [0])}
    one.seen = {place: {} for place in one.disks}
    one.nodes = {place: one.start(place) for place in one.disks}
    for views in one.nodes.values():
        views.answer((0, ""))
    for half in range(2):
        side = [(n, h) for n, h in one.nodes if (h == half if n in one.liars else one.half[n] == half)]
        away = [name for name in honest if one.half[name] != half]
        one.down = {place: set(away) if half else set() for place in side}
        if not half:  # it has heard that the others have their answer; but they do not hear from it
            for place in side:
                one.nodes[place].add({name: one.nodes[name, 0].own for name in away})
        for _ in range(8):
            for place in side:
                for other in side:
                    if other != place:
                        one.hear(place, one.nodes[other])
                views = one.nodes[place]
                if views.kept.program == views.own.entered and views.own.vote is None:
                    views.answer(views.own.entered.key)
    return {views.own.final for views in one.honest() if views.own.final is not None}


def forgotten_vote(restarted: bool = False) -> set[Key]:
    """The final answers when node c votes and is then started in a copy of its folder from before. Node b has its vote, and so the answer. Node a has
    heard of the vote too, but could not vote itself: it had accepted another view before. `restarted`: node a is, in its own folder."""
    one = Walk(0, 3)
    a, b, c = ("a", 0), ("b", 0), ("c", 0)
    for place, views in one.nodes.items():
        views.answer((0, ""))
        one.update(place)
    answered = one.nodes[a].own
    one.down[a] = {"b"}
    one.update(a)  # it proposes a view without its edge to b
    before = one.nodes[c].kept
    one.nodes[c].add({"a": answered})
    one.hear(c, one.nodes[b])
    one.hear(b, one.nodes[c])
    one.hear(a, one.nodes[c])  # it has voted
    if restarted:
        one.nodes[a] = one.start(a)
    one.disks[c].append(before)
    one.nodes[c] = one.start(c)
    one.down = {a: {"b"}, c: {"b"}}
    for _ in range(8):
        for place, other in ((a, c), (c, a)):
            if place in one.nodes and other in one.nodes:
                one.nodes[place].add({other[0]: one.nodes[other].own})
                one.update(place)
                one.nodes[place].answer(one.nodes[place].kept.program.key)
    return {views.own.final for views in one.nodes.values() if views.own.final is not None}
