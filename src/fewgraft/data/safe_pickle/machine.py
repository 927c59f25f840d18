"""The machine that opcodes work on; the memory it may take is bounded by the file's size."""

import struct
from typing import Any

from fewgraft.data.safe_pickle.inert import MARK, DamagedError

FREE, PER_BYTE = 256 << 20, 8  # memory that is granted: so much, and so much per byte of the file


class Machine:
    """A stack, a memo and a place in the bytes."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.place = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.steps = 0
        self._granted = FREE + PER_BYTE * len(data)

    def spend(self, size: int) -> None:
        """Account for memory before it is taken."""
        self._granted -= size
        if self._granted < 0:
            raise DamagedError("it asks for far more memory than its size explains")

    def push(self, value: Any, size: int = 64) -> None:
        """Put a value of so many bytes on the stack."""
        self.spend(size)
        self.stack.append(value)

    def pop(self) -> Any:
        """Take the top of the stack."""
        if not self.stack or self.stack[-1] is MARK:
            raise DamagedError("something is missing on its stack")
        return self.stack.pop()

    def top(self, kind: type) -> Any:
        """The top of the stack, which stays there."""
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise DamagedError(f"there is no {kind.__name__} to add to")
        return self.stack[-1]

    def pop_items(self) -> list[Any]:
        """All that is above the last mark; the mark goes too."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is MARK:
                items = self.stack[place + 1 :]
                del self.stack[place:]
                return items
        raise DamagedError("a mark is missing on its stack")

    def bytes(self, count: int) -> memoryview:
        """The next bytes, without a copy."""
        if count < 0 or count > len(self.data) - self.place:
            raise DamagedError("it ends too early")
        self.place += count
        return self.data[self.place - count : self.place]

    def number(self, layout: struct.Struct) -> Any:
        """The next number."""
        return layout.unpack(self.bytes(layout.size))[0]

    def line(self) -> memoryview:
        """The bytes up to the next line end."""
        start = self.place
        step = 4096
        while self.place < len(self.data):
            found = bytes(self.data[self.place : self.place + step]).find(b"\n")
            if found >= 0:
                self.place += found + 1
                return self.data[start : self.place - 1]
            self.place += step
        raise DamagedError("it ends too early")
