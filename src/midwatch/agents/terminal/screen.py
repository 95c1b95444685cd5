"""The screen of a terminal: its text, the signals of the program, and the answers to the program's queries.

The terminal emulator is libghostty, used through pyghostty. No other module uses it. Lines that scroll off the screen
are kept, so that a long reply can be read completely. Each call of `feed` increments `version`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from midwatch.base.errors import BadConfig

MOST_LINES = 200_000
MOST_BYTES = 256 << 20
LONGEST_TITLE = 500
LONGEST_SIGNAL = 4096
STATUS = b"7501"  # the OSC sequence by which a program reports its status
PASTE_OFF = b"\x1b[?2004l"
CLEAR_HISTORY = b"\x1b[3J"
PALETTE = re.compile(r"\x1b\]4;\d+;[^\x1b]*\x1b\\")  # the emulator's own colours, which a viewer also has

SignalKind = Literal["program", "title", "bell", "progress", "paste_off"]


class Signal(NamedTuple):
    """What a program sends besides text: its status, a title, a bell, progress, or the end of paste mode."""

    kind: SignalKind
    value: str = ""


class Screen:
    """The emulator of one terminal. Only one event loop may use it."""

    def __init__(
        self,
        columns: int,
        rows: int,
        *,
        reply: Callable[[bytes], None] = lambda _: None,
        signal: Callable[[Signal], None] = lambda _: None,
    ) -> None:
        """Open a screen.

        `reply` is called with the answers to the program's queries, and `signal` with the program's signals in order.
        """
        self.version = 0
        self.title = ""
        self._signal, self._reply = signal, reply
        self._terminal, self._lib, self._ffi = _emulator(columns, rows)
        self._kept: list[Any] = []
        self._limit_history(MOST_BYTES)  # the default limit of the emulator is 10 000 bytes
        self._connect()

    # -- in ------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Process output of the program. The data may end in the middle of a character or of an escape sequence."""
        self.version += 1
        self._terminal.feed(data)
        if PASTE_OFF in data:
            self._signal(Signal("paste_off"))  # the mode may be on again at the end of the same piece

    def resize(self, columns: int, rows: int) -> None:
        """Change the size and wrap the lines again. If the lines then use too much memory, the oldest are removed."""
        self.version += 1
        self._limit_history(min(MOST_BYTES, MOST_BYTES * self.size[0] // columns))
        self._terminal.resize(columns, rows)
        self._limit_history(MOST_BYTES)

    def forget_history(self) -> None:
        """Forget the lines that have scrolled off the screen."""
        if self._number("vt_ground", "bool"):
            self._terminal.feed(CLEAR_HISTORY)

    def close(self) -> None:
        """Free the memory of the screen."""
        self._terminal.close()
        self._kept.clear()

    # -- out -----------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Return the text of the visible rows, without blanks at the end of each row."""
        return _bare(self._format(self._rows(0, self.size[1] - 1, "active")))

    def styled_text(self) -> str:
        """Return the text of the visible rows with the escape sequences for colours and styles."""
        vt = self._lib.GHOSTTY_FORMATTER_FORMAT_VT
        return PALETTE.sub("", self._format(self._rows(0, self.size[1] - 1, "active"), emit=vt))

    def read(self, first: int = 0) -> str:
        """Return the text from row `first` on, with wrapped lines joined. Row 0 is the oldest row that is kept."""
        last = self.height - 1
        return _bare(self._format(self._rows(first, last, "screen"), unwrap=True)) if first <= last else ""

    def tail(self, count: int) -> tuple[str, int]:
        """Return the last `count` rows, also those that have scrolled off, and how many of them have scrolled off.

        Blanks other than spaces stay at the ends of the rows, because they could be a part of a command.
        """
        first = max(self.height - max(count, self.size[1]), 0)
        text = self._format(self._rows(first, self.height - 1, "screen"))
        return text, self.height - self.size[1] - first

    def line_to_cursor(self) -> str:
        """Return the text in the cursor's row before the cursor."""
        column, row = self.cursor
        if column == 0:
            return ""
        return self._format(self._rows(row, row, "active", column - 1), trim=False)

    @property
    def height(self) -> int:
        """The number of rows that are kept, with those that have scrolled off the screen."""
        return self._number("total_rows", "size_t")

    @property
    def size(self) -> tuple[int, int]:
        """The size of the screen: columns and rows."""
        return self._number("cols"), self._number("rows")

    @property
    def cursor(self) -> tuple[int, int]:
        """The column and the row of the cursor on the screen, counted from 0."""
        return self._number("cursor_x"), self._number("cursor_y")

    @property
    def cursor_row(self) -> int:
        """The cursor's row. Row 0 is the oldest row that is kept."""
        return self.height - self.size[1] + self.cursor[1]

    @property
    def takes_paste(self) -> bool:
        """Whether the program has turned on bracketed paste mode."""
        return bool(self._terminal.mode(2004))

    # -- inside --------------------------------------------------------------------------------------------------

    def _limit_history(self, size: int) -> None:
        """Set the memory limit for lines that have scrolled off the screen.

        The emulator checks the limit when lines arrive and when the limit is set, but not when lines become wider.
        """
        option = self._lib.GHOSTTY_TERMINAL_OPT_SCROLLBACK_MAX_BYTES
        self._lib.ghostty_terminal_set(self._terminal._t[0], option, self._ffi.new("size_t*", size))

    def _number(self, name: str, ctype: str = "uint16_t") -> int:
        return int(self._terminal.get(name, ctype))

    def _rows(self, first: int, last: int, area: str, last_column: int | None = None) -> Any:
        from pyghostty.core import init_sized

        chosen = init_sized("GhosttySelection")
        chosen.start = self._terminal.ref(0, first, area)[0]
        chosen.end = self._terminal.ref(self.size[0] - 1 if last_column is None else last_column, last, area)[0]
        return chosen

    def _format(self, rows: Any, *, unwrap: bool = False, trim: bool = True, emit: int | None = None) -> str:
        from pyghostty.core import init_sized, read_buf

        lib = self._lib
        options = init_sized("GhosttyTerminalSelectionFormatOptions")
        options.emit = lib.GHOSTTY_FORMATTER_FORMAT_PLAIN if emit is None else emit
        options.unwrap, options.trim, options.selection = unwrap, trim, rows
        terminal = self._terminal._t[0]
        return str(
            read_buf(lambda b, n, out: lib.ghostty_terminal_selection_format_buf(terminal, options[0], b, n, out))
        )

    def _connect(self) -> None:
        """Register the emulator's callbacks for titles, bells and other signals."""
        terminal, lib, ffi = self._terminal, self._lib, self._ffi
        terminal.on_reply(self._reply)
        terminal.on_unknown_sequence(self._unknown, LONGEST_SIGNAL)
        bell = lambda *_: self._signal(Signal("bell"))  # noqa: E731
        handlers: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
            (lib.GHOSTTY_TERMINAL_OPT_TITLE_CHANGED, "GhosttyTerminalTitleChangedFn", self._change_title),
            (lib.GHOSTTY_TERMINAL_OPT_BELL, "GhosttyTerminalBellFn", bell),
            (lib.GHOSTTY_TERMINAL_OPT_PROGRESS_REPORT, "GhosttyTerminalProgressReportFn", self._report_progress),
            (lib.GHOSTTY_TERMINAL_OPT_COLOR_SCHEME, "GhosttyTerminalColorSchemeFn", self._report_scheme),
            (lib.GHOSTTY_TERMINAL_OPT_SIZE, "GhosttyTerminalSizeFn", self._report_size),
        )
        # the library parses all its declarations again for each text about types, so there is only one text
        types = ffi.typeof(f"void(*)({', '.join(name for _, name, _ in handlers)})").args
        for (option, _, handler), ctype in zip(handlers, types, strict=True):
            callback = ffi.callback(ctype, handler, onerror=terminal._on_cb_err)
            self._kept.append(callback)  # the library does not keep a reference to them
            lib.ghostty_terminal_set(terminal._t[0], option, callback)

    def _change_title(self, *_: Any) -> None:
        title = self._terminal.get("title", "GhosttyString")
        text = bytes(self._ffi.buffer(title.ptr, min(title.len, LONGEST_TITLE)))
        self.title = text.decode("utf-8", "replace")
        self._signal(Signal("title", self.title))

    def _report_progress(self, _: Any, __: Any, report: Any) -> None:
        self._signal(Signal("progress", str(int(report.state))))

    def _report_scheme(self, _: Any, __: Any, out: Any) -> bool:
        out[0] = self._lib.GHOSTTY_COLOR_SCHEME_DARK
        return True

    def _report_size(self, _: Any, __: Any, out: Any) -> bool:
        out.columns, out.rows = self.size
        out.cell_width, out.cell_height = 8, 16
        return True

    def _unknown(self, sequence: Any) -> None:
        command, _, rest = sequence.content.partition(b";")
        if sequence.kind != "osc" or command != STATUS:
            return
        if rest == b"?":
            self._reply(b"\x1b]7501;?\x1b\\")
        else:
            self._signal(Signal("program", rest.decode("utf-8", "replace")))


def _bare(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _emulator(columns: int, rows: int) -> tuple[Any, Any, Any]:
    try:
        from pyghostty import Terminal, ffi, lib
    except ImportError as problem:
        raise BadConfig(f"{problem.name} is missing; install it with `pip install 'midwatch[terminal]'`.") from None
    terminal = Terminal(columns, rows, MOST_LINES, fg=(220, 220, 220), bg=(0, 0, 0))
    lib.ghostty_terminal_set(terminal._t[0], lib.GHOSTTY_TERMINAL_OPT_APC_MAX_BYTES, ffi.new("size_t*", LONGEST_SIGNAL))
    return terminal, lib, ffi
