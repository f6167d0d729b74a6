"""Lock files of runs, read files, and write what must survive a kill."""
