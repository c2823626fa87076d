# SPDX-License-Identifier: Apache-2.0
"""The standard library's `encodings` as a hook's start needs it: UTF-8, and the way to all the rest.

Before any line of ours an interpreter looks for the codec of file names, which brings three modules with four hundred
aliases, and the eleven classes of `codecs`: a seventh of its start.  The door has it find this module instead, the only
one in a folder that PYTHONPATH names.  Its modules are the standard library's; and whoever asks it for more than UTF-8
has it become the standard library's own.

Must not import what is not built into every interpreter, and must not fail: without a codec Python does not start.
"""

import _codecs
import sys


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


def __getattr__(name: str) -> object:
    """PEP 562: a name of the standard library's module, which from now on this one is."""
    if name.startswith("__"):
        raise AttributeError(f"module 'encodings' has no attribute {name!r}")
    del globals()["__getattr__"]
    import importlib

    return getattr(importlib.reload(_THIS), name)


def _later(name: str) -> None:
    """Let an import have the module `name` at once, and load it when somebody looks into it."""

    def get(attribute: str) -> object:
        import importlib

        if sys.modules.get(name) is module:
            del sys.modules[name]
        return getattr(importlib.import_module(name), attribute)

    module = sys.modules[name] = type(sys)(name)
    module.__getattr__ = get  # type: ignore[method-assign]  # PEP 562


_THIS = sys.modules[__name__]
_UTF_8 = _Utf8((_codecs.utf_8_encode, _decode, _reader, _writer))
_codecs.register(_search)  # type: ignore[arg-type]  # a CodecInfo by its attributes
# Found; the standard library's own is the next to be, and its modules are already.
sys.path[:] = [folder for folder in sys.path if not __file__.startswith(f"{folder}/encodings.")]
__path__ = [f"{folder}/encodings" for folder in sys.path]
if sys.version_info < (3, 10):
    # It imports these two before the standard streams, whatever their codec is.
    _later("encodings.utf_8")
    _later("encodings.latin_1")
