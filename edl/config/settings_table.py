"""The table of all settings, for the command line, the environment and `edl.init`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edl.config import value_parsers


class Setting(msgspec.Struct, frozen=True):
    field: str
    parse: Callable[[str], object]
    variables: tuple[str, ...]  # the first is the one handed down to workers
    flags: tuple[str, ...] = ()  # none: only for scripts and the environment
    metavar: str = ""
    help: str = ""


TABLE: tuple[Setting, ...] = (
    Setting(
        "job",
        value_parsers.name,
        ("EDL_JOB",),
        ("--job",),
        "NAME",
        "name of the job (default: a new one like brisk-otter-42)",
    ),
    Setting(
        "coordinator",
        value_parsers.coordinator,
        ("EDL_COORDINATOR",),
        ("--coordinator",),
        "[etcd://]HOST:PORT[,...][/chroot]",
        "the ZooKeeper, or with etcd:// the etcd, that coordinates the job (default: a local one that lives as long as "
        "the job)",
    ),
    Setting(
        "local_coordinator",
        value_parsers.one_of("zookeeper", "etcd", "embedded"),
        ("EDL_LOCAL_COORDINATOR",),
        ("--local-coordinator",),
        "zookeeper|etcd|embedded",
        "type of a local coordinator (default: zookeeper; without Java, etcd; without either, embedded)",
    ),
    Setting(
        "secret_file",
        value_parsers.path,
        ("EDL_SECRET_FILE",),
        ("--secret-file",),
        "FILE",
        "file with the secret that the workers of the job share (default: the file in the job's record here)",
    ),
    Setting(
        "np",
        value_parsers.whole_number(1),
        ("EDL_NP", "EDL_NUM_PROC"),
        ("-np", "--num-proc"),
        "N",
        "number of workers at the start (default: the smallest number allowed, 1)",
    ),
    Setting(
        "min_workers",
        value_parsers.whole_number(1),
        ("EDL_MIN_WORKERS", "EDL_MIN_NP", "EDL_MIN_NUM_PROC"),
        ("--min-np", "--min-num-proc"),
        "A",
        "fewest workers the job may go on with (default: 1)",
    ),
    Setting(
        "max_workers",
        value_parsers.whole_number(1),
        ("EDL_MAX_WORKERS", "EDL_MAX_NP", "EDL_MAX_NUM_PROC"),
        ("--max-np", "--max-num-proc"),
        "B",
        "most workers the job may have (default: no limit)",
    ),
    Setting(
        "max_restarts",
        value_parsers.whole_number(0),
        ("EDL_MAX_RESTARTS",),
        ("--max-restarts",),
        "R",
        "how often in all to replace a crashed worker, or to restart a dead job from its checkpoint (default: 3)",
    ),
    Setting(
        "autoscale",
        value_parsers.autoscale,
        ("EDL_AUTOSCALE",),
        ("--autoscale",),
        "POLICY",
        "choose the number of workers between --min-np and --max-np by efficiency=S, utility=FILE or policy=NAME; "
        "after a comma stride=N, batches=N, cooldown=SECONDS, dry-run (default: only people change it)",
    ),
    Setting(
        "autoscale_every",
        value_parsers.whole_number(1),
        ("EDL_AUTOSCALE_EVERY",),
        ("--autoscale-every",),
        "STEPS",
        "steps from one look of --autoscale and --stragglers to the next (default: 10)",
    ),
    Setting(
        "stragglers",
        value_parsers.one_of("off", "tell", "replace", "share"),
        ("EDL_STRAGGLERS",),
        ("--stragglers",),
        "off|tell|replace|share",
        "how to treat a straggler, a worker slower than the others: tell reports it, replace starts another worker, "
        "share gives it fewer samples of a batch that --batch-policy fixes (default: off)",
    ),
    Setting(
        "ring",
        value_parsers.one_of("auto", "horovod", "torch"),
        ("EDL_RING",),
        ("--ring",),
        "auto|horovod|torch",
        "library that averages PyTorch's gradients: Horovod, or PyTorch's process groups (gloo, NCCL), which need no "
        "Horovod; TensorFlow always uses Horovod (default: auto, Horovod where it is installed)",
    ),
    Setting(
        "check_weights",
        value_parsers.whole_number(0),
        ("EDL_CHECK_WEIGHTS",),
        ("--check-weights",),
        "STEPS",
        "compare the weights and optimizers of all workers every STEPS steps; 0: only after each change of workers and "
        "at the end (default: 100)",
    ),
    Setting(
        "on_divergence",
        value_parsers.one_of("fail", "heal"),
        ("EDL_ON_DIVERGENCE",),
        ("--on-divergence",),
        "fail|heal",
        "when the weights of workers differ: fail the job, or copy the state of the majority to all workers "
        "(default: fail)",
    ),
    Setting(
        "batch_policy",
        value_parsers.batch_policy,
        ("EDL_BATCH_POLICY",),
        ("--batch-policy",),
        "POLICY",
        "what n in batches(n) means when the number of workers changes: fixed-local, each worker takes n, and with "
        ",most=N never more than N together; fixed-global, all together take n; function=FILE.py:NAME says how many "
        "all take together (default: fixed-local)",
    ),
    Setting(
        "virtual_workers",
        value_parsers.whole_number(1),
        ("EDL_VIRTUAL_WORKERS",),
        ("--virtual-workers",),
        "V",
        "get the same bits at any size: workers compute each step as V parts, and neither the number of workers nor a "
        "death changes the weights; the script takes its parts by edl.microbatches(batch) (default: none)",
    ),
    Setting(
        "verify_compute",
        value_parsers.share_text,
        ("EDL_VERIFY_COMPUTE",),
        ("--verify-compute",),
        "PERCENT%",
        "with --virtual-workers: another worker computes so much of all parts again, and a worker whose numbers differ "
        "from two others' must leave (default: none)",
    ),
    Setting(
        "processes",
        value_parsers.whole_number(1),
        ("EDL_PROCESSES",),
        ("--processes",),
        "S",
        "processes of each worker, on one host, which hold a PyTorch model in shards, as by fully_shard() (default: 1)",
    ),
    Setting(
        "checkpoint",
        value_parsers.place,
        ("EDL_CHECKPOINT",),
        ("--checkpoint",),
        "DIR|URL",
        "save the job in this folder while the job trains; the same command, typed again, resumes from the newest "
        "checkpoint (default: no checkpoints)",
    ),
    Setting(
        "checkpoint_every",
        value_parsers.interval_text,
        ("EDL_CHECKPOINT_EVERY",),
        ("--checkpoint-every",),
        "30s|500steps|auto",
        "interval between checkpoints; auto: chosen by the cost of a checkpoint and the rate of faults (default: auto)",
    ),
    Setting(
        "checkpoint_overhead",
        value_parsers.share_text,
        ("EDL_CHECKPOINT_OVERHEAD",),
        ("--checkpoint-overhead",),
        "PERCENT%",
        "with --checkpoint-every auto: the share of its time that training may lose to checkpoints (default: 1%%)",
    ),
    Setting(
        "keep_checkpoints",
        value_parsers.whole_number(1),
        ("EDL_KEEP",),
        ("--keep",),
        "N",
        "number of the newest checkpoints to keep (default: 2)",
    ),
    Setting(
        "resume",
        value_parsers.resume,
        ("EDL_RESUME",),
        ("--resume",),
        "auto|never|must|PATH",
        "auto: go on from the newest checkpoint in the folder of --checkpoint, or begin anew if there is none; must: "
        "do not begin anew; PATH: go on from that one (default: auto)",
    ),
    Setting(
        "output_filename",
        value_parsers.path,
        ("EDL_OUTPUT_FILENAME",),
        ("--output-filename",),
        "DIR",
        "also write the output of worker N to DIR/rank.N/stdout and DIR/rank.N/stderr",
    ),
    Setting(
        "audit",
        value_parsers.path,
        ("EDL_AUDIT",),
        ("--audit",),
        "DIR",
        "record in DIR the samples that each worker trains, for `edl data verify DIR` (default: no record)",
    ),
    Setting(
        "network_interface",
        value_parsers.interface,
        ("EDL_NETWORK_INTERFACE",),
        ("--network-interface",),
        "NAME",
        "network interface between workers (default: the interface towards the coordinator)",
    ),
    Setting(
        "session_timeout_s",
        value_parsers.seconds(1, 60),
        ("EDL_SESSION_TIMEOUT",),
        ("--session-timeout",),
        "SECONDS",
        "declare a worker lost after this time without a heartbeat (default: 10)",
    ),
    Setting(
        "step_timeout_s",
        value_parsers.seconds(1, 86_400),
        ("EDL_STEP_TIMEOUT",),
        ("--step-timeout",),
        "SECONDS",
        "declare a step stuck after this time (default: 60)",
    ),
    Setting(
        "keep_nodes_s",
        value_parsers.seconds(0, 10 * 365 * 86_400),
        ("EDL_KEEP_NODES",),
        ("--keep-nodes",),
        "SECONDS",
        "keep the record of a job that is over in its coordinator for this time (default: a week, 604800)",
    ),
    Setting(
        "zookeeper_port",
        value_parsers.port,
        ("EDL_ZOOKEEPER_PORT",),
        ("--zookeeper-port",),
        "PORT",
        "port of the local ZooKeeper or etcd (default: any free port)",
    ),
    Setting(
        "metrics_port",
        value_parsers.any_port,
        ("EDL_METRICS_PORT",),
        ("--metrics-port",),
        "PORT",
        "serve /metrics for Prometheus from each worker's daemon, on this port or the next free port (0: any port); "
        "the leader's daemon has the job's metrics (default: no metrics)",
    ),
    Setting(
        "metrics_address",
        value_parsers.ip_address,
        ("EDL_METRICS_ADDRESS",),
        ("--metrics-address",),
        "ADDRESS",
        "address of this machine to serve metrics on; each host that reaches the address can read the metrics "
        "(default: 127.0.0.1)",
    ),
    Setting(
        "tensorboard",
        value_parsers.path,
        ("EDL_TENSORBOARD",),
        ("--tensorboard",),
        "DIR",
        "write the job's size, throughput, events and the figures of edl.report() to DIR/JOB for TensorBoard (default: "
        "nothing)",
    ),
    Setting(
        "warm_starts",
        value_parsers.one_of("on", "off", "eager"),
        ("EDL_WARM_STARTS",),
        ("--warm-starts",),
        "on|off|eager",
        "fork later workers from a process that has imported the workers' modules; on: import at the lowest priority, "
        "eager: at the workers' priority (default: on)",
    ),
    Setting(
        "log_level",
        value_parsers.log_level,
        ("EDL_LOG_LEVEL",),
        ("--log-level",),
        "debug|info|warning|error",
        "log level of the daemons (default: info)",
    ),
    Setting(
        "config",
        value_parsers.path,
        ("EDL_CONFIG",),
        ("--config",),
        "FILE.toml",
        "TOML file of settings, by the names of the flags, as in `max-np = 4`; flags and variables win over the file",
    ),
    Setting(
        "home", value_parsers.path, ("EDL_HOME",), ("--home",), "DIR", "folder of the records of jobs (default: ~/.edl)"
    ),
    Setting("policy_file", value_parsers.path, ("EDL_POLICY_FILE",)),
    Setting("resume_from", str, ("EDL_RESUME_FROM",)),
    Setting("life", value_parsers.whole_number(1), ("EDL_LIFE",)),
    Setting("replay_until", value_parsers.whole_number(1), ("EDL_REPLAY",)),
    Setting("batch_size", value_parsers.whole_number(1), ("EDL_BATCH_SIZE",)),
    Setting("spin_ms", value_parsers.milliseconds(0, 10_000), ("EDL_SPIN_MS",)),
    Setting("slot", value_parsers.whole_number(0), ("EDL_SLOT",)),
    Setting("limb", value_parsers.whole_number(0), ("EDL_LIMB",)),
    Setting("meeting", value_parsers.path, ("EDL_MEETING",)),
    Setting("worker_id", value_parsers.name, ("EDL_WORKER_ID",)),
    Setting("stand_in", value_parsers.path, ("EDL_STAND_IN",)),
    Setting("driver_slot", value_parsers.driver_slot, ("EDL_DRIVER_SLOT",)),
)

MORE_VARIABLES = frozenset((
    "EDL_COORDINATOR_AUTH", "EDL_COORDINATOR_TLS_CA", "EDL_COORDINATOR_TLS_CERT", "EDL_COORDINATOR_TLS_KEY",
    "EDL_COORDINATOR_TLS_VERIFY_HOST", "EDL_HOSTS", "EDL_JAVA", "EDL_ZOOKEEPER_JARS", "EDL_ETCD", "EDL_PYTHON",
    "EDL_CACHE", "EDL_BUILD_JOBS", "EDL_PURE", "EDL_CLUSTER_OWN", "EDL_LAUNCH", "EDL_WARM_PADDING",
    "EDL_TEST_COORDINATOR", "EDL_TORCHRUN_ACCUMULATE", "EDL_TORCHRUN_TRIAL",
))  # fmt: skip
"""Variables that edl, its scripts and its tests read, and that are neither settings nor flags of a command."""
