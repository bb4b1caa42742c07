"""Every rule of the published framework and its tests (reference/kubernetes.md 1.2 to 1.8), with the cases that tell it.

A case is one of the recordings (`A-` to `E-` of the early package, `M-` of 1.35), or a test beside this file.
"""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.unit.scheduler_framework.scripted import recorded

HERE: Final = Path(__file__).parent
RULES: Final[dict[str, dict[str, str]]] = {
    "1.2 construction": {
        "first, every registered plugin is made without args and called wherever it has a method": "A-new_framework_all-009",
        "then, those that are enabled at a point, in that order": "A-new_framework_configured-006 M-new_framework-018 test_the_order_of_a_point",
        "without a configuration nothing is made": "A-new_framework_configured-001",
        "args of one plugin twice: the last ones then, a fault today": "test_of_two_entries_of_args_the_last_one_counts M-new_framework-020",
        "each plugin is made once, with its own args": "A-new_framework_configured-010 A-new_framework_configured-068 test_each_plugin_is_made_once_from_its_own_args_and_the_handle",
        "a factory that fails is named, with the cause": "A-new_framework_all-011 M-new_framework-023",
        "a plugin that is not enabled is not made": "A-new_framework_configured-048 M-new_framework-024",
        "a weight of 0 is 1, and the sum of the weights must not overflow": "M-new_framework-030 test_a_fault_says_where_it_is_and_what_would_be_right",
        "a name that is not registered": "A-new_framework_configured-012 A-new_framework_configured-018 M-new_framework-006",
        "names are checked before any factory runs": "A-new_framework_configured-050 test_the_faults_of_all_profiles_are_told_before_any_factory_runs",
        "a plugin without the method of its point": "A-new_framework_configured-034 M-new_framework-013",
        "enabled twice at one point: called twice then, a fault today": "A-new_framework_configured-010 M-new_framework-015",
        "one plugin sorts the queue: at most then, exactly today": "A-new_framework_configured-042 test_a_fault_says_where_it_is_and_what_would_be_right",
        "one plugin binds at least": "M-new_framework-004",
        "a plugin may report another name then, and may not today": "A-new_framework_configured-055 test_a_plugin_must_have_the_name_by_which_it_is_registered",
        "what is disabled is not called": "A-new_framework_configured-058 test_what_a_point_disables_is_not_called_there_by_multi_point",
    },
    "1.3 context": {
        "a missing key is an error with its own text": "C-context-001",
        "write replaces, null is a value": "C-context-003 C-context-010",
        "delete of a missing key does nothing": "C-context-006",
        "values are kept by reference, contexts share nothing": "C-context_reference-001 C-context_reference-002",
        "reading and writing take no lock": "C-context_locks-011 C-context_locks-012 C-context_locks-013",
        "a writer waits for all readers, and a reader for the writer": "C-context_locks-006 C-context_locks-007",
        "a writer that waits holds back new readers": "C-context_locks-008",
        "the lock belongs to the context": "C-context_locks-010",
        "a task that takes the lock twice is told": "test_a_task_that_holds_the_lock_is_told_that_it_would_wait_for_itself",
        "giving back what is free is an error": "C-context_lock_misuse-002 C-context_lock_misuse-004 C-context_lock_misuse-005",
        "a cancelled wait leaves the lock usable": "test_a_cancelled_wait_lets_those_behind_it_go_on",
        "a clone has clones of the values": "test_a_clone_has_the_content_and_goes_its_own_way",
        "one context goes through all runs of an attempt": "D-chain-001 D-chain-002 D-chain-003",
    },
    "1.4 status": {
        "null is Success, with an empty message": "B-status_null-001 B-status_null-002 M-status_null-001",
        "an error is an error also without a text": "B-status-008",
        "unknown numbers are kept": "B-status-043 B-status-050",
        "Success, Wait and Skip are no errors": "B-status-023 B-status-037 M-status-027 M-status-032",
        "the message is the error's text and then the reasons": "M-status-011",
        "a rejection names its plugin": "test_a_rejection_is_the_word_of_its_plugin M-reserve-008",
    },
    "1.5 runs": {
        "in configured order": "D-run_reserve-039 D-run_prebind-039 D-run_permit-048 D-run_unreserve-005",
        "no plugin, null and Success end in null": "D-run_permit-001 D-run_prebind-003 D-run_reserve-004",
        "the first that does not succeed ends the run": "D-run_reserve-029 D-run_prebind-029 D-run_permit-038",
        "reserve: anything else is an Error then, a rejection stays one today": "D-run_reserve-016 M-reserve-008 M-reserve-009",
        "prebind and permit: Unschedulable stays": "D-run_prebind-007 D-run_permit-039",
        "prebind: Wait, and what nobody knows, is an Error": "D-run_prebind-009 D-run_prebind-013 D-run_prebind-014",
        "codes of a later time are Errors then": "test_codes_of_a_later_time_are_failures",
        "the newer method takes part in the early run, and the early method in the newer run": (
            "test_a_plugin_of_a_later_time_takes_part_in_prebind test_the_seeds_prebind_takes_part_in_pre_bind"
        ),
        "what a plugin raises goes through, and ends the run": "D-run_reserve-038 D-run_prebind-038 D-run_permit-047 D-run_unreserve-006",
        "unreserve calls all: in their order then, in reverse today": "D-run_unreserve-003 D-chain-004 M-reserve_then_unreserve-001",
        "unreserve has an order of its own then": "test_unreserve_has_an_order_of_its_own",
        "a failed reserve does not undo anything by itself": "D-chain-005",
    },
    "1.6 permit and waiting": {
        "the shortest time counts, whoever named it": "D-permit_wait-024 D-permit_wait-027 test_of_two_waits_under_one_name_the_shorter_one_counts",
        "never more than 15 minutes": "D-permit_wait-018 D-permit_wait-020 M-permit-018 test_a_wait_that_is_no_number_ends_with_the_ceiling",
        "zero and less is over at once": "D-permit_wait-021 D-permit_wait-022 M-permit-019",
        "the time of an answer that is not Wait does not count": "D-permit_wait-032 D-permit_wait-033 M-permit-055",
        "plugins after a waiter are asked, and a refusal wins": "D-run_permit-016 D-run_permit-015 M-permit-012",
        "nothing waits after a refusal": "D-run_permit-018 D-run_permit-020",
        "the text of a time-out": "D-permit_wait-012 D-permit_wait-023 M-permit-022",
        "allow and reject by others": "D-permit_wait-037 D-permit_wait-051 M-permit-037",
        "one allow is enough then; each plugin for itself today": "D-permit_wait-058 M-permit-031 test_each_plugin_of_several_may_allow_for_itself",
        "the first of several signals counts": "D-permit_wait-044 D-permit_wait-046 M-permit-041 M-permit-042 test_the_first_signal_that_settles_the_wait_is_kept",
        "many at once: exactly one is told that it changed something": "D-permit_wait-058 D-permit_wait-059",
        "a signal before the wait begins is kept": "D-permit_wait-076 M-permit-028",
        "a signal after the end changes nothing": "D-permit_wait-039 D-permit_wait-054 D-permit_wait-074 D-permit_wait-078",
        "one nanosecond before the end it does": "D-permit_wait-053",
        "each plugin has its own time-out, which ends when it allows": "M-permit-030 test_each_plugin_has_its_own_time_and_the_first_that_is_over_ends_the_wait",
        "a rejection stops all time-outs, and leaves the pending plugins": "M-permit-044 M-permit-045 test_a_rejection_and_a_time_out_leave_the_plugins_that_were_waited_for",
        "time runs from permit on": "M-permit-023 M-permit-024",
        "pods wait each on its own": "D-permit_wait-061 D-permit_wait-062 M-permit-052",
        "one UID twice: the later one is found, and both end": "D-permit_wait-070 D-permit_wait-071 test_the_end_of_a_pod_leaves_a_later_one_of_its_uid",
        "an unknown UID, an empty one": "D-permit_wait-055 D-permit_wait-072",
        "iterating is over a copy": "D-permit_wait-065 test_what_a_callback_adds_and_ends_does_not_disturb_the_iteration",
        "the last pod of a group decides for those that wait": "test_the_last_pod_of_a_group_decides_for_those_that_wait",
        "the pod is in the map before the next one is asked for": "M-permit-010",
        "a cancelled wait leaves nothing behind": "test_a_cancelled_run_leaves_no_waiting_pod_behind test_a_cancelled_wait_leaves_nothing_behind",
        "anything of that in any order": "WaitingPodsMachine",
    },
    "1.7 the caller's order": {
        "after a failure everything is undone, in reverse, and then forgotten and told": (
            "test_what_is_undone_after_a_failure_and_in_which_order"
        ),
        "without a node nothing is undone": "test_a_pod_without_a_node_is_told_why_and_nothing_is_undone",
        "a pod that is being deleted is passed over": "test_pods_for_which_no_node_is_looked_for",
        "waiting and binding are beside the next cycle": "test_the_next_cycle_begins_while_a_pod_waits_for_its_permit",
        "a failed reserve undoes nothing by itself then, and calls unreserve of all today": (
            "D-chain-005 M-reserve_then_unreserve-001 test_what_is_undone_after_a_failure_and_in_which_order"
        ),
        "unreserve is called for plugins that were never reached": "D-chain-004 M-reserve_then_unreserve-001",
    },
    "1.8 snapshot": {
        "empty at first, and each framework has its own": "E-snapshot-001 E-snapshot-004",
        "what happens in a cycle is not seen in it": "E-snapshot-006 E-snapshot-008 E-snapshot-012",
        "a new cycle copies what has changed, and keeps the rest": "E-snapshot-009 E-snapshot-010",
        "what was kept of an earlier one stays": "E-snapshot-007",
        "nobody can change it": "E-snapshot-014 E-snapshot-015",
        "the handle shows that of the cycle": "E-snapshot-003 test_plugins_see_the_snapshot_of_the_cycle",
    },
}


def known() -> frozenset[str]:
    """The recorded cases, and the tests and machines in this directory."""
    text = "\n".join(path.read_text() for path in HERE.glob("test_*.py"))
    tests = re.findall(r"^(?:async )?(?:def|class) (\w+)", text, re.MULTILINE)
    return (
        frozenset(recorded("framework-v1alpha1.jsonl"))
        | frozenset(recorded("framework-v1.35.jsonl"))
        | frozenset(tests)
    )


KNOWN: Final = known()


@pytest.mark.parametrize("section", RULES)
def test_every_rule_has_its_cases(section: str) -> None:
    missing = {
        rule: [case for case in cases.split() if case not in KNOWN] or "no case at all"
        for rule, cases in RULES[section].items()
        if not cases or not KNOWN.issuperset(cases.split())
    }
    assert missing == {}
