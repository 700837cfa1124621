"""Run under plain `horovodrun`: the process that its driver takes for a worker, and the coordinator of a job without
one.

The driver starts processes, and counts on each until it has freed it. `edl.init()` therefore splits its process in two:
the copy trains, and may crash, be started again, or leave; the original is the stand-in, which the driver sees. The
stand-in speaks to the driver, and ends when the driver has freed its slot or the job is over. docs/horovodrun.md
describes it in full.
"""
