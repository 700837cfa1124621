"""The parser of `edl run --autoscale`, which says how the size of a job is chosen.

efficiency=S     each further worker must add more than S of what one does (`edl.policy.efficiency`)
utility=FILE     an earlier end must be worth more than it costs (`edl.policy.efficiency`)
policy=NAME      a user's class: FILE.py:CLASS, or an entry point of the group `edl.policies`; on record, and
                 in messages, policy=sha256:DIGEST of its code, which names nothing that could be run (I18)

Owns: the parts of such a text, and edl's own policies. Does not own: files and code (`edl.daemon.policy_loader`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edl.errors import ConfigError
from edl.policy import efficiency
from edl.policy.efficiency import Condition, Efficiency, Search, Worth
from edl.policy.policy_engine import Pacing
from edl.policy.policy_job_view import Policy

GROUP: Final = "edl.policies"
BATCHES: Final = 100
COOLDOWN_S: Final = 5.0
MOST_WORKERS: Final = 256  # if the job has no limit: the largest size for which a user's function is called


@dataclass(frozen=True, slots=True)
class Choice:
    """The parts of an --autoscale text."""

    kind: str  # "efficiency", "utility" or "policy"
    value: str
    options: dict[str, float]
    dry_run: bool

    @classmethod
    def of(cls, text: str) -> Choice:
        """Parse a text of the right form (`edl.config`). Raises ConfigError for any other."""
        first, *others = text.split(",")
        kind, _, value = first.partition("=")
        try:
            named = dict(other.split("=") for other in others if "=" in other)
            options = {name: float(number) for name, number in named.items()}
        except ValueError:
            raise ConfigError(f"--autoscale {text}: cannot be read") from None
        return cls(kind, value, options, "dry-run" in others)

    @property
    def is_users(self) -> bool:
        """True if a user's code decides, instead of edl's own policies."""
        return self.kind == "policy"

    def naming(self, digest: str) -> str:
        """Return the text with the digest of the user's code in place of its name."""
        options = [f"{name}={number:g}" for name, number in self.options.items()]
        return ",".join([f"policy={digest}", *options, *(["dry-run"] if self.dry_run else [])])

    @property
    def stride(self) -> int:
        return max(1, int(self.options.get("stride", 1)))

    @property
    def batches(self) -> int:
        return max(2, int(self.options.get("batches", BATCHES)))

    def pacing(self, every: int) -> Pacing:
        return Pacing(every=every, cooldown_s=self.options.get("cooldown", COOLDOWN_S), dry_run=self.dry_run)

    def policy(self, file: str) -> Policy:
        """Return one of edl's own policies. `file` is the content of the utility's file. Raises ConfigError."""
        condition: Condition
        match self.kind:
            case "efficiency":
                condition = Efficiency(float(self.value))
            case "utility":
                condition = Worth(efficiency.read(file, self.value))
            case _:
                raise ConfigError(f"--autoscale {self.kind}={self.value}: is none of edl's own policies")
        return Search(condition, self.stride, self.batches)
