"""Lock files of runs, read logs that grow, and write what must survive a kill."""
