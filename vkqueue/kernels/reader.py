"""The parser's state while it reads a module, shared by the handlers of declarations and of function bodies."""

from __future__ import annotations

from vkqueue.kernels.grammar import SHAPES, Operand, Walk
from vkqueue.kernels.module import Function, Module, Op, Type

# Sections of a module in the order the specification prescribes; an instruction's rank is its section.
CAPABILITIES, EXTENSIONS, IMPORTS, MODEL, ENTRIES, MODES, DEBUG, ANNOTATIONS, GLOBALS, FUNCTIONS = range(10)
MODULE = 10
"""Ranks below belong to a section."""
STRUCTURE = 20
"""Functions, parameters, labels: the handler knows where they may stand."""
BODY = 30
"""Within a block."""
ANYWHERE = 31
"""Within a block, or among the globals."""

_SECTIONS = {
    CAPABILITIES: (Op.CAPABILITY,),
    EXTENSIONS: (Op.EXTENSION,),
    IMPORTS: (Op.EXT_INST_IMPORT,),
    MODEL: (Op.MEMORY_MODEL,),
    ENTRIES: (Op.ENTRY_POINT,),
    MODES: (Op.EXECUTION_MODE, Op.EXECUTION_MODE_ID),
    DEBUG: (Op.NAME, Op.MEMBER_NAME, Op.STRING, 2, 3, 4, 330),
    ANNOTATIONS: (
        Op.DECORATE, Op.MEMBER_DECORATE, Op.DECORATION_GROUP, Op.GROUP_DECORATE, Op.GROUP_MEMBER_DECORATE,
        Op.DECORATE_ID, Op.DECORATE_STRING, Op.MEMBER_DECORATE_STRING,
    ),
    # Constants, and OpType: those of extensions have numbers all over, and come here by their names.
    GLOBALS: (*range(19, 40), *range(41, 53)),
    STRUCTURE: (Op.FUNCTION, Op.FUNCTION_PARAMETER, Op.FUNCTION_END, Op.LABEL),
    ANYWHERE: (Op.VARIABLE, Op.UNDEF, Op.EXT_INST, Op.EXT_INST_FORWARD, Op.LINE, Op.NO_LINE, Op.NOP),
}  # fmt: skip

MAX_NAME = 200
"""Characters kept of a name. Arbitrary; names are repeated for every member of a nested structure."""


def _ranks() -> dict[int, int]:
    ranks = {int(op): rank for rank, ops in _SECTIONS.items() for op in ops}
    for op, shape in SHAPES.items():
        if shape.name.startswith(("Type", "ConstantComposite", "SpecConstantComposite", "UntypedVariable")):
            ranks.setdefault(op, GLOBALS)
    return ranks


class Reader:
    """State of one parse.

    Attributes:
        operands: of the instruction at hand, when it was walked.
        function: the one being read, else `nowhere`.
        in_block: between a label and the end of its block.
        merge_at: place of a merge instruction that awaits its branch, else 0.
        forward_types, called: ids to be defined later, and where they were used first.
        same: structure of a type to the first type that has it.
    """

    ranks = _ranks()

    def __init__(self, module: Module) -> None:
        self.module = module
        self.words = module.words
        self.operands: list[Operand] = []
        self.nowhere = Function(0, 0, 0)
        self.function = self.nowhere
        self.in_block = False
        self.merge_at = 0
        self.section = CAPABILITIES
        self.has_memory_model = False
        self.forward_types: dict[int, int] = {}
        self.called: dict[int, int] = {}
        self.call_sites: list[int] = []
        self.same: dict[tuple[object, ...], int] = {}
        self.declared: set[int] = set()
        self.capability_set: set[int] = set()
        """The declared capabilities and those that they bring along."""
        self.constant_set: set[int] = set()
        self.constant_values: dict[int, int] = {}
        """Values of 32-bit integer OpConstants, for the indices of access chains."""
        self.modes: list[tuple[int, int, tuple[int, ...], int]] = []
        # Of the function being read: see bodies.
        self.labels: dict[int, int] = {}
        self.label = 0
        self.entry_label = 0
        self.edges: list[tuple[int, int, int]] = []
        self.targets: list[tuple[int, int]] = []
        self.phis: list[tuple[int, int]] = []
        self.parameters_left: list[int] = []
        self.homes: dict[int, int] = {}
        """Block in which each value of the function is made."""
        self.crossings: dict[tuple[int, int], tuple[int, int]] = {}
        """(block where a value is made, another where it is used) -> (the value, place of the use)."""
        self._number_words: dict[int, int] = {}
        self.walk = Walk(module.words, module.data, self._number_words)

    def set_number_words(self, type_id: int, width: int) -> None:
        """Record how many words a literal of a numeric type takes."""
        self._number_words[type_id] = 2 if width > 32 else 1

    def switch_words(self, at: int) -> int:
        """Words of each literal of the OpSwitch at a place."""
        return self._number_words.get(self.module.type_of.get(self.words[at + 1], 0), 1)

    def type_of(self, id: int) -> Type:
        """The type of a value."""
        return self.module.types[self.module.type_of[id]]

    def same_type(self, a: int, b: int) -> bool:
        """Whether two types have one structure."""
        return a == b or self.module.types[a].same == self.module.types[b].same

    def use(self, at: int, id: int) -> None:
        """Check that an operand is a value, and note in which block it is used.

        Raises:
            InvalidError: not a value that is defined before.
        """
        if id not in self.module.type_of:
            raise self.module.fault(at, self.no_value(id))
        home = self.homes.get(id, self.label)
        if home != self.label:
            self.crossings.setdefault((home, self.label), (id, at))

    def no_value(self, id: int) -> str:
        """Why an id cannot be an operand."""
        if id in self.module.places:
            return f"id {id} is not a value"
        return f"id {id} is not defined before its use"

    def enter_section(self, at: int, rank: int) -> None:
        """Check that an instruction of a section does not come after a later section."""
        if rank < self.section:
            raise self.module.fault(at, "out of order; the sections of a module have a fixed sequence")
        self.section = rank

    def name(self, place: int, count: int) -> str:
        """The string operand of `count` words at a place, cut to MAX_NAME; what is not UTF-8 is replaced."""
        raw = self.module.data[place * 4 : (place + count) * 4]
        return raw[: raw.find(0)][: 4 * MAX_NAME].decode("utf-8", "replace")[:MAX_NAME]
