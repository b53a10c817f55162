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
    "test_completed_run_logs_nothing": PROCESS,
    "test_failed_compensation_is_logged_as_an_error": PROCESS,
    "test_failed_run_logs_its_retries_and_its_reason": PROCESS,
    "test_cancelled_run_is_logged_at_info": PROCESS,
    "test_worker_that_gets_sigterm_logs_how_it_drains": PROCESS,
    "test_run_that_kills_its_workers_is_backed_off_after_three_deaths": PROCESS,
    "test_second_signal_ends_the_draining_at_once": PROCESS,
    "test_max_tries_fails_a_run_that_kills_its_workers": PROCESS,
    "test_killed_process_loses_nothing_and_delays_its_runs_by_a_lease": PROCESS,
    "test_order_of_a_set_under_another_hash_seed_is_a_mismatch": PROCESS,
    "test_process_exits_although_a_thread_still_runs": PROCESS,
    "test_app_use_after_a_fork_is_refused_and_leaves_the_parent_intact": PROCESS,
    "test_lease_lost_while_a_run_waits_without_a_slot_leaks_no_slot": SQL,
    "test_worker_warns_periodically_of_runs_that_no_worker_claims": SQL,
    "test_children_of_an_earlier_run_with_the_same_id_do_not_block_new_children": SQL,
    "test_deadlines_of_loop_time_include_the_time_of_activities": SQL,
    "test_health_reports_missing_migrations": SQL,
    "test_many_sleeping_runs_all_wake": SQL,
    "test_events_go_to_the_outbox_if_a_publisher_is_configured": SQL,
    "test_timeout_of_a_wait_beside_a_running_activity_survives_its_worker": SQL,
    "test_outbox_events_commit_with_the_result": SQL,
    "test_runs_of_another_framework_cannot_be_cancelled_or_retried": SQL,
    "test_runs_of_unknown_workflows_do_not_block_known_ones": SQL,
    "test_lease_lost_on_a_page_boundary_is_reported": CONNECTION,
    "test_nudge_renews_only_leases_of_executing_runs": CONNECTION,
    "test_hooks_get_each_step_retry_and_compensation_of_a_failed_saga": CONNECTION,
    "test_transaction_in_a_thread_does_not_delay_shutdown": CONNECTION,
    "test_all_leases_of_all_pages_are_renewed": CONNECTION,
    "test_connection_is_the_native_connection_of_the_driver": CONNECTION,
    "test_nudges_do_not_prevent_renewal_for_waiting_runs": CONNECTION,
    "test_retention_and_the_relay_are_restarted": "replaces methods of the SQL storages",
    "test_any_exception_in_an_activity_is_a_failed_attempt_with_its_type": CONNECTION,
    "test_many_runs_with_their_own_where_cost_little_more_than_events_to_single_runs": COST,
    "test_ten_thousand_runs_are_paged_counted_and_read_with_few_statements": COST,
}


def backends_of(test: str, databases: Sequence[str]) -> list[str]:
    """Where a test runs: on these databases, and on the reference unless it is listed above."""
    return [*databases, *([] if test in NOT_ON_REFERENCE else ["reference"])]
