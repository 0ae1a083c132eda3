"""Makes one flat decoder and one flat encoder per message and version from the message schemas.

kafka-python's own generated decoders trust their input (a short string is shortened silently, a
varint has no end, tagged fields copy the rest of the buffer each time) and copy records; these
check every bound, count every element and slice records instead of copying. It knows the shape of
kafka-python's field objects (`codec` hands them in) and nothing of particular messages.

Generated decoder: `decode(data: memoryview, pos: int, end: int) -> (message, pos)`.
Generated encoder: `encode(item, out: bytearray, parts: list) -> bytearray`: appends to `out`; large
records are put into `parts` by reference, after the bytes before them, and a new `out` is begun.
"""

import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

# Elements of all arrays of one message together. A frame may announce 50 million two-byte structs
# in 100 MiB; objects cost 100 times that. The largest honest request names each partition once.
MAX_ELEMENTS: Final = 200_000
# Records shorter than this are cheaper to copy than to send as a buffer of their own.
COPY_BELOW: Final = 2_048
_MAX_STRING: Final = 0x7FFF

_FORMATS: Final = {
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "bool": ("?", 1),
    "uuid": ("16s", 16),
    "bitfield": ("I", 4),
}
_ZERO_UUID: Final = bytes(16)


class MalformedRequest(Exception):
    """The bytes are not the message they claim to be, or a number in it stands for nothing.

    The text says where, for the log.
    """


class Unencodable(Exception):
    """A handler's response lacks a field the protocol demands."""


