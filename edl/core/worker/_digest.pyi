from edl.core.worker.digest_sums import sums_of_rows as sums_of_rows
