"""research/csv_rows.py: the rows of measurements."""

import pytest

from research.csv_rows import read_rows, replace_rows, write_rows


def test_rows_are_written_and_added_to_in_the_columns_of_their_file(tmp_path):
    path = tmp_path / "rows.csv"
    assert read_rows(path, missing_ok=True) == []
    with pytest.raises(FileNotFoundError, match=r"rows\.csv"):
        read_rows(path)
    write_rows(path, [{"rule": 'a "clip", tight', "right": 0.5}], add=True)
    write_rows(path, [{"right": 1, "rule": "ä"}, {"rule": "b"}], add=True)
    assert path.read_bytes() == 'rule,right\n"a ""clip"", tight",0.5\nä,1\nb,\n'.encode()
    assert read_rows(path)[2] == {"rule": "b", "right": ""}
    before = path.read_bytes()
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
    path = tmp_path / "rows.csv"
    replace_rows(path, [{"part": "b", "size": 2}, {"part": "b", "size": 1}, {"part": "a", "size": 10}], ["part"])
    replace_rows(path, [{"part": "b", "size": 3}], ["part"])
    assert path.read_bytes() == b"part,size\na,10\nb,3\n"
    replace_rows(path, [{"part": "b", "size": 10}], ("part", "size"), ("size", "part"), lambda row: int(row["size"]))
    assert path.read_bytes() == b"size,part\n3,b\n10,a\n10,b\n"
    replace_rows(path, [{"part": "b", "size": 10}, {"part": "b", "size": 9}], ("part", "size"))
    assert path.read_bytes() == b"size,part\n3,b\n10,a\n10,b\n9,b\n"
