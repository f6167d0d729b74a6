"""Files that may be damaged: JSON, JSON lines and YAML of plain values.

Whatever lies in a file, reading it ends in a value of the shape that was asked for, or in a `UserError` of one line
that names the file, the line, the field, what is there and what is expected. It takes bounded time and memory, too: no
pipe is waited for, nothing is nested deeper than `DEPTH`, and no alias of YAML grows into more than `NODES`.
"""