def read_varint(data: memoryview, pos: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits at `pos`, and the position after it (KIP-482)."""
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise MalformedRequest("a varint longer than five bytes")
    if value > 0x7FFFFFFF:
        raise MalformedRequest("a length beyond 2^31")
    return value, pos


def varint(value: int) -> bytes:
    """`value`, not negative, as an unsigned varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_text(raw: memoryview) -> str:
    """A string's characters; bytes that are not UTF-8 become U+FFFD, as Java decodes them.

    Kafka so answers what it makes of the name. Raises MalformedRequest where the string would be
    longer than one may be, as U+FFFD takes three bytes: nobody could be told of it.
    """
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        text = str(raw, "utf-8", "replace")
        if len(text.encode()) > _MAX_STRING:
            raise MalformedRequest("a string of broken UTF-8 is long") from None
        return text


def _uuid(raw: bytes) -> UUID | None:
    return None if raw == _ZERO_UUID else UUID(bytes=raw)


def _fail(reason: str) -> None:
    raise MalformedRequest(reason)


def _lacking(field: str) -> None:
    raise Unencodable(f"{field} must not be null")


def _bits(value: set[int] | int | None) -> int:
    """Kafka's bit fields: "not asked for" is the lowest int32 (MetadataResponse, KIP-430)."""
    if value is None:
        return 1 << 31
    return value & 0xFFFFFFFF if isinstance(value, int) else sum(1 << bit for bit in value)


class _Source:
    """Lines of generated Python, fresh names, and the globals the code will see."""

    def __init__(self, version: int, compact: bool) -> None:
        self.version = version
        self.compact = compact
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self._given = 0

    def emit(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def name(self, stem: str) -> str:
        self._given += 1
        return f"{stem}{self._given}"

    def constant(self, stem: str, value: Any) -> str:
        name = self.name(stem.upper())
        self.names[name] = value
        return name

    def compile(self, function: str, title: str) -> Callable[..., Any]:
        exec(compile("\n".join(self.lines), f"<{title} v{self.version}>", "exec"), self.names)
        generated: Callable[..., Any] = self.names[function]
        return generated

    def nullable(self, field: Any) -> bool:
        return bool(field.nullable_for_version_q(self.version))

    def runs(self, fields: list[Any]) -> list[list[Any]]:
        """The fields in order, neighbours of fixed size together."""
        grouped: list[list[Any]] = []
        for field in fields:
            fixed = field.type_str in _FORMATS
            if fixed and grouped and grouped[-1][0].type_str in _FORMATS:
                grouped[-1].append(field)
            else:
                grouped.append([field])
        return grouped


def make_decoder(struct_field: Any, data_class: type, version: int, flexible: bool) -> Any:
    """Compile the decoder of one message version; see the module's docstring for its shape."""
    source = _DecoderSource(version, flexible)
    source.emit(0, "def decode(data, pos, end):")
    source.emit(1, f"left = {MAX_ELEMENTS}")
    source.struct(1, struct_field, data_class, "obj")
    source.emit(1, "return obj, pos")
    return source.compile("decode", data_class.__name__)


class _DecoderSource(_Source):
    def __init__(self, version: int, compact: bool) -> None:
        super().__init__(version, compact)
        self.names |= {"varint": read_varint, "fail": _fail, "uuid": _uuid, "new": object.__new__}
        self.names |= {"unpack_from": struct.unpack_from, "text": read_text}

    def length(self, depth: int, length: str, layout: str) -> None:
        """Read a string's, array's or byte sequence's length; -1 is null."""
        if self.compact:
            self.emit(depth, f"{length} = data[pos]; pos += 1")
            self.emit(depth, f"if {length} > 127: {length}, pos = varint(data, pos - 1)")
            self.emit(depth, f"{length} -= 1")
        else:
            self.emit(depth, f"{length} = {self.unpacker(layout)}(data, pos)[0]")
            self.emit(depth, f"pos += {struct.calcsize('>' + layout)}")

    def unpacker(self, layout: str) -> str:
        return self.constant("u", struct.Struct(">" + layout).unpack_from)

    def struct(self, depth: int, field: Any, data_class: type, target: str) -> None:
        made = self.constant("class", data_class)
        self.emit(depth, f"{target} = new({made})")
        self.emit(depth, f"{target}._version = {self.version}")
        self.emit(depth, f"{target}.tags = {target}.unknown_tags = None")
        for run in self.runs(field.untagged_fields(self.version)):
            if run[0].type_str in _FORMATS:
                self.fixed(depth, run, target)
            else:
                self.variable(depth, run[0], f"{target}.{run[0].name}", self.nullable(run[0]))
        if self.compact:
            self.tagged(depth, field, target)

    def fixed(self, depth: int, run: list[Any], target: str) -> None:
        layout = "".join(_FORMATS[field.type_str][0] for field in run)
        places = ", ".join(f"{target}.{field.name}" for field in run)
        self.emit(depth, f"{places}, = {self.unpacker(layout)}(data, pos)")
        self.emit(depth, f"pos += {struct.calcsize('>' + layout)}")
        for field in run:
            if field.type_str == "uuid":
                self.emit(depth, f"{target}.{field.name} = uuid({target}.{field.name})")

    def variable(self, depth: int, field: Any, target: str, nullable: bool) -> None:
        if field.is_struct():
            if nullable:
                self.emit(depth, "pos += 1")
                self.emit(depth, "if data[pos - 1] > 127:")  # a negative int8 is null
                self.emit(depth + 1, f"{target} = None")
                self.emit(depth, "else:")
                depth += 1
            item = self.name("item")
            self.struct(depth, field, field.data_class, item)
            self.emit(depth, f"{target} = {item}")
            return
        length = self.name("n")
        is_string = field.type_str == "string"
        self.length(depth, length, "h" if is_string else "i")
        self.emit(depth, f"if {length} < 0:")
        null = f"{target} = None" if nullable else f"fail('{field.name} is null')"
        self.emit(depth + 1, null)
        self.emit(depth, "else:")
        if field.is_array():
            self.array(depth + 1, field, target, length)
            return
        self.emit(depth + 1, f"if {length} > end - pos: fail('{field.name} is cut short')")
        if is_string:
            if self.compact:
                self.emit(depth + 1, f"if {length} > {_MAX_STRING}: fail('{field.name} is long')")
            self.emit(depth + 1, f"{target} = text(data[pos:pos + {length}])")
        elif field.type_str == "records":
            self.emit(depth + 1, f"{target} = data[pos:pos + {length}]")
        else:
            self.emit(depth + 1, f"{target} = bytes(data[pos:pos + {length}])")
        self.emit(depth + 1, f"pos += {length}")

    def array(self, depth: int, field: Any, target: str, length: str) -> None:
        # Every element takes at least a byte (Kafka's generated readers check the same).
        self.emit(depth, f"left -= {length}")
        self.emit(depth, f"if {length} > end - pos: fail('{field.name} is cut short')")
        self.emit(depth, "if left < 0: fail('too many elements')")
        element = field.array_of
        if element.type_str in _FORMATS:
            letter, size = _FORMATS[element.type_str]
            if element.type_str == "uuid":
                unpack = self.unpacker(letter)
                positions = f"range(pos, pos + {length} * {size}, {size})"
                items = f"[uuid({unpack}(data, at)[0]) for at in {positions}]"
            else:
                items = f"list(unpack_from('>%d{letter}' % {length}, data, pos))"
            self.emit(depth, f"{target} = {items}")
            self.emit(depth, f"pos += {length} * {size}")
            return
        items, item = self.name("items"), self.name("item")
        self.emit(depth, f"{target} = {items} = []")
        self.emit(depth, f"for _ in range({length}):")
        if element.is_struct():
            self.struct(depth + 1, element, element.data_class, item)
        else:
            self.variable(depth + 1, element, item, False)
        self.emit(depth + 1, f"{items}.append({item})")

    def tagged(self, depth: int, field: Any, target: str) -> None:
        """Tagged fields (KIP-482): nearly always none; unknown ones are skipped."""
        count, tag, stop = self.name("tags"), self.name("tag"), self.name("stop")
        self.emit(depth, f"{count} = data[pos]; pos += 1")
        self.emit(depth, f"if {count}:")
        self.emit(depth + 1, f"{count}, pos = varint(data, pos - 1)")
        self.emit(depth + 1, f"left -= {count}")
        self.emit(depth + 1, "if left < 0: fail('too many elements')")
        self.emit(depth + 1, f"for _ in range({count}):")
        self.emit(depth + 2, f"{tag}, pos = varint(data, pos)")
        self.emit(depth + 2, f"{stop}, pos = varint(data, pos)")
        self.emit(depth + 2, f"{stop} += pos")
        self.emit(depth + 2, f"if {stop} > end: fail('a tagged field is cut short')")
        known = [f for f in field.fields.values() if f.tagged_field_q(self.version)]
        for one in known:
            if not one.for_version_q(self.version):
                continue
            self.emit(depth + 2, f"if {tag} == {one.tag}:")
            if one.type_str in _FORMATS:
                self.fixed(depth + 3, [one], target)
            else:
                self.variable(depth + 3, one, f"{target}.{one.name}", self.nullable(one))
            self.emit(depth + 3, f"if pos != {stop}: fail('{one.name} has another size')")
        self.emit(depth + 2, f"pos = {stop}")


def make_encoder(struct_field: Any, title: str, version: int, flexible: bool) -> Any:
    """Compile the encoder of one message version; see the module's docstring for its shape."""
    source = _EncoderSource(version, flexible)
    source.emit(0, "def encode(item, out, parts):")
    source.struct(1, struct_field, "item", "out")
    source.emit(1, "return out")
    return source.compile("encode", title)


class _EncoderSource(_Source):
    def __init__(self, version: int, compact: bool) -> None:
        super().__init__(version, compact)
        self.names |= {"varint": varint, "lacking": _lacking, "zero": _ZERO_UUID, "bits": _bits}
        self.names |= {"pack": struct.pack, "bytearray": bytearray}

    def packer(self, layout: str) -> str:
        return self.constant("p", struct.Struct(">" + layout).pack)

    def length(self, depth: int, length: str, layout: str, out: str) -> None:
        if self.compact:
            self.emit(depth, f"if {length} < 127: {out}.append({length} + 1)")
            self.emit(depth, f"else: {out} += varint({length} + 1)")
        else:
            self.emit(depth, f"{out} += {self.packer(layout)}({length})")

    def null(self, layout: str) -> bytes:
        return b"\0" if self.compact else struct.pack(">" + layout, -1)

    def struct(self, depth: int, field: Any, item: str, out: str) -> None:
        for run in self.runs(field.untagged_fields(self.version)):
            if run[0].type_str in _FORMATS:
                self.fixed(depth, run, item, out)
            else:
                value = self.name("v")
                self.emit(depth, f"{value} = {item}.{run[0].name}")
                self.variable(depth, run[0], value, self.nullable(run[0]), out)
        if self.compact:
            self.tagged(depth, field, item, out)

    def value(self, kind: str, expression: str) -> str:
        if kind == "uuid":
            return f"(zero if {expression} is None else {expression}.bytes)"
        return f"bits({expression})" if kind == "bitfield" else expression

    def fixed(self, depth: int, run: list[Any], item: str, out: str) -> None:
        layout = "".join(_FORMATS[field.type_str][0] for field in run)
        values = ", ".join(self.value(f.type_str, f"{item}.{f.name}") for f in run)
        self.emit(depth, f"{out} += {self.packer(layout)}({values})")

    def variable(self, depth: int, field: Any, value: str, nullable: bool, out: str) -> None:
        layout = "h" if field.type_str == "string" else "i"
        null = b"\xff" if field.is_struct() else self.null(layout)
        self.emit(depth, f"if {value} is None:")
        self.emit(depth + 1, f"{out} += {null!r}" if nullable else f"lacking('{field.name}')")
        self.emit(depth, "else:")
        depth += 1
        if field.is_struct():
            if nullable:
                self.emit(depth, f"{out}.append(1)")
            self.struct(depth, field, value, out)
        elif field.is_array():
            self.array(depth, field, value, out)
        elif field.type_str == "records":
            self.records(depth, value, out)
        else:
            raw, length = self.name("raw"), self.name("n")
            encoded = f"{value}.encode()" if field.type_str == "string" else value
            self.emit(depth, f"{raw} = {encoded}; {length} = len({raw})")
            self.length(depth, length, layout, out)
            self.emit(depth, f"{out} += {raw}")

    def records(self, depth: int, value: str, out: str) -> None:
        """Bytes, or a list of buffers that are sent one after another without being joined."""
        length = self.name("n")
        self.emit(depth, f"if not isinstance({value}, (list, tuple)): {value} = ({value},)")
        self.emit(depth, f"{length} = sum(map(len, {value}))")
        self.length(depth, length, "i", out)
        self.emit(depth, f"if {length} < {COPY_BELOW}:")
        self.emit(depth + 1, f"for part in {value}: {out} += part")
        self.emit(depth, "else:")
        self.emit(depth + 1, f"parts.append({out}); parts.extend({value}); {out} = bytearray()")

    def array(self, depth: int, field: Any, value: str, out: str) -> None:
        length, element = self.name("n"), field.array_of
        self.emit(depth, f"{length} = len({value})")
        self.length(depth, length, "i", out)
        kind = element.type_str
        if kind in _FORMATS and kind not in ("uuid", "bitfield"):
            letter = _FORMATS[kind][0]
            self.emit(depth, f"{out} += pack('>%d{letter}' % {length}, *{value})")
            return
        item = self.name("item")
        self.emit(depth, f"for {item} in {value}:")
        if kind in _FORMATS:
            packer = self.packer(_FORMATS[kind][0])
            self.emit(depth + 1, f"{out} += {packer}({self.value(kind, item)})")
        elif element.is_struct():
            self.struct(depth + 1, element, item, out)
        else:
            self.variable(depth + 1, element, item, False, out)

    def tagged(self, depth: int, field: Any, item: str, out: str) -> None:
        """Tagged fields that differ from their defaults, each with its size (KIP-482)."""
        known = sorted(
            (f for f in field.fields.values() if f.tagged_field_q(self.version)),
            key=lambda f: f.tag,
        )
        known = [f for f in known if f.for_version_q(self.version)]
        if not known:
            self.emit(depth, f"{out}.append(0)")
            return
        tags, count = self.name("tags"), self.name("count")
        self.emit(depth, f"{tags} = bytearray(); {count} = 0")
        for one in known:
            value, body = self.name("v"), self.name("body")
            default = self.constant("default", one.default)
            self.emit(depth, f"{value} = {item}.{one.name}")
            self.emit(depth, f"if {value} != {default}:")
            self.emit(depth + 1, f"{count} += 1; {body} = bytearray()")
            if one.type_str in _FORMATS:
                self.fixed(depth + 1, [one], item, body)
            else:
                self.variable(depth + 1, one, value, self.nullable(one), body)
            self.emit(depth + 1, f"{tags}.append({one.tag}); {tags} += varint(len({body}))")
            self.emit(depth + 1, f"{tags} += {body}")
        self.emit(depth, f"{out} += varint({count}); {out} += {tags}")
