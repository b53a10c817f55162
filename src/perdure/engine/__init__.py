"""The engine: workflows and activities on the storage contract.

`definitions` is what users decorate, `calls` what they call in a body, `app` what they open. A `run` drives one
instance: its body on a `loop` of its own, its writes through a `journal`. A `worker` drives many runs and does the
duties that all workers share; `heartbeat` keeps their leases.
"""
