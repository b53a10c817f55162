"""Message brokers: where the outbox is published to, and where events come from.

A publisher passes the events of the outbox to a broker or a webhook: `App(publisher="nats://…")`. A `Subscription`
stores the messages of a broker as events or channel messages: `App(subscriptions=[Subscription("nats://…")])`. Each
broker has a module with both. The client library of a broker is an extra, imported when its URL is first used.
"""

from perdure.brokers.http import HTTPPublisher
from perdure.brokers.incoming import BrokerMessage, ToChannel, ToEvent
from perdure.brokers.publishing import Publisher, publisher_for
from perdure.brokers.subscription import Subscription

__all__ = ["BrokerMessage", "HTTPPublisher", "Publisher", "Subscription", "ToChannel", "ToEvent", "publisher_for"]
