"""The report docs/report/: its rows, tables and figures; `python -m research.report` writes them anew."""
