"""A parcel with a field of every kind that needs its type hint to be decoded, and a workflow that packs it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from uuid import UUID

from perdure import Retry, activity, wait_event, workflow

packed_parcels: list["Parcel"] = []


class Colour(Enum):
    RED = "red"


@dataclass
class Parcel:
    id: UUID
    weight: Decimal
    sent_at: datetime
    colour: Colour
    parts: list["Parcel"]
    seal: bytes
    note: str | int | None = None


PARCEL = Parcel(UUID(int=7), Decimal("1.50"), datetime(2026, 1, 2, tzinfo=UTC), Colour.RED, [], b"\x00\xff", note=3)


@activity(retry=Retry(attempts=1))
async def pack(parcel: Parcel) -> Parcel:
    packed_parcels.append(parcel)
    parcel.parts.append(Parcel(**{**vars(parcel), "parts": []}))
    return parcel


@workflow(name="parcels.packed")
async def packed(parcel: Parcel) -> tuple[Parcel, int]:
    found = await pack(parcel)
    await wait_event("go")
    return found, len(parcel.parts)
