"""Which engine tests do not run on the reference, and why.

The tests that use the fixtures `database` and `shared` run on every database and on the reference, except those listed
here. Tests with fixtures of their own (of one database, a server, a process or a caller's connection) say themselves
where they run.
"""

from collections.abc import Sequence

SQL = "runs SQL of its own on the tables"
PROCESS = "opens the database in another process"
CONNECTION = "needs the connection of a database"
COST = "measures the cost of statements"

NOT_ON_REFERENCE = {
    "test_a_completed_run_logs_nothing_of_its_own": PROCESS,
    "test_a_failed_compensation_is_an_error": PROCESS,
    "test_a_failed_run_logs_its_retries_and_its_reason": PROCESS,
    "test_a_cancelled_run_is_information": PROCESS,
    "test_a_worker_that_gets_sigterm_logs_how_it_drains": PROCESS,
    "test_a_run_that_kills_its_workers_is_backed_off_after_three_deaths": PROCESS,
    "test_a_second_signal_ends_the_draining_at_once": PROCESS,
    "test_max_tries_fails_a_run_that_kills_its_workers": PROCESS,
    "test_p3_a_killed_process_loses_nothing_and_costs_a_lease": PROCESS,
    "test_the_order_of_a_set_under_another_hash_seed_is_a_mismatch": PROCESS,
    "test_the_process_ends_although_a_thread_does_not": PROCESS,
    "test_use_after_a_fork_is_refused_and_does_no_harm": PROCESS,
    "test_a_lease_that_is_lost_while_a_run_waits_without_a_slot_leaks_none": SQL,
    "test_a_worker_warns_by_itself_of_runs_that_nobody_takes": SQL,
    "test_children_of_an_earlier_run_with_the_parents_id_are_not_in_the_way": SQL,
    "test_deadlines_of_the_loops_time_are_met_though_activities_take_time": SQL,
    "test_health_tells_of_missing_migrations": SQL,
    "test_many_sleepers_all_wake": SQL,
    "test_meaning_events_go_to_the_outbox_where_a_publisher_is_configured": SQL,
    "test_p5_the_time_of_a_wait_beside_a_working_branch_outlives_its_worker": SQL,
    "test_row_transactions_outbox_events_commit_with_the_result": SQL,
    "test_runs_of_another_framework_cannot_be_changed_here": SQL,
    "test_w31_runs_that_nobody_here_knows_block_no_one": SQL,
    "test_a_lease_that_is_lost_on_a_page_boundary_is_told": CONNECTION,
    "test_a_nudge_looks_only_after_runs_that_execute_code": CONNECTION,
    "test_a_saga_that_fails_tells_each_step_retry_and_compensation": CONNECTION,
    "test_a_transaction_in_a_thread_does_not_hold_the_door": CONNECTION,
    "test_all_leases_of_all_pages_are_renewed": CONNECTION,
    "test_meaning_connection_is_the_native_one": CONNECTION,
    "test_nudges_do_not_keep_leases_of_waiting_runs_from_being_renewed": CONNECTION,
    "test_retention_and_the_relay_are_restarted": "replaces methods of the SQL storages",
    "test_whatever_an_activity_raises_is_a_failed_attempt_with_its_type": CONNECTION,
    "test_many_runs_with_their_own_match_cost_little_more_than_events_sent_to_each": COST,
    "test_ten_thousand_runs_are_paged_counted_and_read_with_few_statements": COST,
}


def backends_of(test: str, databases: Sequence[str]) -> list[str]:
    """Where a test runs: on these databases, and on the reference unless it is listed above."""
    return [*databases, *([] if test in NOT_ON_REFERENCE else ["reference"])]
