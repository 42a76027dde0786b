"""A batch into a command buffer.

The stream has decided what each row needs (`model.BARRIER`, `INIT`, `DIRECT`); here it is done. What the command
buffer and the rings really hold is kept track of here as well, and trusted more than INIT: after a row that failed
half-way the next one with its token brings its own descriptors.
"""

from __future__ import annotations

import logging
from typing import Any

from vkqueue.errors import DeviceLostError, InternalError, NotFoundError, VkqueueError
from vkqueue.gpu.buffers import Buffers
from vkqueue.gpu.commands import Commands
from vkqueue.gpu.descriptors import Descriptors
from vkqueue.gpu.device import Device
from vkqueue.gpu.frame import Frame
from vkqueue.gpu.layout import PipelineLayout
from vkqueue.gpu.mirrored import mirror
from vkqueue.gpu.order import Order
from vkqueue.gpu.payload import Payloads
from vkqueue.gpu.pipeline import Pipeline, PipelineTable
from vkqueue.gpu.transfers import Transfers
from vkqueue.model import BARRIER, DIRECT, DISPATCH, GRAPH, MANY, Batch, Completion, Row, Token

log = logging.getLogger("vkqueue.gpu")

_COMPUTE_STAGE = 0x20  # VK_SHADER_STAGE_COMPUTE_BIT
_COMPUTE_POINT = 1  # VK_PIPELINE_BIND_POINT_COMPUTE
_NOTHING = object()
_OPS = ("dispatch", "write", "read", "fill", "copy", "create", "free", "graph", "dispatch_many")


