# mypy: ignore-errors
"""Mistakes in definitions: decorators, settings, and functions that are none."""

import datetime
import functools

from perdure import Retry, activity, workflow
from tests.mistakes.catalogue import mistake, without


@mistake("a workflow that is a plain function")
def _():
    @workflow
    def ship(order_id: str): ...


@mistake("a method as a workflow")
def _():
    class Service:
        @workflow
        async def ship(self, order_id: str): ...


@mistake("a method as an activity")
def _():
    class Service:
        @activity
        async def pack(self, order_id: str): ...


@mistake("a bound method as an activity")
def _():
    class Service:
        def pack(self, order_id: str): ...

    activity(Service().pack)


@mistake("a static method as an activity")
def _():
    class Service:
        @activity
        @staticmethod
        def pack(order_id: str): ...


@mistake("an async generator as a workflow")
def _():
    @workflow
    async def ship(order_id: str):
        yield order_id


@mistake("a generator as an activity")
def _():
    @activity
    def pack(order_id: str):
        yield order_id


@mistake("a lambda as an activity")
def _():
    activity(lambda order_id: order_id)


@mistake("a partial as an activity")
def _():
    activity(functools.partial(print, "packed"))


@mistake("a name as the decorator's argument")
def _():
    @activity("pack")
    def do_pack(order_id: str): ...


@mistake("both decorators on a function")
def _():
    @workflow
    @activity
    async def ship(order_id: str): ...


@mistake("two workflows with one name")
def _():
    @workflow(name="ship")
    async def ship_by_air(order_id: str): ...

    @workflow(name="ship")
    async def ship_by_sea(order_id: str): ...


@mistake("two activities with one name")
def _():
    activity(pack)
    activity(name="pack")(wrap)


@mistake("an empty name")
def _():
    @activity(name="")
    def pack(order_id: str): ...


@mistake("a name that is no text")
def _():
    @workflow(name=7)
    async def ship(order_id: str): ...


@mistake("a name that is too long")
def _():
    @workflow(name="ship" * 100)
    async def ship(order_id: str): ...


@mistake("a number of attempts as retry=")
def _():
    @activity(retry=3)
    def pack(order_id: str): ...


@mistake("a Retry without attempts")
def _():
    Retry(attempts=0)


@mistake("a Retry with a negative pause")
def _():
    Retry(initial=-1)


@mistake("a Retry that gives up on one class, not a tuple")
def _():
    Retry(give_up_on=ValueError)


@mistake("an unknown setting of an activity")
def _():
    @activity(retries=3)
    def pack(order_id: str): ...


@mistake("a retry policy for a workflow")
def _():
    @workflow(retry=Retry())
    async def ship(order_id: str): ...


@mistake("a text as timeout=")
def _():
    @activity(timeout="10s")
    def pack(order_id: str): ...


@mistake("a text as transactional=")
def _():
    @activity(transactional="yes")
    def pack(order_id: str): ...


@mistake("max_tries=0")
def _():
    @workflow(max_tries=0)
    async def ship(order_id: str): ...


@mistake("a cron expression with four fields")
def _():
    @workflow(cron="0 9 * *")
    async def report(): ...


@mistake("a cron expression that is no text")
def _():
    @workflow(cron=60)
    async def report(): ...


@mistake("a time zone that does not exist")
def _():
    @workflow(cron="0 9 * * *", zone="Berlin")
    async def report(): ...


@mistake("a time zone without a schedule")
def _():
    @workflow(zone="Europe/Berlin")
    async def report(): ...


@mistake("a scheduled workflow with a required parameter")
def _():
    @workflow(cron="0 9 * * *")
    async def report(recipient: str): ...


@mistake("a schedule without the package cronsim")
def _():
    with without("cronsim"):

        @workflow(cron="0 9 * * *")
        async def report(): ...


@mistake("datetime.now() in a strict workflow")
def _():
    @workflow(strict=True)
    async def report():
        return datetime.datetime.now()


@mistake("a compensation with a parameter that the activity does not have")
def _():
    @activity
    def reserve(item: str): ...

    @reserve.compensation
    def release(order_id: str): ...


@mistake("a failure handler with a parameter that it is not given")
def _():
    @workflow
    async def ship(order_id: str): ...

    @ship.on_failure
    def tell(reason: str): ...


def pack(order_id: str): ...


def wrap(order_id: str): ...
