"""A workflow with transactional steps, for the process whose power is cut and for the one that resumes its runs."""

from perdure import activity, activity_info, connection, workflow


@activity
async def weigh(number: int) -> int:
    return number * 2


@activity(transactional=True)
async def pay(number: int) -> int:
    """Its row and its result are one commit."""
    info = activity_info()
    sql = f"INSERT INTO effects (nonce, run) VALUES ('{info.idempotency_key}', '{info.workflow_id}')"
    connection().execute(sql)
    return number + 1


@workflow(name="power.order")
async def order(number: int) -> int:
    total = await weigh(number)
    for _ in range(3):
        total = await pay(total)
    return total
