"""Bytes in, values out. No I/O, no clock.

`frames.py` lays out a frame, the unit on storage. `frame_decoder.py` takes frames from pieces of
any size, and `buffers.py` cuts them for views. Bodies: `arrow_codec.py` (`arrow_checks.py` refuses
forged ones, `arrow_schemas.py` says what can be stored), `msgpack_codec.py`, `markers.py`.
`control.py` stores the records of logs and indexes, by the types in `field_types.py`.
`checksum.py` is the one CRC, `errors.py` the error tree. Start in `frames.py` or `control.py`.
"""
