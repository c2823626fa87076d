# SPDX-License-Identifier: Apache-2.0
"""The standard library's `encodings` as a hook's start needs it: UTF-8, and the way to all the rest.

Before any line of ours an interpreter looks for the codec of file names, which brings three modules with four hundred
aliases, and the eleven classes of `codecs`: a seventh of its start.  The door has it find this module instead, the only
one in a folder that PYTHONPATH names.  Whoever asks for more than UTF-8 gets the standard library's own, which then
takes this one's place.

Must not import what is not built into every interpreter, and must not fail: without a codec Python does not start.
"""

import sys

import _codecs


class _Encoder:
    """codecs.IncrementalEncoder: no character of UTF-8 depends on those before it."""

    def __init__(self, errors: str = "strict") -> None:
        self.errors = errors

    def encode(self, text: str, final: bool = False) -> bytes:
        return _codecs.utf_8_encode(text, self.errors)[0]

    def reset(self) -> None:
        pass

    def getstate(self) -> int:
        return 0

    def setstate(self, state: int) -> None:
        pass


class _Decoder:
    """codecs.IncrementalDecoder: the bytes of a character that has only begun are kept for the next call."""

    def __init__(self, errors: str = "strict") -> None:
        self.errors = errors
        self._begun = b""

    def decode(self, data: bytes, final: bool = False) -> str:
        data = self._begun + data
        text, used = _codecs.utf_8_decode(data, self.errors, final)
        self._begun = data[used:]
        return text

    def reset(self) -> None:
        self._begun = b""

    def getstate(self) -> "tuple[bytes, int]":
        return self._begun, 0

    def setstate(self, state: "tuple[bytes, int]") -> None:
        self._begun = state[0]


def _decode(data: bytes, errors: str = "strict") -> "tuple[str, int]":
    return _codecs.utf_8_decode(data, errors, True)


def _reader(stream: object, errors: str = "strict") -> object:
    return _whole().utf_8.StreamReader(stream, errors)


def _writer(stream: object, errors: str = "strict") -> object:
    return _whole().utf_8.StreamWriter(stream, errors)


class _Utf8(tuple):
    """codecs.CodecInfo."""

    __slots__ = ()
    name = "utf-8"
    _is_text_encoding = True
    encode = staticmethod(_codecs.utf_8_encode)
    decode = staticmethod(_decode)
    incrementalencoder = _Encoder
    incrementaldecoder = _Decoder
    streamreader = staticmethod(_reader)
    streamwriter = staticmethod(_writer)


_UTF_8 = _Utf8((_codecs.utf_8_encode, _decode, _reader, _writer))
_THIS = sys.modules[__name__]


def _search(name: str) -> object:
    """A search function (codecs.register)."""
    return _UTF_8 if name in ("utf_8", "utf-8") else _whole().search_function(name)


def _whole():  # type: ignore[no-untyped-def]  # a module, which no stub describes
    """The standard library's module, in this one's place from now on."""
    for name in ("encodings", "encodings.utf_8", "encodings.latin_1"):
        if sys.modules.get(name) is _THIS:
            del sys.modules[name]
    import encodings.utf_8

    return encodings


def __getattr__(name: str) -> object:
    """PEP 562: what someone wants of the standard library's module; its path, for one of its modules."""
    if name == "__path__" or not name.startswith("__"):
        return getattr(_whole(), name)
    raise AttributeError(name)


_codecs.register(_search)
if sys.version_info < (3, 10):
    # It imports these two before the standard streams, whatever their codec is.
    sys.modules["encodings.utf_8"] = sys.modules["encodings.latin_1"] = _THIS
