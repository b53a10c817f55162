"""Encode and decode the fields of records that hold values of users. No I/O but that of the codecs.

Ids, names, states and times stay as they are, as do rows of a history that hold nothing of a user: the storage and
programs without the codec read them.
"""

import json
from dataclasses import replace

import msgspec

from perdure.codecs.pipeline import Pipeline
from perdure.model.envelopes import BINARY_MARK, ESCAPED_MARK, MARK, PREFIX, Envelope, message_place, run_place
from perdure.model.limits import METADATA_MAX, PAYLOAD_MAX
from perdure.model.records import (
    ArchivedHistoryEvent,
    ChannelMessage,
    CompensationEntry,
    HistoryEvent,
    HistoryEventType,
    OutboxEvent,
    OutgoingMessage,
    ParentLink,
    StuckInstance,
    WorkflowInstance,
)
from perdure.storage.channels import json_text

# Rows that hold times and names only. The last three are written by the engine, which is above this layer.
PLAIN_TYPES = frozenset(
    (
        HistoryEventType.TIMER_EXPIRED,
        HistoryEventType.MESSAGE_TIMEOUT,
        HistoryEventType.COMPENSATION_EXECUTED,
        "Deadline",
        "Until",
        "Parent",
    )
)
NO_VALUES = (b"null", b"{}", b'{"result": null}')
_RECEIVED = (HistoryEventType.CHANNEL_MESSAGE_RECEIVED, HistoryEventType.EVENT_RECEIVED)
_ENDED = (HistoryEventType.WORKFLOW_FAILED, HistoryEventType.WORKFLOW_CANCELLED)  # with a text that the storage wraps
_END_CHANNEL = "~"  # of a child; no wait selects its messages by their data

