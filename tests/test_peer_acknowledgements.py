"""Acknowledgements of the peer engine: several messages together, none before it is on disk, and at once when the program has ended."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from dekpca import Network
from dekpca.peers.net import edge as serving
from dekpca.peers.protocol import wire_pb2 as wire
from dekpca.peers.protocol.checks import Limits
from peer_nodes import Nodes, Stop, bits, endpoint, join, problem

LONG = 1000.0  # seconds: until then a test has failed otherwise
DATA = bytes(range(16))


class Receiver:
    """Node a, without a network: its neighbor b sends chunks, and reads acknowledgements."""

    def __init__(self, here):
        self.messages = here.messages
        here.begin(Limits(run="r", dtype="<f8", largest=1000, ahead=32))
        self.edge = serving.Edge(here, "b")
        self.syncs = []  # what waits for the disk; nothing is synced until `sync`
        self.messages.sync = self.wait_for_disk
        self.said = asyncio.Queue()
        self.receipts = self.edge._acknowledgements(self._messages(), (0, ""))

    async def _messages(self):
        while (data := await self.said.get()) is not None:
            yield data

    def say(self, *rounds):
        for round in rounds:
            head = wire.Head(run="r", sender="b", round=round, kind="share", dtype="<f8", shape=[2])
            self.said.put_nowait(wire.Chunk(head=head, data=DATA).SerializeToString())

    def wait_for_disk(self):
        self.syncs.append(Future())
        return self.syncs[-1]

    def sync(self):
        for synced in self.syncs:
            synced.set_result(None)
        self.syncs.clear()

    async def settle(self):
        for _ in range(20):
            await asyncio.sleep(0)


def on_receiver(folder):
    """A test that is a coroutine, with a receiver in a folder."""

    def decorate(test):
        async def run():
            with endpoint(folder, "b") as here:
                receiver = Receiver(here)
                try:
                    await asyncio.wait_for(test(receiver), 30)
                finally:
                    await receiver.receipts.aclose()

        asyncio.run(run())

    return decorate


def test_what_comes_together_is_synced_once_and_acknowledged_together(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "TOGETHER", 0.2)

    @on_receiver(tmp_path)
    async def _(receiver):
        receipt = asyncio.ensure_future(anext(receiver.receipts))
        receiver.say(1, 2, 3)
        while not receiver.syncs:
            await asyncio.sleep(0.01)
        receiver.say(4)  # after the sync was asked for: not in this receipt
        while receiver.messages.held("b") != [1, 2, 3, 4]:  # the program may read them
            await asyncio.sleep(0.01)
        assert len(receiver.syncs) == 1
        assert not receipt.done()  # nothing is acknowledged before it is on disk
        receiver.sync()
        assert await receipt == [1, 2, 3]


def test_acknowledgements_are_sent_at_once_when_the_program_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "TOGETHER", LONG)

    @on_receiver(tmp_path)
    async def _(receiver):
        receipt = asyncio.ensure_future(anext(receiver.receipts))
        receiver.say(1, 2)
        await receiver.settle()
        assert not receiver.syncs, "nobody waits for these"
        receiver.edge.at_once.set()
        await receiver.settle()
        receiver.sync()
        assert await receipt == [1, 2]
        receiver.edge.at_once.clear()  # the program begins anew
        receipt = asyncio.ensure_future(anext(receiver.receipts))
        receiver.say(3)
        await receiver.settle()
        assert not receiver.syncs
        receipt.cancel()
        await asyncio.gather(receipt, return_exceptions=True)


def test_what_came_before_something_wrong_is_acknowledged(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "TOGETHER", 0.01)

    @on_receiver(tmp_path)
    async def _(receiver):
        receipt = asyncio.ensure_future(anext(receiver.receipts))
        receiver.say(1)
        receiver.said.put_nowait(b"\xff")
        while not receiver.syncs:
            await asyncio.sleep(0.01)
        receiver.sync()
        assert await receipt == [1]
        with pytest.raises(serving.ProtocolError):
            await anext(receiver.receipts)


def test_a_neighbor_that_reads_no_receipts_is_not_read_either(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "TOGETHER", 0.01)
    monkeypatch.setattr(serving, "MOST_TAKEN", 5)

    @on_receiver(tmp_path)
    async def _(receiver):
        receiver.sync()
        receipt = asyncio.ensure_future(anext(receiver.receipts))
        receiver.say(*[1] * 40)  # the same again and again: here already, and acknowledged each time
        await asyncio.sleep(0.1)
        assert receiver.said.qsize() >= 25
        receiver.sync()
        rounds = await receipt
        assert len(rounds) <= 6


# ---------------------------------------------------------------------- what it means for a run
@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_program_does_not_wait_for_acknowledgements_and_a_restart_needs_none(tmp_path, monkeypatch, acknowledged):
    network = Network.ring(3)
    parts, options = problem(network, max_iter=6)
    expected = Nodes(tmp_path / "whole", network, parts, options).run()
    if not acknowledged:  # until the program ends, nobody says what it has
        monkeypatch.setattr(serving, "TOGETHER", LONG)
    nodes = Nodes(tmp_path / "broken", network, parts, options)

    def observe(about):
        if about.number == 3:
            raise Stop

    threads = [nodes.start(name, observe if name == "1" else None) for name in network.names]
    join([threads[1]])
    assert isinstance(nodes.errors["1"], Stop)
    join([nodes.start("1"), threads[0], threads[2]])
    assert not nodes.errors
    assert bits(nodes.answers) == bits(expected)
