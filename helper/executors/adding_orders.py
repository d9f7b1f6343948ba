"""What the head orders of a worker that adds updates up, and what it gets back. They only travel sealed.

    order = write_order(adding, segment)                # the head, which sends the frames beside it
    answer = added(order, frames, interrupt)            # the worker
    summed = read_added(answer, adding, records)        # the head, which checks what can be checked

An order holds all that it takes, so any worker can do it, and do it again. How long an answer is follows from
the form of the task's updates.
"""

import os
from dataclasses import field
from typing import Annotated, Final

from pydantic import Field

from helper.datasets.frames import SealedPlace, SealedSegment, open_segment
from helper.datasets.updates import shape_of
from helper.executors.executor import Adding, SummedUpdates
from helper.executors.orders import Count, Message, bits, elements, flags, read, write
from helper.executors.summing import sum_updates
from maskedlark.canonical import Bytes32, canonical
from maskedlark.errors import InvalidTask
from maskedlark.frozen import frozen
from maskedlark.interrupt import Interrupt
from maskedlark.numbers.field import to_bytes
from maskedlark.reports.updates import UpdateForm

ADD: Final = b"add"


@canonical
class AddingOrder:
    """The sum of a segment's shares of a round; flags follow, which of its records are in the dataset.

    Attributes:
        order_id: Names the order.
        form: What the task's update reports hold.
        role: Whose shares they are.
        task_id: The task's.
        header: See `SealedPlace`.
        number: See `SealedPlace`.
        records: See `SealedPlace`.
        key: Opens its frames.
    """

    order_id: Bytes32
    form: UpdateForm
    role: Annotated[int, Field(ge=0, le=1)]
    task_id: Bytes32
    header: Annotated[bytes, Field(max_length=1024)]
    number: Count
    records: Count
    key: Bytes32 = Field(repr=False)


@canonical
class _Added:
    """Of how many shares the sum is that follows."""

    records: Count


@frozen(eq=False)
class WrittenOrder:
    """An order and its name."""

    order_id: bytes
    encoded: bytes = field(repr=False)


def write_order(adding: Adding, segment: SealedSegment) -> WrittenOrder:
    """Write an order for a segment's shares, under a name of its own."""
    order = AddingOrder(
        order_id=os.urandom(32),
        form=adding.form,
        role=adding.role,
        task_id=adding.task_id,
        header=segment.place.header,
        number=segment.place.number,
        records=segment.place.records,
        key=segment.key,
    )
    return WrittenOrder(order_id=order.order_id, encoded=write(order, [bits(segment.is_chosen)]))


def add(message: Message, frames: bytes, interrupt: Interrupt) -> bytes:
    """Do an order of `write_order`; the answer.

    Raises:
        InvalidTag, ValueError: the frames are not those of the order.
    """
    order: AddingOrder = message.head
    (chosen,) = message.parts
    place = SealedPlace(header=order.header, number=order.number, records=order.records)
    rows = open_segment(shape_of(order.form.payload_bytes(order.role)), place, order.key, frames)
    rows = rows.rows(flags(chosen, order.records))
    adding = Adding(form=order.form, role=order.role, task_id=order.task_id)
    summed = sum_updates(adding, [rows], interrupt)
    return write(_Added(records=summed.records), [to_bytes(summed.vector)])


def read_added(answer: bytes, adding: Adding, records: int) -> SummedUpdates:
    """Read a worker's answer, if it is a sum of so many shares in this form.

    Raises:
        InvalidTask: it is not.
    """
    message = read(_Added, answer)
    if message.head.records != records or len(message.parts) != 1:
        raise InvalidTask("an answer is not a sum of the shares that were sent")
    return SummedUpdates(vector=elements(message.parts[0], adding.form.length), records=records)
