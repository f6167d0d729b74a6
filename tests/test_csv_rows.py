"""research/csv_rows.py: the rows of measurements."""

import pytest

from research.csv_rows import read_rows, replace_rows, write_rows


def test_rows_are_written_and_added_to_in_the_columns_of_their_file(tmp_path):
    path = tmp_path / "rows.csv"
    assert read_rows(path, missing_ok=True) == []
    with pytest.raises(FileNotFoundError, match=r"rows\.csv"):
        read_rows(path)
    for rows in ([{"rule": 'a "clip", tight', "right": 0.5}], [{"right": 1, "rule": "ä"}, {"rule": "b"}]):
        write_rows(path, rows, add=True)
    before = 'rule,right\n"a ""clip"", tight",0.5\nä,1\nb,\n'.encode()
    assert (path.read_bytes(), read_rows(path)[2]) == (before, {"rule": "b", "right": ""})
    for add in (True, False):
        with pytest.raises(ValueError, match="contains fields not in fieldnames: 'rwle'"):
            write_rows(path, [{"rule": "c"}, {"rwle": "d"}], add=add)
        assert path.read_bytes() == before
    write_rows(path, read_rows(path)[1:], ("right", "rule", "seed"))
    assert path.read_bytes() == "right,rule,seed\n1,ä,\n,b,\n".encode()
    path.write_bytes(b"")
    write_rows(path, [], ("rule",), add=True)
    assert path.read_bytes() == b"rule\n"


def test_rows_of_the_same_key_are_replaced_and_the_others_stay(tmp_path):
    path, part = tmp_path / "rows.csv", {"part": "b"}
    for rows, more, expected in (
        ([part | {"size": 2}, part | {"size": 1}, {"part": "a", "size": 10}], (["part"],),
         "part,size\nb,2\nb,1\na,10\n"),
        ([part | {"size": 3}], (["part"],), "part,size\na,10\nb,3\n"),
        ([part | {"size": 10}], (("part", "size"), ("size", "part"), lambda row: int(row["size"])),
         "size,part\n3,b\n10,a\n10,b\n"),
        ([part | {"size": 10}, part | {"size": 9}], (("part", "size"),), "size,part\n3,b\n10,a\n10,b\n9,b\n"),
    ):  # fmt: skip
        replace_rows(path, rows, *more)
        assert path.read_text() == expected
