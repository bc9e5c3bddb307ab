"""Each row of the table of attacks (issue 31) has a test that fails without the line that defends against it: `make attack-table`, minutes.

The line is changed in a copy of src/, and the test is run with the copy. A test that passes there shows nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[2]
MASKS = ("privacy/masks.py", 'about = number.to_bytes(8, "big") + history', 'about = number.to_bytes(8, "big")')


class Row(NamedTuple):
    attack: str
    test: str  # its file without tests/, or what follows tests/test_peer_
    file: str  # under src/dekpca
    line: str
    instead: str


TABLE = [
    Row("another basis after a restart: plain sums", "dishonest.py::test_a_node_that_is_told_something_else_after_a_restart_has_other_masks", *MASKS),
    Row("another basis after a restart: noise twice", "dishonest.py::test_noise_is_not_used_twice",
        "peers/app/keys.py", "if history != self.history:", "if False:"),
    Row("another basis for one child", "dishonest.py::test_a_root_that_tells_one_child_another_basis_reads_nothing_of_it", *MASKS),
    Row("another answer for one child", "dishonest.py::test_a_root_that_tells_one_child_another_answer_ends_the_run_for_all",
        "peers/app/keys.py", "for other, signature in said.items():", "for other, signature in ():"),
    Row("terms of each node from how totals are rounded", "totals.py::test_totals_at_many_scales_do_not_tell_the_terms",
        "privacy/masks.py", "shift / 2**32,", "0.0,"),
    Row("terms of each node from digits that only small ones have",
        "totals.py::test_the_last_digits_of_a_total_are_not_those_of_its_smallest_term",
        "privacy/fixed_point.py", " + below * np.spacing(scaled))", ")"),
    Row("a hub hides a larger epsilon", "dishonest.py::test_a_node_between_cannot_hide_other_settings",
        "privacy/records.py", "if record.settings != settings:", "if False:"),
    Row("two remain of three", "dishonest.py::test_of_three_nodes_two_do_not_go_on_with_secure_sums",
        "peers/app/keys.py", "if len(network) < LEAST_MEMBERS and not self.allow_two:", "if False:"),
    Row("a hub runs without the third", "dishonest.py::test_a_network_of_other_members_is_refused",
        "peers/app/session.py", "if absent := set(self.config.members or ()).difference(self.protocol.membership.records):", "if absent := ():"),
    Row("clusters of one row in the totals of k-means",
        "rounds.py::test_where_others_see_terms_and_rows_may_not_leave_k_means_has_means_of_groups",
        "solvers/sums/clusters.py",
        "some = summarized(rows.sampled(ROWS_A_CENTRE * wanted, FIRST))", "some = rows.sampled(ROWS_A_CENTRE * wanted, FIRST)"),
    Row("other numbers of rows for each", "dishonest.py::test_a_node_between_cannot_tell_other_numbers_of_rows",
        "peers/app/keys.py",
        "agreed = settings_hash(self.settings, [*network.names, *rows])", "agreed = settings_hash(self.settings, network.names)"),
    Row("few rows are added, and others collude", "stream.py::test_few_rows_are_not_added",
        "peers/app/node.py", "if 0 < len(samples) < least and not settings.share_rows:", "if False:"),
    Row("each of few rows that are added, from two totals", "stream.py::test_few_rows_are_not_added",
        "solvers/sums/judging_rows.py", ", 2 * landmarks)", ", 0)"),
    Row("each row of small owners, from products of many coordinates",
        "totals.py::test_there_are_half_as_many_landmarks_as_rows_of_all_nodes_but_the_largest",
        "settings.py", "    return room\n", "    return 9 * rows\n"),
    Row("each row of a group that judges",
        "totals.py::test_of_many_rows_each_group_that_judges_has_twice_as_many_rows_of_others_as_functions",
        "settings.py", "most = judging // (2 * GROUPS)", "most = judging"),
    Row("each row, from groups that are other ones in each stage",
        "totals.py::test_judgements_of_all_stages_are_over_the_same_groups_of_rows",
        "solvers/sums/judging_rows.py", "return self.stage if self.seen.rows.least == 1 else LAST", "return self.stage"),
    Row("an owner's own sums, by the sizes of terms of functions that a root tells",
        "test_secure_sums.py::test_only_the_entries_of_rows_have_their_sizes_told",
        "solvers/sums/judge.py", 'return {"leak": leak, "power": long * total}', "return None"),
    Row("single rows, by functions that rounding makes steps of",
        "totals.py::test_no_means_that_a_root_tells_make_functions_that_are_zero_at_all_rows_but_one",
        "solvers/sums/judging_rows.py", "return found + noise(found, psi, principal.mean, principal.weights) if apart", "return found if apart"),
    Row("single rows, by directions that rounding makes steps of",
        "totals.py::test_no_directions_that_a_root_tells_make_functions_that_are_zero_at_all_rows_but_one",
        "solvers/sums/directions.py", "            if apart:\n", "            if False:\n"),
    Row("few rows that do not judge", "totals.py::test_all_rows_of_a_node_judge_rather_than_more_than_half",
        "solvers/sums/rows.py", "return many / own if own > 2 * many else 1.0", "return min(1.0, many / own)"),
    Row("rows of nodes that take no part count as others", "totals.py::test_rows_of_nodes_that_take_no_part_in_a_sum_hide_no_others",
        "settings.py", "rows, k = others(LEAST_CLUSTER) or others(),", "rows, k = others(),"),
    Row("a map with which one row overflows", "test_privacy.py::test_no_map_that_a_root_tells_stops_a_node_for_one_row",
        "solvers/private.py", "found = np.where(np.abs(found) <= LONGEST, found, 0.0)", "pass"),
    Row("components with which one row overflows", "test_scores.py::test_a_row_whose_error_overflows_does_not_stop_its_node",
        "scores.py", "place = np.where(np.isnan(place), BINS, place)", "pass"),
    Row("few rows of a stream judge in groups", "totals.py::test_a_root_cannot_make_few_rows_judge_in_groups",
        "solvers/sums/stream.py", 'if self.seen.rows.least > 1 and most > self.bounds()["most"][0]:', "if False:"),
    Row("samples of two runs differ by few rows", "totals.py::test_samples_of_two_runs_are_the_same_or_differ_by_many_rows",
        "solvers/sums/__init__.py", "return 1 << (size - 1).bit_length() if options.least > 1 else size", "return size"),
    Row("judging rows of two runs differ by one row", "totals.py::test_which_rows_judge_depends_on_nothing_that_is_told",
        "solvers/sums/judging_rows.py", "if self.seen.rows.least > 1:\n            return aac", "if False:\n            return aac"),
    Row("each row from products of random features", "totals.py::test_there_are_twice_as_many_rows_as_columns_of_products_of_random_features",
        "settings.py", "if options.random_features and columns_seen(", "if False and columns_seen("),
    Row("dead before the last broadcast", "dishonest.py::test_a_node_that_missed_the_last_broadcast_gets_it_from_one_that_has_finished",
        "peers/app/node.py", 'said["unserved"] = session.finish()', 'said["unserved"] = session.finish() and []'),
    Row("a folder from before its vote", "dishonest.py::test_a_folder_restored_from_before_its_vote_does_not_lead_to_two_answers",
        "peers/protocol/views.py", "if contradict(before, status):", "if False:"),
    Row("a folder from before its vote, as its owner sees it", "dishonest.py::test_an_older_copy_of_a_folder_is_refused",
        "peers/protocol/node.py", "if ours is not None and (ours.version > own.version or contradict(ours, own)):", "if False:"),
    Row("a forged final answer", "dishonest.py::test_a_forged_status_changes_nothing_and_who_passed_it_on_is_named",
        "peers/protocol/proofs.py", "        return flaw\n", '        return ""\n'),
    Row("one member leaves out another", "dishonest.py::test_a_member_alone_cannot_leave_out_a_node_that_others_hear",
        "peers/protocol/views.py", "if reached <= self.members(status.view)", "if True"),
    Row("a covariance times 50, and NaN", "dishonest.py::test_a_neighbor_that_gives_what_no_rows_give_is_named",
        "rounds.py", "if why is not None:\n            raise BadTerm", "if False:\n            raise BadTerm"),
    Row("inbound connections are dropped: the other end calls", "edge.py::test_the_second_by_name_calls_if_it_is_not_called",
        "peers/net/client.py", "neighbor.fallback or not await", "neighbor.fallback or await"),
    Row("inbound connections are dropped: the error says so", "dishonest.py::test_an_edge_that_was_never_made_names_firewalls",
        "peers/protocol/liveness.py", "if n.answered_at is None:\n                    text", "if False:\n                    text"),
    Row("a certificate of another CA", "security.py::test_a_node_says_nothing_to_an_impostor",
        "peers/net/client.py", "if any(words in text for words in UNTRUSTED):", "if False:"),
    Row("a link named lock", "dishonest.py::test_a_link_named_lock_is_not_followed",
        "files.py", "flags | os.O_NOFOLLOW, PRIVATE", "flags, PRIVATE"),
]  # fmt: skip


def fails_without(row: Row) -> str:
    """'fails' if the test does without the line; otherwise what happens."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(HERE / "src", copy)
        path = copy / "dekpca" / row.file
        text = path.read_text()
        if text.count(row.line) != 1:
            return f"there are {text.count(row.line)} such lines in {row.file}: update attack_table.py"
        path.write_text(text.replace(row.line, row.instead))
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        test = f"tests/{'' if row.test.startswith('test_') else 'test_peer_'}{row.test}"
        test = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
        done = subprocess.run(test, cwd=HERE, env=environment, capture_output=True, text=True, timeout=600)
    return "fails" if done.returncode == 1 else f"PASSES, exit code {done.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a part of the attack's name")
    chosen = [row for row in TABLE if parser.parse_args().only in row.attack]
    outcomes = []
    for row in chosen:
        outcomes.append(fails_without(row))
        print(f"{outcomes[-1]}: {row.attack} ({row.test}, without {row.line.strip()!r})", flush=True)
    sys.exit(0 if all(outcome == "fails" for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
