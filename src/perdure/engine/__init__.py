"""The engine: workflows and activities on the storage contract.

Users decorate functions with `definitions`, use `calls` in a workflow's body and open an `app`. A `run` executes one
instance: its body on an event `loop` of its own, its writes through a `journal`. A `worker` executes many runs and does
its share of the background work (timers, cron ticks, retention); `heartbeat` renews the leases.
"""
