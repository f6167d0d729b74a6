"""Lock files of runs, read files and logs that grow, and write what must survive a kill."""
