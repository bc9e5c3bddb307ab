"""`dekpca node check`: what would stop a run, found before the day. Nothing of the rows leaves, not even their number."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ...network import listing
from ..net.authority import SKEW
from ..net.client import CONNECT
from ..net.endpoint import REVERSE
from ..net.identity import Identity, fingerprint, moment
from ..net.probe import Probe, ProbeTransport, Seen
from ..protocol.membership import Membership
from ..protocol.node import NodeProtocol
from ..storage.folder import RunFolder
from .config import Config
from .disclosure import after_a_loss, too_few
from .node import Prepared
from .session import EXPIRY_WARNING, agreed_settings

STAY = 3.0  # seconds that a check goes on after it knows its answer: neighbors that check too need theirs
LEAST_FREE = 1 << 28  # bytes of disk, beside four times the data
SOON = 86400.0 * EXPIRY_WARNING

WELL, WRONG, MISSING = 0, 2, 4  # exit codes


@dataclass(frozen=True)
class Row:
    """A line of the table. `code`: what this neighbor alone would make the exit code."""

    neighbor: str
    we_reach_it: str
    it_reaches_us: str
    calls: str
    certificate: str
    settings: str
    remark: str
    code: int


def here(config: Config, identity: Identity, prepared: Prepared) -> dict[str, str]:
    """What was checked on this machine, and found well; raises ValueError where it is not."""
    rows, columns = prepared.samples.shape
    found = {
        "certificate": f"node {identity.name}, valid until {moment(identity.expires)}, {identity.fingerprint}",
        "clock": f"{moment(datetime.now(UTC))}, within the validity of the certificate and its CA",
        "members": "whoever takes part" if config.members is None else ", ".join(config.members),
        "data": f"{config.data}: {rows} rows, {columns} columns, {prepared.samples.dtype}",
        "folder": _folder(config, 4 * prepared.samples.nbytes),
    }
    sealed = prepared.settings.sealed
    warned = {"secure sums": too_few(sealed, config), "after a loss": after_a_loss(sealed, config)}
    return found | {what: text for what, text in warned.items() if text}


def _folder(config: Config, needed: int) -> str:
    folder = config.folder
    if folder.exists():
        RunFolder(folder).close()  # nobody else may read it, and no process runs this node
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"{folder}: it cannot be made or written in {above}; choose another folder")
    free, needed = shutil.disk_usage(above).free, LEAST_FREE + needed
    if free < needed:
        mega = f"{free / 1e6:.0f} MB of its disk are free, and {needed / 1e6:.0f} MB should be"
        raise ValueError(f"{folder}: {mega}; make room")
    return f"{folder}, {free / 1e9:.1f} GB free"


def neighbors(config: Config, identity: Identity, prepared: Prepared, seconds: float) -> list[Row]:
    """Call the neighbors and listen for their calls; ends early when all is known, or when something is wrong."""
    around = {**config.neighbors, **config.fallback}
    settings = agreed_settings(config, prepared.samples, prepared.facts, prepared.features.sorted_names)
    membership = Membership(config.name, list(config.neighbors), 1)
    protocol = NodeProtocol(config.name, config.run, settings, membership, around, config.timeouts, time.monotonic())
    probe = Probe(protocol, around)
    with tempfile.TemporaryDirectory(prefix="dekpca-check-") as folder:
        with ProbeTransport(probe, Path(folder), identity, config.listen):
            end = time.monotonic() + seconds
            while (now := time.monotonic()) < end:
                if all(map(probe.in_both_directions, probe.seen)) or any(seen.wrong for seen in probe.seen.values()):
                    end = min(end, now + STAY)
                elif all(seen.whole for seen in probe.seen.values()):  # the other direction may come yet
                    end = min(end, now + CONNECT + STAY)
                time.sleep(0.1)
        return [row(config, name, seen, protocol.neighbors[name].trouble) for name, seen in probe.seen.items()]


def row(config: Config, name: str, seen: Seen, trouble: str) -> Row:
    """What was seen of a neighbor, and the remedy."""
    address = {**config.neighbors, **config.fallback}[name]
    address = "" if address.startswith(REVERSE) else address
    remarks = [text for text in (seen.wrong, _direction(config, name, address, seen, trouble)) if text]
    code = WRONG if seen.wrong else WELL if seen.whole else MISSING
    limit = SKEW.total_seconds()
    if abs(seen.ahead) > limit:
        more = "ahead of" if seen.ahead > 0 else "behind"
        text = f"its clock is {abs(seen.ahead):.0f} s {more} ours (limit {limit:.0f} s); both owners compare theirs with NTP"
        remarks.append(text)
        code = WRONG
    certificate = "not seen"
    if seen.certificate is not None:
        until = seen.certificate.not_valid_after_utc
        certificate = f"until {moment(until)}, {fingerprint(seen.certificate)[:11]}"
        if until.timestamp() - time.time() < SOON:
            remarks.append(f"its certificate ends at {moment(until)}; its owner renews it")
    elif seen.reached:
        certificate = "by our CA"
    if config.deny and seen.certificate is None and not seen.denied:
        remarks.append("it has not called, so its certificate could not be compared with deny")
    if seen.runs and not seen.wrong:
        remarks.append("it runs already, and waits for this node" if seen.whole else "it runs already")
    settings = "see remark" if seen.wrong else "the same" if seen.compared else "not compared"
    first = min(name, config.name) if seen.reached and seen.heard else config.name if seen.reached else name
    out = "yes" if seen.reached else "no" if address else "no address here"
    back = "yes" if seen.heard else "no" if seen.calls else "no address there"
    who = first if seen.reached or seen.heard else "nobody"
    return Row(name, out, back, who, certificate, settings, "; ".join(remarks), code)


def _direction(config: Config, name: str, address: str, seen: Seen, trouble: str) -> str:
    """Which direction does not work, and whose firewall may be the reason. One is enough."""
    why = f" ({trouble.partition(' (')[0]})" if trouble else ""
    if seen.denied or seen.refused:  # its calls are refused, too
        return ""
    if seen.reached and not seen.heard and seen.calls and config.listen is not None:
        said = f" (it says: {seen.theirs.partition(' (')[0]})" if seen.theirs else ""
        remedy = f"a firewall at node {config.name} (this one) may drop them, or it has another address for us"
        return f"it answers, but its calls do not arrive{said}: {remedy}; that is no harm, since this node calls"
    if seen.heard and not seen.reached and address:
        remedy = f"a firewall at node {name} may drop them, or the address is wrong"
        return f"it calls us, but our calls to {address} do not arrive{why}: {remedy}; that is no harm, since it calls"
    if seen.reached or seen.heard or seen.wrong:
        return ""
    start, drop = (
        "start node run or node check there",
        f"a firewall at node {config.name} (this one) may drop its calls",
    )
    if not address:
        return f"it has not called, and has no address here: {start}, with the address of node {config.name}; {drop}"
    also, drops = ("", "") if config.listen is None else (", and it has not called", f", and {drop}")
    start += f", and compare the addresses; a firewall at node {name} may drop our calls"
    return f"nobody answers at {address}{also}{why}: {start}{drops}"


def exit_code(rows: list[Row]) -> int:
    codes = {row.code for row in rows}
    return WRONG if WRONG in codes else MISSING if MISSING in codes else WELL


def summary(rows: list[Row]) -> str:
    """In one line."""
    wrong, missing = ([row.neighbor for row in rows if row.code == code] for code in (WRONG, MISSING))
    if wrong:
        return f"something has to be corrected, here or at node {listing(wrong)}"
    if missing:
        who = f"node {missing[0]} is" if len(missing) == 1 else f"nodes {listing(missing)} are"
        return f"{who} missing, or can neither be reached nor reach this node"
    return "all well: dekpca node run"