_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Fields:
    """Transform records with the codecs of a pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._encode = pipeline.encode
        self._decode = pipeline.decode

    # Instances.

    def encoded_instance(self, instance: WorkflowInstance) -> WorkflowInstance:
        """Return an instance to be stored."""
        output = instance.output_data
        return replace(
            instance,
            input_data=self.encoded_input(instance.instance_id, instance.input_data),
            output_data=None if output is None else self.encoded_output(instance.instance_id, output),
        )

    def encoded_input(self, instance_id: str, data: bytes) -> bytes:
        """Return the input of an instance to be stored."""
        return self._json(data, run_place(instance_id, "input"), "input_data")

    def encoded_output(self, instance_id: str, data: bytes) -> bytes:
        """Return the output of an instance to be stored."""
        return self._json(data, run_place(instance_id, "output"), "output_data")

    def decoded_instance(self, row: WorkflowInstance) -> WorkflowInstance:
        """Return an instance as it was given to be stored."""
        output = row.output_data
        if not row.input_data.startswith(MARK) and not (output is not None and output.startswith(MARK)):
            return row
        return replace(
            row,
            input_data=self._decode(row.input_data, run_place(row.instance_id, "input")),
            output_data=None if output is None else self._decode(output, run_place(row.instance_id, "output")),
        )

    # Histories.

    def encoded_event(self, event: HistoryEvent) -> HistoryEvent:
        """Return a history event to be stored."""
        place = run_place(event.instance_id, event.activity_id)
        if event.data_type == "binary" and event.event_data_binary is not None:
            binary = self.pipeline.encode_binary(event.event_data_binary, place, "event_data_binary")
            return replace(event, event_data_binary=binary)
        if event.event_type in PLAIN_TYPES or event.event_data is None:
            return event
        return replace(event, event_data=self._json(event.event_data, place, "event_data"))

    def decoded_event(self, row: HistoryEvent) -> HistoryEvent:
        """Return a history event as it was given to be stored."""
        data, binary = row.event_data, row.event_data_binary
        found = self._decoded_data(row.instance_id, row.activity_id, row.event_type, data)
        if row.data_type == "binary" and binary is not None and binary.startswith(BINARY_MARK):
            return replace(row, event_data=found, event_data_binary=self._decoded_binary(row, found, binary))
        return row if found is data else replace(row, event_data=found)

    def decoded_archived(self, row: ArchivedHistoryEvent) -> ArchivedHistoryEvent:
        """Return an archived event as it was given to be stored."""
        event = self.decoded_event(
            HistoryEvent(
                row.instance_id,
                row.activity_id,
                row.event_type,
                row.event_data,
                row.event_data_binary,
                row.data_type,
            )
        )
        return replace(row, event_data=event.event_data, event_data_binary=event.event_data_binary)

    def _decoded_data(self, instance_id: str, activity_id: str, kind: str, data: bytes | None) -> bytes | None:
        if data is None:
            return None
        if data.startswith(MARK):
            return self._decode(data, run_place(instance_id, activity_id))
        if kind in _RECEIVED and MARK in data:
            return self._decoded_message(data)
        if kind in _ENDED and ESCAPED_MARK in data:
            return self._decoded_reason(instance_id, data)
        return data

    def _decoded_message(self, data: bytes) -> bytes:
        """Return the row of a received message: the storage has put the stored data and metadata into it."""
        fields = {name: bytes(raw) for name, raw in _raw_fields.decode(data).items()}
        place = message_place(_channel_of(fields))
        for name, at in (("data", place), ("payload", place), ("metadata", f"{place}/metadata")):
            if name in fields:
                fields[name] = self._decode(fields[name], at)
        return _joined(fields)

    def _decoded_binary(self, row: HistoryEvent, data: bytes | None, binary: bytes) -> bytes:
        """Return bytes that are not JSON: of a message, which has the place of its channel, or of another event."""
        if row.event_type in _RECEIVED and data:
            fields = {name: bytes(raw) for name, raw in _raw_fields.decode(data).items()}
            found = self._decode(binary, message_place(_channel_of(fields)))
            if not found.startswith(BINARY_MARK):
                return found
        return self._decode(binary, run_place(row.instance_id, row.activity_id))

    def _decoded_reason(self, instance_id: str, data: bytes) -> bytes:
        """Return the row of an end: the storage has put a stored text into it."""
        fields = json.loads(data)
        for name, value in fields.items():
            if isinstance(value, str):
                fields[name] = self.decoded_text(value, run_place(instance_id, "reason"))
        return json.dumps(fields, ensure_ascii=False).encode()

    # Messages, outbox and compensations.

    def encoded_message(self, message: OutgoingMessage) -> OutgoingMessage:
        """Return a message to be published. Storages match messages by their data, so these are not offloaded."""
        place, inline = message_place(message.channel), not message.channel.startswith(_END_CHANNEL)
        encode = self.pipeline.encode_binary if message.binary else self._encode
        about = message.metadata
        if not message.binary:
            json_text(message.data, "data", PAYLOAD_MAX)
        if about is not None:
            json_text(about, "metadata", METADATA_MAX)
            about = self._encode(about, f"{place}/metadata", "metadata", inline=True, longest=METADATA_MAX)
        return replace(message, data=encode(message.data, place, "data", inline=inline), metadata=about)

    def decoded_message(self, row: ChannelMessage) -> ChannelMessage:
        """Return a message as it was published."""
        place = message_place(row.channel)
        return replace(
            row,
            data=row.data and self._decode(row.data, place),
            data_binary=row.data_binary and self._decode(row.data_binary, place),
            metadata=row.metadata and self._decode(row.metadata, f"{place}/metadata"),
        )

    def encoded_outbox(self, event: OutboxEvent) -> OutboxEvent:
        """Return an event of the outbox to be stored."""
        place, data, binary = f"outbox {event.event_id}", event.event_data, event.event_data_binary
        if data is not None:
            data = self._encode(data, place, "event_data")
        if binary is not None:
            binary = self.pipeline.encode_binary(binary, place, "event_data_binary")
        return replace(event, event_data=data, event_data_binary=binary)

    def decoded_outbox(self, row: OutboxEvent) -> OutboxEvent:
        """Return an event of the outbox as it was given to be stored."""
        place, data, binary = f"outbox {row.event_id}", row.event_data, row.event_data_binary
        return replace(
            row,
            event_data=data and self._decode(data, place),
            event_data_binary=binary and self._decode(binary, place),
            last_error=row.last_error and self.decoded_text(row.last_error, f"{place}/error"),
        )

    def encoded_compensation(self, entry: CompensationEntry) -> CompensationEntry:
        """Return a compensation to be stored."""
        place = run_place(entry.instance_id, f"compensation {entry.activity_id}")
        return replace(entry, args=self._json(entry.args, place, "args"))

    def decoded_compensation(self, row: CompensationEntry) -> CompensationEntry:
        """Return a compensation as it was given to be stored."""
        place = run_place(row.instance_id, f"compensation {row.activity_id}")
        return replace(row, args=self._decode(row.args, place))

    def encoded_parent(self, parent: ParentLink | None) -> ParentLink | None:
        """Return what a parent needs of its child, to be stored."""
        if parent is None or parent.compensation is None:
            return parent
        return replace(parent, compensation=self.encoded_compensation(parent.compensation))

    def decoded_stuck(self, row: StuckInstance | None) -> StuckInstance | None:
        """Return why an instance is stuck."""
        return row and replace(row, reason=self.decoded_text(row.reason, run_place(row.instance_id, "stuck")))

    # Texts.

    def encoded_text(self, text: str, place: str, kind: str, longest: int = PAYLOAD_MAX) -> str:
        """Return a text for people, which may quote values, to be stored; an empty one stays empty."""
        if not isinstance(text, str) or not text:
            return text
        found = self._encode(json.dumps(text, ensure_ascii=False).encode(), place, kind, inline=True, longest=longest)
        if not found.startswith(MARK) and text.startswith(PREFIX):  # it looks like an envelope, so it gets one
            found = Envelope((), found).text()
        return found.decode() if found.startswith(MARK) else text

    def decoded_text(self, text: str, place: str) -> str:
        """Return a text as it was given to be stored; an envelope if it cannot be decoded."""
        if not text.startswith(PREFIX):
            return text
        found = self._decode(text.encode(), place)
        return found.decode() if found.startswith(MARK) else str(json.loads(found))

    def _json(self, data: bytes, place: str, kind: str) -> bytes:
        """Return JSON to be stored; the same for a few texts that say nothing."""
        return data if data in NO_VALUES else self._encode(data, place, kind)


def _channel_of(fields: dict[str, bytes]) -> str:
    return str(json.loads(fields.get("channel") or fields.get("channel_name") or b'""'))


def _joined(fields: dict[str, bytes]) -> bytes:
    return b"{" + b", ".join(json.dumps(name).encode() + b": " + raw for name, raw in fields.items()) + b"}"
