from edl.core.worker.digest import sums_of_rows as sums_of_rows