class Recorder:
    """Records batches for one device.

    Args:
        buffers: clients', to know whether the host reads or writes them directly.

    Attributes:
        gone: pipelines that were released and may not be named any more.
    """

    def __init__(
        self,
        device: Device,
        pipelines: PipelineTable,
        descriptors: Descriptors,
        payloads: Payloads,
        transfers: Transfers,
        commands: Commands,
        buffers: Buffers,
    ) -> None:
        self._raw = device.raw
        self._pipelines = pipelines
        self._descriptors = descriptors
        self._payloads = payloads
        self._transfers = transfers.by_op
        self._commands = commands
        self._labels = device.debug_labels
        self._timestamps = device.timestamp_period > 0
        self._buffers = buffers
        self._order = Order(commands)
        self._owed = False  # a barrier that the stream counts on was recorded in a batch that was not submitted
        self.gone: set[int] = set()

    def record(self, batch: Batch, frame: Frame, completion: Completion) -> bool:  # noqa: C901
        """Do the host's part of a batch and record the device's; whether there is anything to submit.

        One loop for all rows, with what a plain launch needs in local variables: this runs once per job, and
        a call costs as much as one of Vulkan's.

        Raises:
            DeviceLostError
            OutOfDeviceMemoryError: a command buffer could not be begun or finished.
        """
        raw, commands, order = self._raw, self._commands, self._order
        bind_pipeline, push_constants, dispatch = raw.cmd_bind_pipeline, raw.cmd_push_constants, raw.cmd_dispatch
        push_descriptors = raw.cmd_push_descriptor_set_with_template
        packed = self._descriptors.packed
        main = frame.main_param
        errors = completion.errors
        labels = self._labels
        timed = frame.timed = batch.timed and self._timestamps
        closing = labels or timed
        work = barrier_used = labelled = False
        # What the command buffer holds: the pipeline bound, its layout, the token whose descriptors are bound and the
        # constants pushed. Other layouts are taken to disturb both, which the specification lets them do.
        bound_id: int | None = None
        layout: PipelineLayout | None = None
        shape: Any = None
        bound_token: Any = None
        bound_constants: Any = _NOTHING
        template: Any = None
        vk_layout: Any = None
        push_set = push_bytes = 0
        ringed = False

        for index, row, flags, slot in zip(range(len(batch.rows)), batch.rows, batch.flags, batch.slots, strict=True):
            try:
                session, _, op, token, target, constants, grid, payload, _, options = row
                moves = op != DISPATCH and op != MANY and not flags & DIRECT and (op != GRAPH or target.moves)
                if moves or flags & BARRIER:
                    if not frame.begun:
                        self._begin(frame)  # which may record a barrier: it stands before what moves
                    if order.before(main, flags & BARRIER != 0, moves):
                        barrier_used = True
                if labels:
                    if not frame.begun:
                        self._begin(frame)
                    commands.begin_label(main, _label(row))
                    labelled = True
                if op != DISPATCH:
                    direct = flags & DIRECT != 0
                    if not (direct or frame.begun):
                        self._begin(frame)
                    if op == GRAPH or op == MANY:  # their commands leave bound what they like
                        bound_id = layout = bound_token = None
                        bound_constants = _NOTHING
                    if self._transfers[op](frame, completion, index, row, direct):
                        work = True
                else:
                    if target != bound_id:
                        pipeline = self._pipeline(target)
                        if not frame.begun:
                            self._begin(frame)
                        bind_pipeline(main, _COMPUTE_POINT, pipeline.handle_param)
                        bound_id = target
                        if pipeline.layout is not layout:
                            layout = pipeline.layout
                            bound_token, bound_constants = None, _NOTHING
                            shape = layout.layout
                            vk_layout = layout.handle_param
                            template, push_set = layout.push_template_param, layout.push_set or 0
                            push_bytes = layout.push_constant_bytes
                            ringed = bool(layout.rings)
                    if token is not bound_token:
                        if token.layout is not shape:
                            raise InternalError(f"token {token.id} was made for another layout than its pipeline's")
                        bound_token = None
                        if payload is None:
                            data = packed.get(token.id)
                            if data is None:
                                data = self._descriptors.pack(token)
                        else:
                            data = self._place(frame, index, session, token, payload)
                        if template is not None:
                            push_descriptors(main, template, vk_layout, push_set, data)
                        if ringed:
                            self._bind_slot(main, layout, slot, token, data)
                        if payload is None:
                            bound_token = token
                    if constants != bound_constants and push_bytes:
                        if len(constants) != push_bytes:
                            raise InternalError(f"{len(constants)} bytes of constants for a block of {push_bytes}")
                        push_constants(main, vk_layout, _COMPUTE_STAGE, 0, push_bytes, constants)
                        bound_constants = constants
                    x, y, z = grid
                    if x and y and z:
                        work = True
                        if options is None or not options.timing or not self._timestamps:
                            dispatch(main, x, y, z)
                        else:
                            started = frame.start_timing(index)
                            dispatch(main, x, y, z)
                            frame.stop_timing(started)
            except VkqueueError as error:
                if frame.broken or isinstance(error, DeviceLostError):
                    raise
                errors[index] = error
            except Exception as error:
                log.exception("row %d of batch %d could not be recorded", index, batch.serial)
                errors[index] = InternalError(f"the job could not be recorded: {type(error).__name__}: {error}")
            if closing:
                if labelled:
                    commands.end_label(main)
                    labelled = False
                if timed and frame.begun:
                    frame.mark(index)

        if work or frame.setup_used:
            if self._buffers.mirrored:
                mirror(self._buffers.mirrored, batch.rows, frame, completion)
            self._finish(frame)
            return True
        self._owed = self._owed or barrier_used
        return False

    def submitted(self, done: bool) -> None:
        """Told whether what `record` recorded was submitted."""
        # If not, the stream still counts on barriers that never happened: the next batch begins with one.
        self._owed = not done

    def _begin(self, frame: Frame) -> None:
        frame.begin(frame.main)
        frame.begun = True
        if frame.timed:
            frame.mark(-1)
        if self._owed:
            self._order.full(frame.main_param)

    def _finish(self, frame: Frame) -> None:
        commands, main = self._commands, frame.main_param
        if not frame.begun:
            self._begin(frame)
        if frame.setup_used:
            commands.close_setup(frame)
        if frame.copies_out:
            self._order.before(main, wanted=True, moves=True)
            for scratch, result in frame.copies_out:
                source, target = scratch.block.buffer, result.block.buffer
                commands.copy(main, source, scratch.offset, target, result.offset, result.size)
            frame.host_sees = True
        if frame.host_sees or self._buffers.host_sees:
            commands.barrier_to_host(main)
        frame.end(frame.main)

    def _pipeline(self, id: int) -> Pipeline:
        pipeline = self._pipelines.get(id)
        if pipeline is None or id in self.gone:
            raise NotFoundError(f"pipeline {id} was never built or is gone", {"pipeline": id})
        return pipeline

    def _place(self, frame: Frame, index: int, session: object, token: Token, payload: Any) -> bytes:
        """Descriptors of a launch with transient entries, whose results are noted."""
        places, results = self._payloads.place(frame, session, payload)
        data = self._descriptors.pack(token, places)
        if results:
            frame.results.append((index, results))
        return data

    def _bind_slot(self, main: Any, layout: PipelineLayout | None, slot: int, token: Token, data: bytes) -> None:
        assert layout is not None
        ring = self._descriptors.slot(layout, slot, token, data)
        bind = self._raw.cmd_bind_descriptor_sets
        for first, count, sets in ring.bindings(slot):
            bind(main, _COMPUTE_POINT, layout.handle_param, first, count, sets, 0, None)


def _label(row: Row) -> str:
    """Names the job for a debugger: what it is, the client's session and message, the client's own label."""
    session, msgid, op, _, target, _, _, _, _, options = row
    what = f"{_OPS[op]} {target}" if op == DISPATCH else _OPS[op]
    text = f"{what}, session {session}, job {msgid}"
    return f"{text}, {options.label}" if options is not None and options.label else text
