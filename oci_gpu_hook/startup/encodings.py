# SPDX-License-Identifier: Apache-2.0
"""The standard library's `encodings` as a hook's start needs it: UTF-8, and the way to all the rest.

Before any line of ours an interpreter looks for the codec of file names, which brings three modules with four hundred
aliases, and the eleven classes of `codecs`: a seventh of its start.  The door has it find this module instead, in
the folder that PYTHONPATH names.  Its modules are the standard library's; and whoever asks it for more than UTF-8
has it become the standard library's own.

Must not import what is not built into every interpreter, and must not fail: without a codec Python does not start.
"""

import _codecs
import _thread
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


class _Encoder:
    """codecs.IncrementalEncoder: no character of UTF-8 depends on those before it."""

    def __init__(self, errors: str = "strict") -> None:
        self.errors = errors

    def encode(self, input: str, final: bool = False) -> bytes:
        return _codecs.utf_8_encode(input, self.errors)[0]

    def reset(self) -> None:
        pass

    def getstate(self) -> int:
        return 0

    def setstate(self, state: int) -> None:
        pass


class _Decoder:
    """codecs.BufferedIncrementalDecoder: the bytes of a character that has only begun wait for the next ones."""

    def __init__(self, errors: str = "strict") -> None:
        self.errors = errors
        self.buffer = b""

    def decode(self, input: bytes, final: bool = False) -> str:
        data = self.buffer + input
        text, used = _codecs.utf_8_decode(data, self.errors, final)
        self.buffer = data[used:]
        return text

    def reset(self) -> None:
        self.buffer = b""

    def getstate(self) -> "tuple[bytes, int]":
        return self.buffer, 0

    def setstate(self, state: "tuple[bytes, int]") -> None:
        self.buffer = state[0]


def _decode(input: bytes, errors: str = "strict") -> "tuple[str, int]":
    return _codecs.utf_8_decode(input, errors, True)


# The factories of rare objects, which only the standard library's module has.
def _reader(stream: object, errors: str = "strict") -> object:
    from encodings.utf_8 import StreamReader

    return StreamReader(stream, errors)  # type: ignore[arg-type]  # as codecs.getreader has it


def _writer(stream: object, errors: str = "strict") -> object:
    from encodings.utf_8 import StreamWriter

    return StreamWriter(stream, errors)  # type: ignore[arg-type]


class _Utf8(tuple):  # type: ignore[type-arg]  # whose items have types of their own each
    """codecs.CodecInfo."""

    name = "utf-8"
    _is_text_encoding = True
    encode = _codecs.utf_8_encode
    decode = staticmethod(_decode)
    incrementalencoder = _Encoder
    incrementaldecoder = _Decoder
    streamreader = staticmethod(_reader)
    streamwriter = staticmethod(_writer)


def _search(name: str) -> object:
    """A search function (codecs.register)."""
    return _UTF_8 if name == "utf_8" else _THIS.search_function(name)


def _become_when_asked(module: "ModuleType") -> None:
    """Have `module` become the standard library's of its name as soon as anybody looks for what is not in it."""
    lock = _thread.RLock()
    waiting = [module]

    def get(name: str) -> object:
        """PEP 562."""
        if not name.startswith("__"):
            # Other threads wait; what the module itself looks for while it is read is not there yet.
            with lock:
                if waiting:
                    import importlib

                    # Found again it would be for as long as the folder is searched.
                    sys.path[:] = [folder for folder in sys.path if folder != _HERE]
                    importlib.reload(waiting.pop())
                    del module.__getattr__
            if name in module.__dict__:
                return module.__dict__[name]
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    module.__getattr__ = get  # type: ignore[method-assign]  # a module's own


_UTF_8 = _Utf8((_codecs.utf_8_encode, _decode, _reader, _writer))
_THIS = sys.modules[__name__]
_codecs.register(_search)  # type: ignore[arg-type]  # a CodecInfo by its attributes
_HERE = __file__.rpartition("/")[0]
# Its modules are the standard library's already.
__path__ = [f"{folder}/encodings" for folder in sys.path]
_become_when_asked(_THIS)
if sys.version_info < (3, 10):
    # It imports these two before the standard streams, whatever their codec is.
    for _name in ("utf_8", "latin_1"):
        _module = sys.modules[f"encodings.{_name}"] = type(sys)(f"encodings.{_name}")
        setattr(_THIS, _name, _module)
        _become_when_asked(_module)
