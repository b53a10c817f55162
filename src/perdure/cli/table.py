"""The table of commands. A module is imported when its command is used.

To add a command, add a line here and a function to a module of `commands/`. A line with a group, such as
`"outbox list"`, makes a command of the group; `DEFAULTS` names the one that runs if none is given.
"""

from typing import NamedTuple


class Command(NamedTuple):
    """A command: its name, where its function is, what it does in one line, and an example."""

    name: str
    target: str
    help: str
    example: str


COMMANDS = (
    Command("runs", "runs:runs", "List runs.", "perdure runs state:failed 'started:<1d' --limit 20"),
    Command("show", "runs:show", "Show a run with its input, result, error and steps.", "perdure show order-A-1"),
    Command(
        "why",
        "why:why",
        "Say in one paragraph what a run waits for, and what would release it.",
        "perdure why order-A-1",
    ),
    Command(
        "trace", "trace:trace", "Show a run as a tree of its steps and children.", "perdure trace order-A-1 --watch"
    ),
    Command("history show", "history:show", "Show the recorded history of a run.", "perdure history order-A-1"),
    Command(
        "history export",
        "history:export",
        "Write the history of a run to a file, for tests that replay it.",
        "perdure history export order-A-1 tests/histories/order.json --redact",
    ),
    Command(
        "history sample",
        "history:sample",
        "Write histories of a sample of the runs that have not ended.",
        "perdure history sample tests/histories --redact",
    ),
    Command(
        "start", "start:start", "Start a run.", 'perdure start order --input \'{"order_id": "A-1"}\' --id order-A-1'
    ),
    Command(
        "send",
        "send:send",
        "Send an event to the runs that wait for its type.",
        'perdure send order.paid \'{"order_id": "A-1"}\'',
    ),
    Command(
        "publish",
        "send:publish",
        "Send a message to the runs that are subscribed to a channel.",
        "perdure publish prices '{\"apple\": 3}'",
    ),
    Command(
        "cancel",
        "changes:cancel",
        "Cancel runs, by id or by filter.",
        "perdure cancel order-A-1 --reason 'customer called'",
    ),
    Command(
        "retry",
        "changes:retry",
        "Start failed or cancelled runs again, by id or by filter.",
        "perdure retry --filter 'state:failed workflow:order' --dry-run",
    ),
    Command(
        "workers", "workers:workers", "List the workers with their last heartbeats.", "perdure workers --time relative"
    ),
    Command("outbox list", "outbox:show", "List events of the outbox.", "perdure outbox list --status invalid"),
    Command("outbox retry", "outbox:retry", "Publish parked events again.", "perdure outbox retry 0199a6c1-…"),
    Command(
        "schedules",
        "schedules:schedules",
        "List the scheduled (cron) workflows with their ticks.",
        "perdure schedules --app shop.workflows",
    ),
    Command(
        "cleanup",
        "cleanup:cleanup",
        "Delete ended runs, old messages and published events.",
        "perdure cleanup --finished 30d --dry-run",
    ),
    Command("migrate status", "migrate:status", "Show which migrations the database lacks.", "perdure migrate status"),
    Command(
        "migrate up",
        "migrate:up",
        "Create or update the tables.",
        "perdure migrate up --database postgresql://localhost/shop",
    ),
    Command(
        "migrate dump-sql",
        "migrate:dump_sql",
        "Print the migrations as SQL.",
        "perdure migrate dump-sql postgresql > schema.sql",
    ),
    Command(
        "copy",
        "copy:copy",
        "Move a whole database to another one, such as from SQLite to PostgreSQL.",
        "perdure copy --from sqlite:///shop.db --to postgresql://localhost/shop",
    ),
    Command("doctor", "doctor:doctor", "Check versions, settings and the health of the database.", "perdure doctor"),
    Command(
        "check-upgrade",
        "upgrade:check_upgrade",
        "Check that existing runs continue with the code of a module.",
        "perdure check-upgrade shop.workflows",
    ),
    Command(
        "sql",
        "sql:sql",
        "Run one SELECT or EXPLAIN, read-only.",
        "perdure sql 'SELECT status, count(*) FROM workflow_instances GROUP BY status'",
    ),
    Command("top", "top:top", "Show counts, workers and runs, live.", "perdure top"),
    Command("worker", "worker:worker", "Execute runs until SIGTERM or Ctrl-C.", "perdure worker shop.workflows:app"),
    Command(
        "serve",
        "serve:serve",
        "Serve the HTTP API and execute runs until SIGTERM or Ctrl-C.",
        "perdure serve shop.workflows:app --port 8000",
    ),
    Command("dashboard", "dashboard:dashboard", "Serve the dashboard of a database.", "perdure dashboard"),
    Command(
        "relay",
        "relay:relay",
        "Publish the outbox until SIGTERM or Ctrl-C.",
        "perdure relay --publisher 'nats://localhost?subject=shop.{type}'",
    ),
    Command(
        "dev",
        "dev:dev",
        "Run a worker, the HTTP API and the dashboard, and restart them when source files change.",
        "perdure dev shop.workflows:app",
    ),
    Command("init", "init:init", "Create a small project with a workflow, a worker and a test.", "perdure init shop"),
    Command("demo", "demo:demo", "Kill a worker and watch another one resume its runs.", "perdure demo"),
    Command(
        "bench",
        "bench:bench",
        "Measure the throughput of a database, in a scratch schema or file.",
        "perdure bench --database postgresql://localhost/shop",
    ),
    Command(
        "completion",
        "completion:completion",
        "Print the completion script of a shell.",
        "perdure completion bash > ~/.local/share/bash-completion/completions/perdure",
    ),
)

GROUPS = {
    "history": "Show or export the recorded history of a run.",
    "outbox": "List and retry events of the outbox.",
    "migrate": "Show, print or apply migrations.",
}
DEFAULTS = {"history": "show", "outbox": "list", "migrate": "status"}
READ_STDIN = ("start", "send", "publish", "sql")  # the commands with values for which `-` is the standard input
