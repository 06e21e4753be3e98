"""Bytes in, values out: frames, codecs, control records, checksums and errors. No I/O, no clock."""
